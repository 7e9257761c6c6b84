"""Task rejection, reported in full: score, attempts, rejection curve, calibration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from uvax.envs.go_to_door import GoToDoor
from uvax.errors import InvalidInput
from uvax.evaluation.calibration import Calibration, calibration
from uvax.evaluation.curves import RejectionCurve, rejection_curve
from uvax.evaluation.protocol import PLACES, EveryTask, best_returns, check_request, hashable, play_every_task
from uvax.evaluation.statistics import LEVEL, Interval, mean_interval, share_interval

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


_FRESH = 1  # folded into a key for boards that the key itself does not give


@dataclass(frozen=True)
class TaskRejection:
    """The outcome of the task-rejection protocol. `print` it with rich, or write `row()` to a file.

    Returns are undiscounted and per episode; `calibration` is about discounted ones. Dictionaries go by the place
    of the task's door: north, south, west, east, and impossible for a colour that is not on the board.
    """

    env: dict[str, Any]
    episodes: int
    reject: int
    mean_return: Interval
    attempts: dict[str, Interval]  # share of episodes whose task was there
    returns: dict[str, Interval]  # mean return of those episodes
    uncertainty: dict[str, Interval]  # at s0, over all tasks there, attempted or not
    value: dict[str, Interval]  # Q(s0, a0, z), likewise
    curve: RejectionCurve
    calibration: Calibration
    status: str  # "ok", or what to know before believing the numbers

    def row(self) -> dict[str, Any]:
        """Everything as one flat, JSON-able dictionary; None where there is nothing to report."""
        row: dict[str, Any] = {f"env_{name}": value for name, value in self.env.items()}
        row |= {"episodes": self.episodes, "reject": self.reject, "level": self.mean_return.level}
        row |= {"evaluation_status": self.status} | self.mean_return.row("return")
        groups = {
            "attempt": self.attempts,
            "return": self.returns,
            "uncertainty": self.uncertainty,
            "value": self.value,
        }
        for name, by_place in groups.items():
            for place, interval in by_place.items():
                row |= interval.row(f"{name}_{place}")
        return row | self.curve.row() | self.calibration.row()

    def table(self) -> "Table":
        """The score and where it comes from, for the terminal; `curve.table()` and `calibration.table()` have more."""
        from rich.table import Table

        title = f"task rejection: return {self.mean_return} over {self.episodes:,} boards, {self.reject} tasks rejected"
        table = Table(title=title, caption=None if self.status == "ok" else self.status)
        for name in ("door", "attempts", "return", "uncertainty at s0", "value at s0"):
            table.add_column(name, justify="left" if name == "door" else "right")
        for place in PLACES:
            columns = (self.attempts, self.returns, self.uncertainty, self.value)
            table.add_row(place, *(str(column[place]) for column in columns))
        return table

    def __rich__(self) -> "Group":
        from rich.console import Group

        return Group(self.table(), self.curve.table(), self.calibration.table())


def task_rejection(
    fit: Any, env: GoToDoor, reject: int = 4, episodes: int = 1_000, seed: int = 1, *, level: float = LEVEL
) -> TaskRejection:
    """Play the task-rejection protocol (Section 5) with a trained estimator and report all about it.

    `fit` is what `uvax.fit` returns, or anything with an `estimator` and its `state`.

    On each of `episodes` boards the agent sees six tasks, rejects the `reject` most uncertain ones at (s0, greedy
    a0), is given one of the others at random and plays it greedily to the end of the episode. Boards, and the luck
    on them, come from `seed` and `episodes` alone: the same for every method.

        fit = uvax.fit(uvax.UVU(), data, steps=20_000, seed=0)
        result = uvax.task_rejection(fit, env, episodes=5_000)
        rich.print(result); result.mean_return.low; result.row()

    Cost: four rollouts per board, for the rejection curve; `evaluate`, which has the score alone, needs one.
    """
    for name in ("estimator", "state"):
        if not hasattr(fit, name):
            raise InvalidInput(
                f"fit must have .estimator and .state, as uvax.fit returns it, but {type(fit).__name__} has no .{name}"
            )
    _check_spec(fit, env)
    return report(
        fit.estimator, fit.state, env, key=jax.random.key(seed), episodes=episodes, reject=reject, level=level
    )


def final_evaluation(
    estimator: Any,
    state: PyTree,
    env: GoToDoor,
    *,
    key: Array,
    episodes: int = 5_000,
    reject: int = 4,
    level: float = LEVEL,
) -> TaskRejection:
    """The report on **fresh** boards: never those that `evaluate` draws from the same key.

    The best of many evaluations on the same boards is partly the luckiest; on fresh boards that luck is gone. Pass
    the key that the evaluations during training had.
    """
    fresh = jax.random.fold_in(key, _FRESH)
    return report(estimator, state, env, key=fresh, episodes=episodes, reject=reject, level=level)


def report(
    estimator: Any,
    state: PyTree,
    env: GoToDoor,
    *,
    key: Array,
    episodes: int,
    reject: int = 4,
    level: float = LEVEL,
) -> TaskRejection:
    """The report on the boards of `key`, for an estimator and its state: `evaluate`'s score on the same boards, and
    the rest of `TaskRejection`."""
    check_request(estimator, state, env, episodes=episodes, reject=reject)
    played = play_every_task(hashable(estimator), state, env, key=key, episodes=episodes, reject=reject)
    best = best_returns(env, key=key, gamma=estimator.gamma, episodes=episodes, grid=int(np.asarray(env.size)))
    return _summary(played, best, env, reject, level)


def _summary(played: EveryTask, best: Array, env: GoToDoor, reject: int, level: float) -> TaskRejection:
    attempt, offers = played.episodes, played.episodes.offers
    score, place, wall = np.asarray(attempt.score), np.asarray(attempt.place), np.asarray(offers.wall)
    at_s0 = {"uncertainty": np.asarray(offers.uncertainty), "value": np.asarray(offers.value)}

    def by_place(samples: Callable[[int], np.ndarray]) -> dict[str, Interval]:
        """Diverged estimators offer NaN, of which `status` tells; the rest is averaged."""
        found = {name: samples(i) for i, name in enumerate(PLACES)}
        return {name: mean_interval(x[np.isfinite(x)], level=level) for name, x in found.items()}

    return TaskRejection(
        env=env.params(),
        episodes=score.size,
        reject=reject,
        mean_return=mean_interval(score, level=level),
        attempts={
            name: share_interval(int(np.sum(place == i)), score.size, level=level) for i, name in enumerate(PLACES)
        },
        returns=by_place(lambda i: score[place == i]),
        uncertainty=by_place(lambda i: at_s0["uncertainty"][wall == i]),
        value=by_place(lambda i: at_s0["value"][wall == i]),
        curve=rejection_curve(played.returns.score, attempt.order, level=level),
        calibration=calibration(**at_s0, returns=played.returns.discounted, best=best, level=level),
        status=_status(**at_s0),
    )


def _status(uncertainty: np.ndarray, value: np.ndarray) -> str:
    remarks = []
    if lost := int(np.count_nonzero(~np.isfinite(value))):
        remarks.append(f"{lost:,} of {value.size:,} values at s0 are not finite: the training diverged")
    if lost := int(np.count_nonzero(~np.isfinite(uncertainty))):
        remarks.append(f"{lost:,} of {uncertainty.size:,} uncertainties at s0 are not finite and count as the highest")
    elif (equal := np.ptp(uncertainty, axis=1) == 0).all():
        remarks.append("all tasks of a board are equally uncertain: rejection was at random")
    elif equal.any():
        remarks.append(f"on {equal.mean():.1%} of the boards all tasks are equally uncertain: rejected at random")
    if len(value) == 1:
        remarks.append("one episode has no intervals")
    return "; ".join(remarks) or "ok"


def _check_spec(fit: Any, env: Any) -> None:
    """Refuse a fit on data of another shape by its `spec`, where it has one."""
    spec = getattr(fit, "spec", None)
    if spec is None or not isinstance(env, GoToDoor):
        return
    ours, theirs = env.spec, spec
    same_obs = getattr(theirs.obs, "shape", None) == ours.obs.shape
    if not same_obs or (theirs.task_dim, theirs.num_actions) != (ours.task_dim, ours.num_actions):
        raise InvalidInput(
            f"fit was trained on observations {getattr(theirs.obs, 'shape', theirs.obs)}, {theirs.task_dim} task "
            f"numbers and {theirs.num_actions} actions, but {env.name} has {ours.obs.shape}, {ours.task_dim} and "
            f"{ours.num_actions}; evaluate it on its own environment"
        )
