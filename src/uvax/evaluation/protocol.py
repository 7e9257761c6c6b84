"""The task-rejection protocol of Section 5, compiled: an estimator's state in, episodes out.

At s0 the agent sees all tasks, two of six impossible; it rejects those with the highest uncertainty at (s0, a0), is
given one of the others at random and plays it greedily. What is compiled depends on the estimator's hyperparameters
and the number of episodes only: another state, seed, board size or number of rejections runs the same program.
"""

import functools
import math
import numbers
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from uvax.envs.go_to_door import WALLS, GoToDoor
from uvax.envs.optimal import optimal_return
from uvax.errors import InvalidInput
from uvax.evaluation.rollouts import Offers, Returns, greedy_returns, in_chunks, offers, with_every_task, with_tasks
from uvax.evaluation.statistics import t_quantile

PLACES = (*WALLS, "impossible")  # where the door of a task is


class Episodes(NamedTuple):
    """One attempt per board."""

    offers: Offers
    order: Int[Array, "boards tasks"]  # tasks by rising uncertainty, ties in random order
    attempted: Int[Array, " boards"]  # the task played
    place: Int[Array, " boards"]  # where its door is: an index into PLACES
    score: Float[Array, " boards"]  # what the attempt earned, undiscounted


class EveryTask(NamedTuple):
    """One attempt per board, and what every task of the board would have earned under the same luck."""

    episodes: Episodes
    returns: Returns  # [boards, tasks]


def evaluate(
    estimator: Any, state: PyTree, env: GoToDoor, *, key: Array, episodes: int = 1_000, reject: int = 4
) -> dict[str, Float[Array, ""]]:
    """The score during training: task rejection on `episodes` boards, as scalars on the device.

    `return` with its 90% Student-t interval (`return_low`, `return_high`); for each place p of `PLACES` the share
    of attempts `attempt_p`, the mean return of those attempts `return_p` (NaN where there were none) and the mean
    uncertainty at s0 of the tasks there, `uncertainty_p`; and `episodes`. Names are those of `TaskRejection.row`.

    Boards come from the key and the number of episodes alone: give every method, and every evaluation of a run, the
    same key, and they are compared on the same boards. Pure; may be vmapped over states (seeds).
    Cost: value and uncertainty of 6 tasks x boards, then the value of at most 50 states per board, each once.
    """
    check_request(estimator, state, env, episodes=episodes, reject=reject)
    return _evaluate(hashable(estimator), state, env, key=key, episodes=episodes, reject=reject)


@functools.partial(jax.jit, static_argnames=("estimator", "episodes"))
def _evaluate(
    estimator: Any, state: PyTree, env: GoToDoor, *, key: Array, episodes: int, reject: int | Int[Array, ""]
) -> dict[str, Float[Array, ""]]:
    def play(boards: int, key: Array) -> Episodes:
        return _attempts(estimator, state, env, boards, reject, key)

    played = in_chunks(play, episodes, key=key)
    mean = jnp.mean(played.score)
    spread = jnp.std(played.score, ddof=1) if episodes > 1 else jnp.float32(jnp.nan)
    half = (t_quantile(episodes) / math.sqrt(episodes)) * spread
    row = {
        "return": mean,
        "return_low": mean - half,
        "return_high": mean + half,
        "episodes": jnp.float32(episodes),
    }
    for place, name in enumerate(PLACES):
        here = played.place == place
        row[f"attempt_{name}"] = jnp.mean(here.astype(jnp.float32))
        row[f"return_{name}"] = _mean_where(here, played.score)
        row[f"uncertainty_{name}"] = _mean_where(played.offers.wall == place, played.offers.uncertainty)
    return row


@functools.partial(jax.jit, static_argnames=("estimator", "episodes"))
def play_every_task(
    estimator: Any, state: PyTree, env: GoToDoor, *, key: Array, episodes: int, reject: int | Int[Array, ""]
) -> EveryTask:
    """The same attempts as `evaluate` with the same key, and all tasks of each board: four rollouts instead of one.

    Tasks whose door is not on the board are not played: no action earns anything there.
    """

    def play(boards: int, key: Array) -> EveryTask:
        states, offered, order, attempted, luck = _choose(estimator, state, env, boards, reject, key)
        starts = with_tasks(env, states, _possible_tasks(offered.wall).T)
        by_wall = greedy_returns(estimator, state, env, starts, key=luck, gamma=estimator.gamma)
        returns = jax.tree.map(lambda x: _by_task(x.T, offered.wall), by_wall)
        episodes = Episodes(offered, order, attempted, _pick(offered.wall, attempted), _pick(returns.score, attempted))
        return EveryTask(episodes, returns)

    return in_chunks(play, episodes, key=key)


@functools.partial(jax.jit, static_argnames=("gamma", "episodes", "grid"))
def best_returns(env: GoToDoor, *, key: Array, gamma: float, episodes: int, grid: int) -> Float[Array, "boards tasks"]:
    """Expected return of an optimal policy for every task of the boards that this key gives; 0 where impossible.

    `grid` is the largest board that `env` may draw.
    """

    def play(boards: int, key: Array) -> Float[Array, "boards tasks"]:
        states = env.batch_reset(boards, key=_keys(key)[0])
        wall = env.target_wall(with_every_task(env, states)).T
        starts = with_tasks(env, states, _possible_tasks(wall).T)
        best = functools.partial(optimal_return, horizon=env.max_steps, gamma=gamma, grid=grid)
        return _by_task(jax.vmap(jax.vmap(best))(starts).T, wall)

    return in_chunks(play, episodes, key=key)


def rank_tasks(uncertainty: Float[Array, "boards tasks"], *, key: Array) -> Int[Array, "boards tasks"]:
    """Tasks from the least to the most uncertain. Equal ones come in random order, drawn anew for each board, so
    that an estimator without an opinion rejects at random. NaN counts as the most uncertain.
    """
    u = jnp.where(jnp.isnan(uncertainty), jnp.inf, uncertainty).T
    places = jnp.arange(u.shape[0], dtype=jnp.uint32)
    # The task's number in the low byte keeps lots apart, so that ranks are a permutation whatever is drawn.
    lot = (jax.random.bits(key, u.shape, jnp.uint32) & ~jnp.uint32(0xFF)) | places[:, None]
    # A task's rank is the number of tasks before it. For six, counting them costs less than sorting.
    before = (u[None] < u[:, None]) | ((u[None] == u[:, None]) & (lot[None] < lot[:, None]))
    rank = jnp.sum(before.astype(jnp.uint32), axis=1)
    return jnp.argmax(rank[None] == places[:, None, None], axis=1).astype(jnp.int32).T


def _attempts(
    estimator: Any, state: PyTree, env: GoToDoor, boards: int, reject: int | Int[Array, ""], key: Array
) -> Episodes:
    """The protocol: one rollout per board."""
    states, offered, order, attempted, luck = _choose(estimator, state, env, boards, reject, key)
    starts = with_tasks(env, states, attempted[None])
    returns = greedy_returns(estimator, state, env, starts, key=luck, gamma=estimator.gamma)
    return Episodes(offered, order, attempted, _pick(offered.wall, attempted), returns.score[0])


def _choose(
    estimator: Any, state: PyTree, env: GoToDoor, boards: int, reject: int | Int[Array, ""], key: Array
) -> tuple[PyTree, Offers, Array, Array, Array]:
    """Fresh boards, the offers on them, their order, the task attempted, and the key of the episodes' luck."""
    board_key, tie_key, pick_key, luck = _keys(key)
    states = env.batch_reset(boards, key=board_key)
    offered = offers(estimator, state, env, states)
    order = rank_tasks(offered.uncertainty, key=tie_key)
    picked = jax.random.randint(pick_key, (boards,), 0, env.task_dim - reject)
    return states, offered, order, _pick(order, picked), luck


def _keys(key: Array) -> Array:
    return jax.random.split(key, 4)


def _pick(table: Array, column: Int[Array, " boards"]) -> Array:
    return jnp.take_along_axis(table, column[:, None], axis=1)[:, 0]


def _possible_tasks(wall: Int[Array, "boards tasks"]) -> Int[Array, "boards walls"]:
    """The task of each wall's door."""
    here = wall[:, None, :] == jnp.arange(len(WALLS), dtype=wall.dtype)[:, None]
    return jnp.argmax(here, axis=-1).astype(jnp.int32)


def _by_task(by_wall: Float[Array, "boards walls"], wall: Int[Array, "boards tasks"]) -> Array:
    """Numbers per wall as numbers per task, 0 for tasks whose door is on no wall."""
    padded = jnp.concatenate([by_wall, jnp.zeros_like(by_wall[:, :1])], axis=1)
    return jnp.take_along_axis(padded, wall, axis=1)


def _mean_where(mask: Array, x: Float[Array, "..."]) -> Float[Array, ""]:
    count = jnp.sum(mask.astype(x.dtype))
    total = jnp.sum(jnp.where(mask, x, jnp.zeros_like(x)))
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)


def check_request(estimator: Any, state: PyTree, env: Any, *, episodes: Any, reject: Any) -> None:
    """Refuse, with one sentence, what the compiled code could only fail on."""
    if not isinstance(env, GoToDoor):
        raise InvalidInput(f"env must be a uvax.envs.GoToDoor, whose tasks can be rejected, got {type(env).__name__}")
    if np.ndim(env.size):
        raise InvalidInput(f"env must have one size, got {np.size(env.size)} of them; evaluate one at a time")
    if not _is_int(episodes) or episodes < 1:
        raise InvalidInput(f"episodes must be an integer of at least 1, got {episodes!r}")
    if not _is_int(reject) or not 0 <= reject < env.task_dim:
        raise InvalidInput(
            f"reject must be an integer from 0 to {env.task_dim - 1}, so that one of {env.task_dim} tasks is left "
            f"to attempt, got {reject!r}"
        )
    _check_fits(estimator, state, env)


def _check_fits(estimator: Any, state: PyTree, env: GoToDoor) -> None:
    spec = env.spec
    obs = jax.ShapeDtypeStruct((1, *spec.obs.shape), spec.obs.dtype)
    task = jax.ShapeDtypeStruct((1, spec.task_dim), jnp.float32)
    needs = f"{env.name} has observations [{env.obs_dim}], tasks [{spec.task_dim}] and {spec.num_actions} actions"
    for name in ("value", "uncertainty"):
        try:
            shape = jax.eval_shape(getattr(estimator, name), state, obs, task).shape
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"this {type(estimator).__name__} does not fit the environment: {needs}, and its {name} cannot "
                f"take them; train it on data of this environment"
            ) from error
        if shape != (1, spec.num_actions):
            raise InvalidInput(
                f"this {type(estimator).__name__} does not fit the environment: {needs}, and its {name} of one "
                f"observation has shape {shape}, not (1, {spec.num_actions})"
            )


class _ByIdentity:
    """An estimator that cannot be hashed (it holds an array, a dictionary), told apart from others by identity."""

    def __init__(self, estimator: Any):
        self._estimator = estimator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._estimator, name)

    def __hash__(self) -> int:
        return id(self._estimator)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other._estimator is self._estimator


def hashable(estimator: Any) -> Any:
    """The estimator in a form that compiled functions can be looked up by."""
    try:
        hash(estimator)
    except TypeError:
        return _ByIdentity(estimator)
    return estimator


def _is_int(x: Any) -> bool:
    return isinstance(x, numbers.Integral) and not isinstance(x, bool)
