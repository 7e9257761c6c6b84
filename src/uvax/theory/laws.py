"""The distributions the theory speaks of: Gaussians over test points and scaled chi-squares of finite estimators."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.stats
from jaxtyping import Float

from uvax.errors import InvalidInput
from uvax.theory import checks
from uvax.theory.checks import ArrayLike

Seed = int | np.random.Generator


@dataclass(frozen=True)
class Gaussian:
    """N(mean, cov) over a set of test points."""

    mean: Float[np.ndarray, " T"]
    cov: Float[np.ndarray, "T T"]

    @property
    def variance(self) -> Float[np.ndarray, " T"]:
        """The diagonal of `cov`; rounding below zero is cut off."""
        return np.maximum(np.diagonal(self.cov), 0.0)

    def sample(self, n: int, *, seed: Seed) -> Float[np.ndarray, "draws T"]:
        """n independent draws. Costs one symmetric eigendecomposition, since `cov` is often singular.

        >>> Gaussian(np.zeros(2), np.eye(2)).sample(3, seed=0).shape
        (3, 2)
        """
        n = checks.count("n", n, 1)
        rng = np.random.default_rng(seed)
        scale, axes = scipy.linalg.eigh(self.cov)
        root = axes * np.sqrt(np.maximum(scale, 0.0))
        return self.mean + rng.standard_normal((n, len(self.mean))) @ root.T


@dataclass(frozen=True)
class ScaledChiSquare:
    """sigma_Q^2 / M chi^2(M): the law of an estimate of `variance` from M samples (Corollary `thm:disteq`)."""

    variance: Float[np.ndarray, "*points"]
    dof: int

    @property
    def mean(self) -> Float[np.ndarray, "*points"]:
        """sigma_Q^2: the estimators are unbiased."""
        return self.variance

    @property
    def std(self) -> Float[np.ndarray, "*points"]:
        """sigma_Q^2 sqrt(2 / M)."""
        return self.variance * np.sqrt(2.0 / self.dof)

    def quantile(self, q: ArrayLike) -> Float[np.ndarray, "..."]:
        """The value that the estimate stays below with probability q; `q` broadcasts against the points."""
        q = np.asarray(q, dtype=np.float64)
        if not ((q >= 0) & (q <= 1)).all():
            raise InvalidInput(f"q is {q}, expected probabilities between 0 and 1")
        return self.variance / self.dof * scipy.stats.chi2.ppf(q, self.dof)

    def cdf(self, value: ArrayLike) -> Float[np.ndarray, "..."]:
        """P(estimate <= value); uniform on [0, 1] if `value` are such estimates."""
        return scipy.stats.chi2.cdf(self.dof * np.asarray(value) / self.variance, self.dof)

    def sample(self, n: int, *, seed: Seed) -> Float[np.ndarray, "draws ..."]:
        """n draws for every point, independent between points as well."""
        draws = np.random.default_rng(seed).chisquare(self.dof, (checks.count("n", n, 1), *self.variance.shape))
        return self.variance / self.dof * draws


def head_law(variance: ArrayLike, heads: int) -> ScaledChiSquare:
    """Law of UVU's uncertainty with M heads, 1 / (2M) sum eps_i^2 ~ sigma_Q^2 / M chi^2(M) (Corollary `thm:disteq`).

    `variance` is sigma_Q^2, e.g. `td_posterior(...).variance`. Exact at infinite width only: at finite width the heads
    of one trunk are coupled and the estimate comes out higher.

    >>> head_law(np.array([2.0]), heads=128).quantile(0.5).round(3).tolist()
    [1.99]
    """
    return ScaledChiSquare(_variance(variance), checks.count("heads", heads, 1))


def ensemble_law(variance: ArrayLike, members: int) -> ScaledChiSquare:
    """Law of the unbiased sample variance over an ensemble of M + 1 = `members` (Corollary `thm:disteq`)."""
    return ScaledChiSquare(_variance(variance), checks.count("members", members, 2) - 1)


def _variance(value: ArrayLike) -> Float[np.ndarray, "*points"]:
    array = np.asarray(value)
    if array.dtype.kind != "f" or not np.isfinite(array).all() or (array < 0).any():
        raise InvalidInput(f"variance is {value!r}, expected finite floats >= 0")
    return array.astype(np.float64)
