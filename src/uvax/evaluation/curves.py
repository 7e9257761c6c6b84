"""Rejection curves: mean return against the number of tasks rejected."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from uvax.errors import InvalidInput
from uvax.evaluation.statistics import (
    LEVEL,
    Interval,
    area_under_curve,
    mean_interval,
    paired_difference,
    ratio_interval,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class RejectionCurve:
    """Expected return after k = 0..Z-1 of Z tasks are rejected and one of the others is attempted at random.

    Three rankings of the same tasks, boards and returns: the `method`'s uncertainty; `random` rejection, the same
    mean for every k; and an `oracle` that rejects the tasks with the lowest returns. The oracle looks at the very
    returns it is scored by, luck included, so no method can pass it on any board, and none will quite reach it.

    `area` is the area under the method's curve divided by Z - 1: the mean return along it. It grows with the policy
    as well as with the ranking; `gain` is the ranking alone, (area - random) / (oracle - random): 0 for random
    rejection and 1 for the oracle's.
    """

    method: tuple[Interval, ...]
    random: tuple[Interval, ...]
    oracle: tuple[Interval, ...]
    area: Interval
    area_random: Interval
    area_oracle: Interval
    area_over_random: Interval  # paired by board, so narrower than the difference of two intervals
    gain: Interval

    def row(self) -> dict[str, float | int | None]:
        """`curve_method_0`, ..., `curve_oracle_5`, `area`, `area_random`, ..., `gain`, each with its interval."""
        row: dict[str, float | int | None] = {}
        for name in ("method", "random", "oracle"):
            for k, point in enumerate(getattr(self, name)):
                row |= point.row(f"curve_{name}_{k}")
        for name in ("area", "area_random", "area_oracle", "area_over_random", "gain"):
            row |= getattr(self, name).row(name)
        return row

    def table(self) -> "Table":
        """The curve for the terminal."""
        from rich.table import Table

        table = Table(title=f"rejection curve, {self.gain.estimate:.0%} of the oracle's gain over random rejection")
        for name in ("rejected", "method", "random", "oracle"):
            table.add_column(name, justify="right")
        for k, points in enumerate(zip(self.method, self.random, self.oracle, strict=True)):
            table.add_row(str(k), *(str(point) for point in points))
        table.add_section()
        table.add_row("area", str(self.area), str(self.area_random), str(self.area_oracle))
        return table


def rejection_curve(
    returns: ArrayLike,
    order: ArrayLike,
    *,
    level: float = LEVEL,
) -> RejectionCurve:
    """The curves from `returns [boards, tasks]` and `order [boards, tasks]`, tasks by rising uncertainty.

    The choice among the tasks that are left is averaged over, not drawn: the point at k is the mean over boards of
    the mean return of the Z - k tasks kept. Intervals are Student's over boards.

    >>> curve = rejection_curve(np.array([[0.0, 8.0], [10.0, 0.0]]), np.array([[1, 0], [1, 0]]))
    >>> [p.estimate for p in curve.method], [p.estimate for p in curve.oracle]
    ([4.5, 4.0], [4.5, 9.0])
    """
    earned = np.asarray(returns, np.float64)
    ranked = np.asarray(order)
    if earned.ndim != 2 or earned.shape[0] < 1 or earned.shape[1] < 2:
        raise InvalidInput(f"returns must be [boards, tasks] with two tasks or more, got shape {earned.shape}")
    if ranked.shape != earned.shape or not np.array_equal(
        np.sort(ranked, axis=1), np.broadcast_to(np.arange(earned.shape[1]), earned.shape)
    ):
        raise InvalidInput(f"order must list each board's {earned.shape[1]} tasks once, as argsort does")

    method = _kept_means(np.take_along_axis(earned, ranked, axis=1))
    oracle = _kept_means(-np.sort(-earned, axis=1))
    random = np.repeat(earned.mean(axis=1, keepdims=True), earned.shape[1], axis=1)
    rejected = range(earned.shape[1])
    areas = {
        name: area_under_curve(rejected, curve)
        for name, curve in (("method", method), ("random", random), ("oracle", oracle))
    }

    def points(curve: np.ndarray) -> tuple[Interval, ...]:
        return tuple(mean_interval(column, level=level) for column in curve.T)

    return RejectionCurve(
        method=points(method),
        random=points(random),
        oracle=points(oracle),
        area=mean_interval(areas["method"], level=level),
        area_random=mean_interval(areas["random"], level=level),
        area_oracle=mean_interval(areas["oracle"], level=level),
        area_over_random=paired_difference(areas["method"], areas["random"], level=level),
        gain=ratio_interval(areas["method"] - areas["random"], areas["oracle"] - areas["random"], level=level),
    )


def _kept_means(ranked: Float[np.ndarray, "boards tasks"]) -> Float[np.ndarray, "boards tasks"]:
    """Column k: the mean over all but the last k tasks."""
    return (np.cumsum(ranked, axis=1) / np.arange(1, ranked.shape[1] + 1))[:, ::-1]
