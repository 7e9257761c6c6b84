"""Does the uncertainty say where the value is wrong, and which tasks will fail?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from uvax.errors import InvalidInput
from uvax.evaluation.statistics import (
    LEVEL,
    Interval,
    auroc_interval,
    mean_interval,
    spearman_interval,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class CalibrationGroup:
    """Calibration over one group of tasks. Intervals resample boards, since a board's tasks share their luck."""

    rank_correlation: Interval  # Spearman's, of the uncertainty with |Q(s0, a0, z) - return|
    failure_auroc: Interval  # of the uncertainty as a score for "this task will fail"
    failures: Interval  # share of tasks that failed
    value_error: Interval  # mean |Q(s0, a0, z) - return|
    value_bias: Interval  # mean Q(s0, a0, z) - return


@dataclass(frozen=True)
class Calibration:
    """Calibration over all tasks, and over those whose door is on the board.

    Ranking impossible tasks above possible ones is the easy part for some methods and the hard part for others, so
    the two are told apart.
    """

    every: CalibrationGroup
    possible: CalibrationGroup

    def row(self) -> dict[str, float | int | None]:
        """`rank_correlation_every`, `failure_auroc_possible`, ..., each with its interval."""
        row: dict[str, float | int | None] = {}
        for group in ("every", "possible"):
            for name in _LABELS:
                row |= getattr(getattr(self, group), name).row(f"{name}_{group}")
        return row

    def table(self) -> "Table":
        """The numbers for the terminal."""
        from rich.table import Table

        table = Table(title="calibration at s0, returns discounted")
        for name in ("", "all tasks", "possible tasks"):
            table.add_column(name, justify="right" if name else "left")
        for name, label in _LABELS.items():
            table.add_row(label, str(getattr(self.every, name)), str(getattr(self.possible, name)))
        return table


_RESAMPLES = 400  # half a second for 5,000 boards; the ends of a 90% interval are then off by 3% of its width
_LABELS = {
    "rank_correlation": "rank correlation with |Q - return|",
    "failure_auroc": "AUROC for failure",
    "failures": "share of tasks failed",
    "value_error": "mean |Q - return|",
    "value_bias": "mean Q - return",
}


def calibration(
    value: ArrayLike,
    uncertainty: ArrayLike,
    returns: ArrayLike,
    best: ArrayLike,
    *,
    level: float = LEVEL,
) -> Calibration:
    """Uncertainty against the actual error of the value, from one greedy episode per task.

    All are `[boards, tasks]`: `value` and `uncertainty` at (s0, a0, z); `returns`, the discounted Monte-Carlo returns
    of the greedy policy; `best`, the expected discounted return of an optimal policy from the same start
    (`uvax.envs.optimal`), 0 for impossible tasks. A task **fails** when its return is below half of `best`; an
    impossible task always does.

    Two things hold the rank correlation below 1 for any method: a single episode's return is its expectation plus
    luck, and it is cut after `max_steps` (see `rollouts.greedy_returns`: at most 0.015 of a value of 3). Compare
    methods with each other, not with 1. A value or uncertainty that is not finite leaves its group without answers.
    """
    arrays = [np.asarray(x, np.float64) for x in (value, uncertainty, returns, best)]
    if any(x.ndim != 2 or x.shape != arrays[0].shape for x in arrays):
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise InvalidInput(f"value, uncertainty, returns and best must all be [boards, tasks], got {shapes}")
    possible = arrays[3] > 0
    return Calibration(
        every=_group(*arrays, mask=np.ones_like(possible), level=level),
        possible=_group(*arrays, mask=possible, level=level),
    )


def _group(
    value: Float[np.ndarray, "boards tasks"],
    uncertainty: Float[np.ndarray, "boards tasks"],
    returns: Float[np.ndarray, "boards tasks"],
    best: Float[np.ndarray, "boards tasks"],
    *,
    mask: Bool[np.ndarray, "boards tasks"],
    level: float,
) -> CalibrationGroup:
    if not (np.isfinite(value[mask]).all() and np.isfinite(uncertainty[mask]).all()):
        none = Interval(np.nan, np.nan, np.nan, 0, level, "values or uncertainties are not finite")
        return CalibrationGroup(none, none, none, none, none)
    board = np.broadcast_to(np.arange(mask.shape[0])[:, None], mask.shape)[mask]
    bias = value - returns
    failed = (returns < best / 2) | (best == 0)

    def by_board(x: np.ndarray) -> Interval:
        """Mean over tasks with an interval over boards, which are independent where tasks are not."""
        tasks = mask.sum(axis=1)
        means = np.where(mask, x, 0.0).sum(axis=1)[tasks > 0] / tasks[tasks > 0]
        return mean_interval(means, level=level)

    bootstrap: dict[str, Any] = {"cluster": board, "level": level, "resamples": _RESAMPLES}
    return CalibrationGroup(
        rank_correlation=spearman_interval(uncertainty[mask], np.abs(bias)[mask], **bootstrap),
        failure_auroc=auroc_interval(uncertainty[mask], failed[mask], **bootstrap),
        failures=by_board(failed),
        value_error=by_board(np.abs(bias)),
        value_bias=by_board(bias),
    )
