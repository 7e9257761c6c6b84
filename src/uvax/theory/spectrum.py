"""Does exp(-t A) vanish on range(Theta_XX)? Decided as cheaply as possible, and never guessed.

In this order: a Cholesky factorisation of the symmetric part, then of the symmetric part in the inner product of
Theta_XX (each a proof of convergence), the whole spectrum up to `limit` rows, and beyond that shift-invert Arnoldi for
the eigenvalues that would do harm.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from jaxtyping import Complex, Float, Int
from scipy.linalg import blas, lapack

Matrix = Float[np.ndarray, "N N"]
Basis: TypeAlias = np.ndarray | sp.csr_array | None  # [N, R]
Kind = Literal["positive_definite", "stable", "marginal", "divergent", "undecided"]

# All eigenvalues of 2,000 rows take some ten seconds on two cores, and the time grows with the third power.
SPECTRUM_LIMIT = 2_000
_EPS = float(np.finfo(np.float64).eps)
_TILE = 512
SMALL = 64  # rows for which all eigenvalues cost next to nothing
_ARNOLDI_TOL = 1e-8


@dataclass(frozen=True)
class Factor:
    """LU factors of A^T, so that row-major memory goes to LAPACK as it is."""

    lu: Matrix
    pivots: Int[np.ndarray, " N"]
    rcond: float

    def solve(self, rhs: Float[np.ndarray, "N ..."], *, transposed: bool) -> Float[np.ndarray, "N ..."]:
        """A^-T rhs if transposed, else A^-1 rhs."""
        return lapack.dgetrs(self.lu, self.pivots, rhs, trans=0 if transposed else 1)[0]


@dataclass(frozen=True)
class Decision:
    """What is known about A on range(Theta_XX), and what was computed on the way."""

    kind: Kind
    method: Literal["cholesky", "spectrum", "arnoldi", "none"]
    basis: Basis = None  # of range(Theta_XX); None if that is everything
    factor: Factor | None = None  # of A, or of S^T A S with a basis S
    leftmost: complex | None = None

    @property
    def converges(self) -> bool | None:
        """None when undecided. A marginal problem does not converge."""
        return None if self.kind == "undecided" else self.kind in ("positive_definite", "stable")


def factorise(a: Matrix, *, overwrite: bool = False) -> Factor:
    """LU with a condition estimate; a singular matrix is no error but has rcond 0. Costs 2/3 N^3."""
    norm = float(np.abs(a).sum(axis=1).max())
    lu, pivots, info = lapack.dgetrf(a.T, overwrite_a=overwrite)
    rcond = 0.0 if info > 0 else float(lapack.dgecon(lu, norm)[0])
    return Factor(lu, pivots, rcond)


def rounding(a: Matrix) -> float:
    """Size below which an eigenvalue of `a` is rounding."""
    return 10.0 * len(a) * _EPS * float(np.linalg.norm(a))


def is_positive_definite(a: Matrix, *, overwrite: bool = False) -> bool:
    """Whether x^T A x > 0 for all x, with a margin for rounding: a Cholesky of the symmetric part. Costs 1/3 N^3."""
    n = len(a)
    margin = n * _EPS * float(np.abs(np.diagonal(a)).max())
    symmetric = a if overwrite else np.empty((n, n))
    # Tiles: adding a transpose in one go misses the cache on every entry. Only the lower triangle is read.
    for i in range(0, n, _TILE):
        for j in range(0, i + 1, _TILE):
            rows, columns = slice(i, i + _TILE), slice(j, j + _TILE)
            symmetric[rows, columns] = 0.5 * (a[rows, columns] + a[columns, rows].T)
    symmetric[np.diag_indices(n)] -= margin
    # The lower triangle of row-major memory is the upper one of LAPACK's.
    return lapack.dpotrf(symmetric.T, lower=0, clean=0, overwrite_a=1)[1] == 0


def is_contraction(a: Matrix, theta: Matrix, *, overwrite: bool = False) -> bool:
    """Whether Theta A + A^T Theta is positive definite, which proves convergence as well. Costs about 2.7 N^3.

    TD on data whose next points are spread like the points themselves is a contraction in this inner product (as it
    is for linear features), although A alone is rarely definite. With Theta = L L^T the test is on L^T A L^-T, whose
    rounding grows with the root of Theta's condition only. `overwrite` gives both arguments up as work space.
    """
    lower, info = lapack.dpotrf(theta.T, lower=1, clean=0, overwrite_a=overwrite)
    if info != 0:
        return False
    # Row-major memory is A^T in LAPACK's order: L^-1 A^T L = (L^T A L^-T)^T.
    work = blas.dtrsm(1.0, lower, a.T, lower=1, overwrite_b=overwrite)
    work = blas.dtrmm(1.0, lower, work, side=1, lower=1, overwrite_b=1)
    return is_positive_definite(work.T, overwrite=True)


def range_basis(theta: Matrix, *, limit: int = SPECTRUM_LIMIT) -> Float[np.ndarray, "N R"]:
    """An orthonormal basis of range(Theta_XX), eigenvalues within rounding of zero left out."""
    n = len(theta)
    if n <= limit:
        size, axes = scipy.linalg.eigh(theta)
        return axes[:, size > 10.0 * n * _EPS * max(float(size[-1]), 0.0)]
    # A pivoted Cholesky factorisation reveals the rank at a small part of the price of the eigenvectors.
    c, order, rank, _ = lapack.dpstrf(theta, tol=10.0 * n * _EPS * float(np.linalg.norm(theta)), lower=1)
    factor = np.empty((n, rank))
    factor[order - 1] = np.tril(c)[:, :rank]
    return scipy.linalg.qr(factor, mode="economic", overwrite_a=True)[0]


def group_basis(groups: Int[np.ndarray, " N"]) -> sp.csr_array:
    """An orthonormal basis of the functions that agree on equal points; `groups` numbers the distinct ones."""
    counts = np.bincount(groups)
    entries = 1.0 / np.sqrt(counts[groups])
    return sp.csr_array((entries, (np.arange(len(groups)), groups)), shape=(len(groups), len(counts)))


def _subspaces(theta: Matrix, groups: Int[np.ndarray, " N"] | None, whole: bool, limit: int) -> Iterator[Basis]:
    """Where Delta might be invertible, cheapest first: everywhere, on distinct points, on range(Theta_XX)."""
    if whole:
        yield None
        return
    merged = group_basis(groups) if groups is not None and groups.max() + 1 < len(groups) else None
    yield merged
    if merged is None:
        basis = range_basis(theta, limit=limit)
    else:
        basis = merged @ range_basis(merged.T @ theta @ merged, limit=limit)
    if basis.shape[1] < (len(theta) if merged is None else merged.shape[1]):
        yield basis


def restrict(a: Matrix, basis: Basis) -> Float[np.ndarray, "R R"]:
    """S^T A S."""
    return a if basis is None else np.ascontiguousarray(basis.T @ a @ basis)


def decide(
    a: Matrix,
    theta: Matrix,
    *,
    groups: Int[np.ndarray, " N"] | None = None,
    ridge: bool = False,
    check: bool = True,
    limit: int = SPECTRUM_LIMIT,
) -> Decision:
    """Stability of A = Delta (+ ridge I) on range(Theta_XX); with a ridge the whole space counts.

    `groups` numbers equal rows of X, which costs nothing to exploit. Without `check` only an invertible subspace is
    looked for and the kind is "undecided".
    """
    decision = Decision("undecided", "none")
    for basis in _subspaces(theta, groups, ridge, limit):
        small = restrict(a, basis)
        definite = check and is_positive_definite(small)
        factor = None if definite and basis is None else factorise(small)
        if definite:
            return Decision("positive_definite", "cholesky", basis, factor)
        decision = Decision("marginal", "none", basis, factor, 0.0)
        if factor is not None and factor.rcond > 10.0 * len(small) * _EPS:
            break
    else:
        return decision
    if not check:
        return replace(decision, kind="undecided", leftmost=None)
    if len(small) > SMALL and is_contraction(small, restrict(theta, basis)):
        return replace(decision, kind="stable", method="cholesky", leftmost=None)
    if len(small) <= max(limit, SMALL):
        kind, worst = _judge(*eigenvalues_with_errors(small))
        return replace(decision, kind=kind, method="spectrum", leftmost=worst)
    kind, found = _arnoldi_verdict(small, factor)
    return replace(decision, kind=kind, method="arnoldi", leftmost=found)


def eigenvalues_with_errors(a: Matrix) -> tuple[Complex[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """All eigenvalues and a first-order bound of each one's rounding error, |E| / |y^H x|."""
    values, left, right = scipy.linalg.eig(a, left=True, right=True)
    overlap = np.abs(np.einsum("ij,ij->j", left.conj(), right))
    return values, rounding(a) / np.maximum(overlap, _EPS)


def _judge(values: np.ndarray, error: np.ndarray) -> tuple[Kind, complex]:
    worst = int(np.argmin(values.real))
    if (values.real < -error).any():
        return "divergent", complex(values[worst])
    return ("stable" if (values.real > error).all() else "marginal"), complex(values[worst])


def leftmost(a: Matrix, factor: Factor, k: int) -> tuple[Complex[np.ndarray, " K"], Complex[np.ndarray, "N K"], bool]:
    """Up to k eigenvalues closest to zero by shift-invert Arnoldi, eigenvectors, and whether all k converged."""
    inverse = spla.LinearOperator(a.shape, lambda x: factor.solve(x, transposed=False), dtype=np.float64)
    values, vectors, complete = _arnoldi(inverse, min(k, len(a) - 2))
    return 1.0 / values, vectors, complete


def _arnoldi(operator: spla.LinearOperator, k: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """The k eigenvalues of largest modulus."""
    n = operator.shape[0]
    start = np.random.default_rng(0).standard_normal(n)  # fixed: the same answer every time
    try:
        values, vectors = spla.eigs(operator, k, v0=start, ncv=min(n, 4 * k + 20), maxiter=60, tol=_ARNOLDI_TOL)
        return values, vectors, True
    except spla.ArpackNoConvergence as partial:
        return partial.eigenvalues, partial.eigenvectors, False


def _arnoldi_verdict(a: Matrix, factor: Factor) -> tuple[Kind, complex | None]:
    """Look for eigenvalues with negative real part near zero, then with a Cayley transform everywhere else.

    mu = (lambda - eta) / (lambda + eta) maps the left half-plane outside the unit circle, where Arnoldi looks first.
    An eigenvalue found on the left is certain; that none was found is as good as Arnoldi's convergence.
    """
    values, _, complete = leftmost(a, factor, 12)
    reach = float(np.linalg.norm(a))  # no eigenvalue is further from zero
    if complete and np.abs(values).max() < reach:
        eta = float(np.sqrt(np.abs(values).max() * reach))
        shifted = a.copy()
        shifted[np.diag_indices_from(shifted)] += eta
        lu = factorise(shifted, overwrite=True)
        cayley = spla.LinearOperator(
            a.shape, lambda x: x - 2.0 * eta * lu.solve(x, transposed=False).reshape(x.shape), dtype=np.float64
        )
        mu, _, complete = _arnoldi(cayley, 4)
        values = np.concatenate([values, eta * (1.0 + mu) / (1.0 - mu)])
    if len(values) == 0:
        return "undecided", None
    kind, worst = _judge(values, np.maximum(rounding(a), 10.0 * _ARNOLDI_TOL * np.abs(values)))
    return (kind if complete or kind == "divergent" else "undecided"), worst
