"""Estimates with intervals, rank statistics with exact ties. NumPy and scipy.special only, usable alone.

What cannot be had is said, not guessed: an interval that needs more samples than there are has NaN bounds and
a `note` with the reason, so that one empty group (a wall nobody attempted) does not cost the whole report.
Input that is wrong rather than short (NaN among the samples, pairs of unequal length) raises `InvalidInput`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from uvax.errors import InvalidInput

LEVEL = 0.9  # the paper's tables: 90% Student-t intervals
RESAMPLES = 1_000


@dataclass(frozen=True)
class Interval:
    """An estimate, its two-sided confidence interval and the number of samples behind it.

    `low` and `high` are NaN when there are too few samples for an interval; `note` then says why.
    """

    estimate: float
    low: float
    high: float
    n: int
    level: float = LEVEL
    note: str = ""

    @property
    def half_width(self) -> float:
        """The number after "±"."""
        return (self.high - self.low) / 2

    def row(self, name: str) -> dict[str, float | int | None]:
        """`{name, name_low, name_high, name_n}`; JSON has no NaN, so what is missing is None."""
        values = {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}
        return {k: None if math.isnan(v) else v for k, v in values.items()} | {f"{name}_n": self.n}

    def __str__(self) -> str:
        if math.isnan(self.low):
            return "-" if math.isnan(self.estimate) else f"{self.estimate:.3g}"
        return f"{self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}]"


def mean_interval(samples: ArrayLike, *, level: float = LEVEL) -> Interval:
    """Mean with a Student-t interval, `mean ± t_{n-1} s / sqrt(n)`; exact for normal samples.

    One sample has a mean and no interval, no samples have neither (see `Interval.note`).

    >>> print(mean_interval([10.2, 10.6, 10.4]))
    10.4 [10.1, 10.7]
    """
    x = _vector("samples", samples)
    _check_level(level)
    if x.size == 0:
        return _unknown(math.nan, 0, level, "no samples")
    mean = float(x.mean())
    if x.size == 1:
        return _unknown(mean, 1, level, "one sample has no spread: an interval needs two or more")
    half = t_quantile(x.size, level=level) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return Interval(mean, mean - half, mean + half, x.size, level)


def t_quantile(n: int, *, level: float = LEVEL) -> float:
    """How many standard errors the two-sided Student-t interval of `n` samples reaches; NaN for n < 2."""
    return float(special.stdtrit(n - 1, (1 + level) / 2)) if n >= 2 else math.nan


def share_interval(count: int, n: int, *, level: float = LEVEL) -> Interval:
    """`count / n` with Wilson's score interval: unlike Student's, not of width zero when the count is 0 or n.

    >>> print(share_interval(0, 1_000))
    0 [0, 0.0027]
    """
    _check_level(level)
    if not 0 <= count <= n:
        raise InvalidInput(f"count must lie in 0..n, got {count} of {n}")
    if n == 0:
        return _unknown(math.nan, 0, level, "no samples")
    z = float(special.ndtri((1 + level) / 2))
    share, shrink = count / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Rounding may put the bound beside 0 or 1 where it is exactly 0 or 1.
    low = 0.0 if count == 0 else max(0.0, centre - half)
    high = 1.0 if count == n else min(1.0, centre + half)
    return Interval(share, low, high, n, level)


def paired_difference(a: ArrayLike, b: ArrayLike, *, level: float = LEVEL) -> Interval:
    """Mean of `a - b` with a Student-t interval over pairs: the same seeds or boards under two methods.

    Narrower than two separate intervals as far as the pairs share their luck. Zero outside the interval is a
    two-sided paired t-test at 1 - level.
    """
    x, y = _vector("a", a), _vector("b", b)
    _check_same_length("a", x, "b", y)
    return mean_interval(x - y, level=level)


def ratio_interval(part: ArrayLike, whole: ArrayLike, *, level: float = LEVEL) -> Interval:
    """mean(part) / mean(whole) over pairs, with the linearised (delta-method) Student-t interval.

    Meant for a mean of `whole` that is many standard errors away from zero; NaN when it is exactly zero.
    """
    a, b = _vector("part", part), _vector("whole", whole)
    _check_same_length("part", a, "whole", b)
    if b.size == 0 or b.mean() == 0:
        return _unknown(math.nan, b.size, level, "nothing to take a share of: the whole is zero")
    ratio = float(a.mean() / b.mean())
    residual = mean_interval((a - ratio * b) / b.mean(), level=level)
    return Interval(ratio, ratio + residual.low, ratio + residual.high, b.size, level, residual.note)


def iqm(samples: ArrayLike) -> float:
    """Interquartile mean: the mean without the lowest and highest floor(n / 4) samples, as rliable has it."""
    x = _vector("samples", samples)
    if x.size == 0:
        raise InvalidInput("samples must hold at least one number, got none")
    return float(_iqm_rows(x[None])[0])


def iqm_interval(
    strata: ArrayLike | Mapping[str, ArrayLike],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Interquartile mean over all runs of all tasks, with a stratified percentile-bootstrap interval.

    `strata`: scores `[runs]` of one task, an array `[runs, tasks]`, or a mapping task -> scores, in which
    tasks may differ in their number of runs. Runs are resampled within each task, never across, so the
    interval is about other seeds on the same tasks. A task with a single run cannot be resampled: NaN bounds,
    and a note that names it. Scores of different tasks should be on one scale. Cost: resamples x scores.
    """
    _check_level(level)
    groups = _strata(strata)
    pooled = np.concatenate(list(groups.values()))
    estimate = float(_iqm_rows(pooled[None])[0])
    if single := [name for name, x in groups.items() if x.size == 1]:
        note = f"a single run cannot be resampled: {', '.join(single)} needs two or more"
        return _unknown(estimate, pooled.size, level, note)
    rng = np.random.default_rng(seed)
    draws = [x[rng.integers(x.size, size=(resamples, x.size))] for x in groups.values()]
    low, high = _percentiles(_iqm_rows(np.concatenate(draws, axis=1)), level)
    return Interval(estimate, low, high, pooled.size, level)


def area_under_curve(x: ArrayLike, y: ArrayLike) -> Any:
    """Area by the trapezoid rule over the last axis of `y`, divided by the length of the x range.

    The division gives the area the unit of y, the mean height, so that curves over different ranges compare.
    `x` must rise strictly; `y` is `[..., len(x)]`.

    >>> float(area_under_curve([0, 1, 3], [0.0, 2.0, 2.0]))
    1.6666666666666667
    """
    xs, ys = _vector("x", x), np.asarray(y, dtype=np.float64)
    if xs.size < 2 or not np.all(np.diff(xs) > 0):
        raise InvalidInput(f"x must hold two or more strictly rising numbers, got {xs.tolist()}")
    if ys.shape[-1:] != xs.shape:
        raise InvalidInput(f"y must end in an axis as long as x, {xs.size}, got shape {ys.shape}")
    return np.trapezoid(ys, xs, axis=-1) / (xs[-1] - xs[0])


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's on mid-ranks, exact under ties. NaN when x or y is constant."""
    xs, ys = _vector("x", x), _vector("y", y)
    _check_same_length("x", xs, "y", ys)
    return _spearman(_codes(xs), _codes(ys), np.ones(xs.size))


def spearman_interval(
    x: ArrayLike,
    y: ArrayLike,
    *,
    cluster: ArrayLike | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """`spearman` with a percentile-bootstrap interval that resamples whole clusters.

    `cluster [n]`: samples with the same label share their luck (six tasks on one board) and are drawn
    together; None when samples are independent. Cost: one sort, then resamples x n.
    """
    xs, ys = _vector("x", x), _vector("y", y)
    _check_same_length("x", xs, "y", ys)
    cx, cy = _codes(xs), _codes(ys)
    reason = "a rank correlation needs two or more different values on both sides"
    return _cluster_bootstrap(lambda w: _spearman(cx, cy, w), xs.size, cluster, level, resamples, seed, reason)


def auroc(score: ArrayLike, positive: ArrayLike) -> float:
    """P(score of a positive > score of a negative) + P(equal) / 2. NaN when all samples are of one class."""
    xs, labels = _vector("score", score), _labels(positive)
    _check_same_length("score", xs, "positive", labels)
    return _auroc(_codes(xs), labels, np.ones(xs.size))


def auroc_interval(
    score: ArrayLike,
    positive: ArrayLike,
    *,
    cluster: ArrayLike | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """`auroc` with a percentile-bootstrap interval that resamples whole clusters, as `spearman_interval`."""
    xs, labels = _vector("score", score), _labels(positive)
    _check_same_length("score", xs, "positive", labels)
    codes = _codes(xs)
    reason = "an AUROC needs at least one positive and one negative"
    return _cluster_bootstrap(lambda w: _auroc(codes, labels, w), xs.size, cluster, level, resamples, seed, reason)


_Codes = tuple[NDArray[np.intp], int]


def _codes(x: NDArray[np.float64]) -> _Codes:
    """Each sample's index among the sorted distinct values, and their number: one sort for all resamples."""
    values, inverse = np.unique(x, return_inverse=True)
    return inverse, values.size


def _midranks(codes: _Codes, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mid-ranks of the sample in which item i occurs `weights[i]` times."""
    inverse, distinct = codes
    count = np.bincount(inverse, weights, minlength=distinct)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]


# Sums below are np.sum of products, not `@`: BLAS would start threads for them, which wait for each other on a busy
# machine a thousand times per interval.


def _spearman(x: _Codes, y: _Codes, w: NDArray[np.float64]) -> float:
    if (total := np.sum(w)) == 0:
        return math.nan
    dx, dy = _midranks(x, w), _midranks(y, w)
    dx, dy = dx - np.sum(w * dx) / total, dy - np.sum(w * dy) / total
    wx = w * dx
    vx, vy = np.sum(wx * dx), np.sum(w * dy * dy)
    return float(np.sum(wx * dy) / math.sqrt(vx * vy)) if vx > 0 and vy > 0 else math.nan


def _auroc(codes: _Codes, positive: NDArray[np.bool_], w: NDArray[np.float64]) -> float:
    inverse, distinct = codes
    every = np.bincount(inverse, w, minlength=distinct)
    positives = np.bincount(inverse, w * positive, minlength=distinct)
    negatives = every - positives
    n1, n0 = np.sum(positives), np.sum(negatives)
    if n1 == 0 or n0 == 0:
        return math.nan
    below = np.cumsum(negatives) - negatives / 2  # negatives that score lower, and half of those that score the same
    return float(np.sum(positives * below) / (n1 * n0))


def _cluster_bootstrap(
    statistic: Callable[[NDArray[np.float64]], float],
    n: int,
    cluster: ArrayLike | None,
    level: float,
    resamples: int,
    seed: int,
    reason: str,
) -> Interval:
    """Percentile interval of a statistic of multiplicities `[n]`; resamples without an answer are skipped."""
    _check_level(level)
    labels = np.arange(n) if cluster is None else np.asarray(cluster)
    if labels.shape != (n,):
        raise InvalidInput(f"cluster must have one label per sample, {n}, got shape {labels.shape}")
    estimate = statistic(np.ones(n))
    if math.isnan(estimate):
        return _unknown(estimate, n, level, reason)
    names, member = np.unique(labels, return_inverse=True)
    if names.size < 2:
        return _unknown(estimate, n, level, "one cluster cannot be resampled: an interval needs two or more")
    rng = np.random.default_rng(seed)
    values = np.empty(resamples)
    for i in range(resamples):
        times_drawn = np.bincount(rng.integers(names.size, size=names.size), minlength=names.size)
        values[i] = statistic(times_drawn[member].astype(np.float64))
    low, high = _percentiles(values[~np.isnan(values)], level)
    return Interval(estimate, low, high, n, level)


def _iqm_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    cut = rows.shape[-1] // 4
    return np.sort(rows, axis=-1)[:, cut : rows.shape[-1] - cut].mean(axis=-1)


def _percentiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _unknown(estimate: float, n: int, level: float, note: str) -> Interval:
    return Interval(estimate, math.nan, math.nan, n, level, note)


def _strata(strata: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float64]]:
    if isinstance(strata, Mapping):
        groups = {str(name): _vector(f"strata[{name!r}]", x) for name, x in strata.items()}
    else:
        scores = np.asarray(strata, dtype=np.float64)
        if scores.ndim not in (1, 2):
            raise InvalidInput(f"strata must be [runs], [runs, tasks] or a mapping, got shape {scores.shape}")
        columns = scores.reshape(scores.shape[0], -1).T
        groups = {f"task {i}": _vector("strata", column) for i, column in enumerate(columns)}
    if not groups or any(x.size == 0 for x in groups.values()):
        raise InvalidInput("strata must hold at least one score per task, got an empty one")
    return groups


def _vector(name: str, x: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(x, dtype=np.float64)
    if array.ndim != 1:
        raise InvalidInput(f"{name} must be one-dimensional, got shape {array.shape}")
    if not np.isfinite(array).all():
        bad = int(np.count_nonzero(~np.isfinite(array)))
        raise InvalidInput(f"{name} must be finite, got {bad} NaN or infinite of {array.size}; leave them out")
    return array


def _labels(positive: ArrayLike) -> NDArray[np.bool_]:
    labels = np.asarray(positive)
    if labels.dtype != np.bool_ or labels.ndim != 1:
        raise InvalidInput(f"positive must be a boolean vector, got {labels.dtype} of shape {labels.shape}")
    return labels


def _check_same_length(a: str, x: NDArray[Any], b: str, y: NDArray[Any]) -> None:
    if x.size != y.size:
        raise InvalidInput(f"{a} and {b} must have the same length, got {x.size} and {y.size}")


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InvalidInput(f"level must lie between 0 and 1, for example 0.9, got {level}")
