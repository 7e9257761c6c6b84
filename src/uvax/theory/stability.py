"""Does semi-gradient TD converge on these data, how fast, and what helps if not?"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse.linalg as spla
from jaxtyping import Complex

from uvax.errors import InvalidInput
from uvax.theory import checks, remedies, spectrum
from uvax.theory.blocks import equal_rows, td_matrix
from uvax.theory.checks import ArrayLike
from uvax.theory.kernels import Kernel

Kind = Literal[
    "converges",  # Delta is positive definite
    "converges_not_definite",  # all eigenvalues on the right, the symmetric part indefinite
    "converges_singular",  # as either of these on range(Theta_XX), which duplicates make smaller than the data
    "marginal",  # an eigenvalue on the imaginary axis, within rounding
    "diverges",
    "diverges_at_rate",  # gradient flow converges, gradient descent with this learning rate does not
    "undecided",
]


@dataclass(frozen=True)
class Stability:
    """Spectrum of Delta = Theta_XX - gamma P Theta_YX (plus ridge I) and what follows for TD.

    TD errors follow d/dt delta = -Delta delta: they vanish if and only if all `reduced_eigenvalues` have positive real
    part. `symmetric_min` > 0 (positive definiteness, the paper's condition) is sufficient only.
    """

    kind: Kind
    status: str  # the verdict in a sentence
    advice: tuple[str, ...]  # what helps, each tried on these data; empty if nothing has to
    converges: bool | None  # None: undecided
    eigenvalues: Complex[np.ndarray, " K"]  # of Delta, sorted by real part; the smallest ones only if not `complete`
    reduced_eigenvalues: Complex[np.ndarray, " R"]  # of Delta on range(Theta_XX)
    complete: bool
    symmetric_min: float  # smallest eigenvalue of (Delta + Delta^T) / 2
    reduced_symmetric_min: float
    gershgorin: tuple[float, float]  # bounds on the real parts from diagonal and row sums
    condition: float  # of Delta on range(Theta_XX), 1-norm estimate
    rank: int  # of Theta_XX as far as it had to be known
    duplicates: int  # rows of X that repeat an earlier row
    max_learning_rate: float  # gradient descent on the summed loss converges below it; nan if unknown
    modes: Complex[np.ndarray, "N J"]  # TD-error patterns of the slowest or unstable eigenvalues, unit norm
    method: Literal["cholesky", "spectrum", "arnoldi", "none"]

    @property
    def rate(self) -> float:
        """Real part of the leftmost known eigenvalue on range(Theta_XX): errors decay at least like exp(-rate t)."""
        return float(self.reduced_eigenvalues.real.min()) if len(self.reduced_eigenvalues) else math.nan

    def __str__(self) -> str:
        return " ".join((self.status, *self.advice))


def stability(
    kernel: Kernel,
    X: ArrayLike,
    Y: ArrayLike,
    P: Any,
    gamma: float,
    *,
    ridge: float = 0.0,
    learning_rate: float | None = None,
    modes: int = 5,
    spectrum_limit: int = spectrum.SPECTRUM_LIMIT,
) -> Stability:
    """Convergence of TD by gradient flow, or by gradient descent with `learning_rate`, on transitions X -> P Y.

    Arguments as in `td_posterior`; `kernel` may return (None, ntk). Full spectrum up to `spectrum_limit` rows (some ten
    seconds at 2,000 on two cores), beyond that the eigenvalues closest to zero. Memory is about eight N x N arrays.

    Example:
        >>> kernel = lambda a, b: (None, a @ b.T)
        >>> stability(kernel, np.array([[1.0]]), np.array([[2.0]]), None, 0.9).converges
        False
    """
    x = checks.points("X", X)
    y = checks.points("Y", Y, like=("X", x))
    p = checks.weights(P, len(x), len(y))
    gamma = checks.discount(gamma)
    ridge = checks.at_least("ridge", ridge, 0.0)
    if learning_rate is not None:
        learning_rate = checks.at_least("learning_rate", learning_rate, 0.0, strict=True)
    modes = checks.count("modes", modes, 0)
    spectrum_limit = checks.count("spectrum_limit", spectrum_limit, 0)

    theta_xx, theta_yx = _ntk(kernel, "xx", x, x), _ntk(kernel, "yx", y, x)
    delta = td_matrix(theta_xx, theta_yx, p, gamma, ridge)
    groups = equal_rows(x)
    decision = spectrum.decide(delta, theta_xx, groups=groups, ridge=ridge > 0, limit=spectrum_limit)
    small = spectrum.restrict(delta, decision.basis)
    factor = decision.factor or spectrum.factorise(small)

    reduced, vectors, complete = _spectrum(small, factor, modes, spectrum_limit)
    full = reduced if decision.basis is None else _spectrum(delta, None, 0, spectrum_limit)[0]
    reduced_min = _symmetric_min(small)
    rate = _max_learning_rate(reduced) if complete and decision.converges else math.nan
    kind = _kind(decision, decision.basis is not None, learning_rate, rate)
    advice: tuple[str, ...] = ()
    if kind in ("marginal", "diverges", "undecided"):
        advice = remedies.advice(kernel, y, theta_xx, theta_yx, p, gamma, groups, reduced, spectrum_limit)
    elif kind == "diverges_at_rate":
        advice = (f"A learning rate below {rate:.3g} converges.",)
    duplicates = len(x) - int(groups.max()) - 1
    return Stability(
        kind=kind,
        status=_sentence(kind, decision, reduced, reduced_min, len(x), len(small), duplicates, learning_rate),
        advice=advice,
        converges=False if kind == "diverges_at_rate" else decision.converges,
        eigenvalues=full,
        reduced_eigenvalues=reduced,
        complete=complete,
        symmetric_min=reduced_min if decision.basis is None else _symmetric_min(delta),
        reduced_symmetric_min=reduced_min,
        gershgorin=_gershgorin(delta),
        condition=1.0 / factor.rcond if factor.rcond > 0 else math.inf,
        rank=len(small),
        duplicates=duplicates,
        max_learning_rate=rate,
        modes=vectors if decision.basis is None else decision.basis @ vectors,
        method=decision.method,
    )


def _ntk(kernel: Kernel, name: str, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
    pair = kernel(x1, x2)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidInput(f"kernel returned {type(pair).__name__}, expected the pair (nngp, ntk)")
    return checks.kernel_block(f"theta_{name}", pair[1], (len(x1), len(x2)))


def _spectrum(
    a: np.ndarray, factor: spectrum.Factor | None, modes: int, limit: int
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Eigenvalues sorted by real part, right eigenvectors of the first `modes`, and whether these are all."""
    n = len(a)
    if n <= max(limit, spectrum.SMALL):
        values, vectors = scipy.linalg.eig(a)
        order = np.lexsort((values.imag, values.real))
        return values[order], vectors[:, order[:modes]].astype(complex), True
    factor = factor or spectrum.factorise(a)
    if factor.rcond == 0.0:
        return np.empty(0, complex), np.empty((n, 0), complex), False
    values, vectors, _ = spectrum.leftmost(a, factor, max(12, modes))
    order = np.lexsort((values.imag, values.real))
    return values[order], vectors[:, order[:modes]], False


def _symmetric_min(a: np.ndarray) -> float:
    symmetric = 0.5 * (a + a.T)
    if len(a) <= 1_000:
        return float(scipy.linalg.eigvalsh(symmetric, subset_by_index=[0, 0])[0])
    start = np.random.default_rng(0).standard_normal(len(a))
    # The Lanczos value approaches the eigenvalue from above; 1e-6 of the largest one is enough for a report.
    return float(spla.eigsh(symmetric, 1, which="SA", v0=start, tol=1e-6, return_eigenvectors=False)[0])


def _gershgorin(a: np.ndarray) -> tuple[float, float]:
    """min_i a_ii - R_i and max_i a_ii + R_i, R_i the absolute row sum off the diagonal."""
    diagonal = np.diagonal(a)
    radius = np.abs(a).sum(axis=1) - np.abs(diagonal)
    return float((diagonal - radius).min()), float((diagonal + radius).max())


def _max_learning_rate(eigenvalues: np.ndarray) -> float:
    """|1 - lr lambda| < 1 for all lambda if and only if lr < 2 Re(lambda) / |lambda|^2."""
    return float((2.0 * eigenvalues.real / np.abs(eigenvalues) ** 2).min())


def _kind(decision: spectrum.Decision, reduced: bool, learning_rate: float | None, max_rate: float) -> Kind:
    if decision.kind in ("marginal", "undecided"):
        return decision.kind
    if decision.kind == "divergent":
        return "diverges"
    if learning_rate is not None:
        if math.isnan(max_rate):
            return "undecided"
        if learning_rate >= max_rate:
            return "diverges_at_rate"
    if reduced:
        return "converges_singular"
    return "converges" if decision.kind == "positive_definite" else "converges_not_definite"


def _sentence(
    kind: Kind,
    decision: spectrum.Decision,
    eigenvalues: np.ndarray,
    symmetric_min: float,
    n: int,
    rank: int,
    duplicates: int,
    learning_rate: float | None,
) -> str:
    slowest = f"{eigenvalues.real.min():.3g}" if len(eigenvalues) else "unknown"
    pace = f"the slowest error decays like exp(-{slowest} t)"
    if kind == "converges":
        return f"TD converges: Delta is positive definite and {pace}."
    if kind == "converges_not_definite":
        return (
            f"TD converges although Delta is not positive definite (symmetric part down to {symmetric_min:.3g}): "
            f"{pace}, after errors may have grown at first."
        )
    if kind == "converges_singular":
        repeated = "1 duplicate point" if duplicates == 1 else f"{duplicates} duplicate points"
        cause = repeated if duplicates else "points that the kernel cannot tell apart"
        return (
            f"TD converges, although Delta is singular through {cause} ({n} transitions, rank {rank}): on the range of "
            f"Theta_XX {pace}, and repeated transitions are averaged."
        )
    if kind == "marginal":
        found = f"{decision.leftmost:.3g}" if decision.leftmost is not None else "0"
        return (
            f"TD is marginal: an eigenvalue of Delta ({found}) lies on the imaginary axis within rounding, "
            "so some errors do not vanish."
        )
    if kind == "diverges":
        worst = decision.leftmost if decision.leftmost is not None else complex(eigenvalues[0])
        return f"TD diverges: errors grow at least like exp({-worst.real:.3g} t) (eigenvalue {worst:.3g} of Delta)."
    if kind == "diverges_at_rate":
        return (
            f"TD by gradient descent diverges at learning rate {learning_rate:.3g}, although gradient flow converges."
        )
    return (
        f"Undecided: Delta is not positive definite, and of its {n} eigenvalues only {len(eigenvalues)} near zero are "
        f"known (leftmost real part {slowest}); raise spectrum_limit to compute all."
    )
