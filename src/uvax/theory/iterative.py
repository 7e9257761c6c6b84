"""The TD posterior of more transitions than a direct solve has memory for: lineax GMRES on one N x N matrix.

Only Delta is kept. It is preconditioned by its Nystroem approximation from landmark columns,
mu I + Delta_J Theta_JJ^-1 Theta_JX, and the NNGP kernel is recomputed strip by strip for the covariance.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from uvax.errors import Diverged
from uvax.theory import spectrum
from uvax.theory.blocks import LANDMARKS, RESTART, STRIP, bootstrap_transposed, equal_rows, evaluate
from uvax.theory.checks import Weights
from uvax.theory.kernels import Kernel

# Relative residual of every solve; means and covariances then agree with the direct path to TOLERANCE (relative to
# their largest entry), unless Delta is worse conditioned than that leaves room for.
RESIDUAL = 1e-9
TOLERANCE = 1e-6


def _strips(n: int) -> list[slice]:
    return [slice(start, min(start + STRIP, n)) for start in range(0, n, STRIP)]


def ntk_in_strips(kernel: Kernel, x: np.ndarray) -> Float[np.ndarray, "N N"]:
    """Theta_XX, its NNGP companion thrown away strip by strip."""
    theta = _aligned(len(x))
    for rows in _strips(len(x)):
        theta[rows] = evaluate(kernel, "xx", x[rows], x)[1]
    return theta


def td_matrix_in_strips(
    kernel: Kernel, x: np.ndarray, y: np.ndarray, p: Weights, gamma: float, ridge: float
) -> Float[np.ndarray, "N N"]:
    """Delta + ridge I, never holding another N x N array."""
    n = len(x)
    delta = ntk_in_strips(kernel, x)
    if gamma > 0:
        for rows in _strips(len(y)):
            theta = evaluate(kernel, "yx", y[rows], x)[1]
            if p is None:
                delta[rows] -= gamma * theta
                continue
            used = p[:, rows]
            for target in _strips(n):
                delta[target] -= gamma * (used[target] @ theta)
    delta[np.diag_indices(n)] += ridge
    return delta


def _aligned(n: int) -> Float[np.ndarray, "N N"]:
    """An N x N array on a 64-byte boundary, which jax on the CPU uses in place instead of copying it."""
    raw = np.empty(n * n + 8)
    offset = (-raw.ctypes.data // 8) % 8
    return raw[offset : offset + n * n].reshape(n, n)


def in_place(array: Float[np.ndarray, "N N"]) -> Any:
    """The array as jax sees it: its own memory on the CPU if `_aligned` made it, where `jnp.asarray` would copy."""
    import jax

    return jax.device_put(array, may_alias=True)


def certify(delta: Float[np.ndarray, "N N"], kernel: Kernel, x: np.ndarray, ridge: float) -> spectrum.Decision:
    """Converges if a Cholesky proves it (see `spectrum`), else undecided. Gives `delta` up unless it is definite."""
    groups = equal_rows(x)
    basis = spectrum.group_basis(groups) if ridge == 0.0 and groups.max() + 1 < len(x) else None
    small = spectrum.restrict(delta, basis)
    if spectrum.is_positive_definite(small):
        return spectrum.Decision("positive_definite", "cholesky", basis)
    distinct = x if basis is None else x[np.unique(groups, return_index=True)[1]]
    theta = ntk_in_strips(kernel, distinct)
    if basis is not None:
        counts = np.sqrt(np.bincount(groups))
        theta *= np.outer(counts, counts)
    proved = spectrum.is_contraction(small, theta, overwrite=True)
    return spectrum.Decision("stable" if proved else "undecided", "cholesky", basis)


def limit_gain(
    kernel: Kernel,
    x: np.ndarray,
    theta_tx: Float[np.ndarray, "T N"],
    delta: Float[np.ndarray, "N N"],
    ridge: float,
) -> Float[np.ndarray, "T N"]:
    """B = Theta_TX Delta^-1 by GMRES on Delta^T Z = Theta_XT, all test points at once.

    Theta_XT and all Krylov vectors lie in range(Theta_XX), so a singular Delta gets the limit on that range as well.
    """
    import jax
    import jax.numpy as jnp

    mu, columns, landmarks, inner = _nystroem(kernel, x, delta, ridge)
    lu, pivots = scipy.linalg.lu_factor(inner, overwrite_a=True)
    scale = float(np.abs(theta_tx).max()) or 1.0
    # Scaled to a diagonal of one, so that one tolerance serves solutions and residuals alike.
    diagonal = float(np.mean(np.diagonal(delta)))
    with jax.enable_x64(True):
        inputs = (columns, landmarks, lu, pivots, diagonal, mu, theta_tx / (scale * diagonal))
        gain = np.asarray(_gmres()(in_place(delta), *(jnp.asarray(a) for a in inputs))) * scale
    residual = np.linalg.norm(gain @ delta - theta_tx, axis=1).max() / np.linalg.norm(theta_tx, axis=1).max()
    if not residual <= RESIDUAL:
        raise Diverged(
            f"GMRES stopped at a relative residual of {residual:.1e}, above {RESIDUAL:.0e}: Delta is too badly "
            "conditioned; pass ridge > 0, or a memory_limit that allows the direct solve"
        )
    return gain


@functools.cache
def _gmres() -> Callable[..., Any]:
    """The compiled solve, made when first needed so that importing this module imports no jax."""
    import jax
    import lineax as lx  # type: ignore[import-untyped]  # it ships no types

    solver = lx.GMRES(rtol=0.1 * RESIDUAL, atol=0.1 * RESIDUAL, restart=RESTART, max_steps=50, stagnation_iters=5)

    @jax.jit
    def solve(delta: Any, columns: Any, landmarks: Any, lu: Any, pivots: Any, diagonal: Any, mu: Any, rhs: Any) -> Any:
        def precondition(v: Any) -> Any:
            low_rank = jax.scipy.linalg.lu_solve((lu, pivots), v @ columns, trans=1) @ landmarks
            return (v - low_rank) * (diagonal / mu)

        structure = jax.ShapeDtypeStruct(rhs.shape[1:], rhs.dtype)
        operator = lx.FunctionLinearOperator(lambda v: (v @ delta) / diagonal, structure)
        options = {"preconditioner": lx.FunctionLinearOperator(precondition, structure)}
        return jax.vmap(lambda b: lx.linear_solve(operator, b, solver, options=options, throw=False).value)(rhs)

    return solve


def _nystroem(
    kernel: Kernel, x: np.ndarray, delta: np.ndarray, ridge: float
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """mu, Delta_J, Theta_JX and mu Theta_JJ + Theta_JX Delta_J for random landmarks J among the distinct points."""
    distinct = np.unique(x, axis=0, return_index=True)[1]
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(distinct, size=min(LANDMARKS, len(distinct)), replace=False))
    columns = delta[:, chosen].copy()
    columns[chosen, np.arange(len(chosen))] -= ridge
    theta_jx = np.concatenate([evaluate(kernel, "xx", x[chosen[s]], x)[1] for s in _strips(len(chosen))])
    theta_jj = theta_jx[:, chosen].copy()
    jitter = 1e-10 * float(np.trace(theta_jj)) / len(chosen)
    factor = scipy.linalg.cholesky(theta_jj + jitter * np.eye(len(chosen)), lower=True)
    explained = np.square(scipy.linalg.solve_triangular(factor, theta_jx, lower=True)).sum()
    total = sum(float(np.trace(evaluate(kernel, "xx", x[s], x[s])[1])) for s in _strips(len(x)))
    # What the landmarks leave unexplained, per point; never so little that the preconditioner itself is singular.
    mu = max((total - explained) / len(x), 1e-6 * total / len(x)) + ridge
    return mu, columns, theta_jx, mu * theta_jj + theta_jx @ columns


def covariance_in_strips(
    kernel: Kernel, x: np.ndarray, y: np.ndarray, p: Weights, gamma: float, test: np.ndarray, gain: np.ndarray
) -> Float[np.ndarray, "T T"]:
    """Cov of Theorem `thm:wide_nns_td` for a given B, the NNGP kernel evaluated in strips of 256 points."""
    wx = gain.T
    cross = evaluate(kernel, "tx", test, x)[0] @ wx
    cov = evaluate(kernel, "tt", test, test)[0]
    for rows in _strips(len(x)):
        cov = cov + wx[rows].T @ (evaluate(kernel, "xx", x[rows], x)[0] @ wx)
    if gamma > 0:
        wy = -gamma * bootstrap_transposed(p, wx)
        cross += evaluate(kernel, "ty", test, y)[0] @ wy
        for rows in _strips(len(y)):
            mixed = wy[rows].T @ (evaluate(kernel, "yx", y[rows], x)[0] @ wx)
            cov = cov + mixed + mixed.T + wy[rows].T @ (evaluate(kernel, "yy", y[rows], y)[0] @ wy)
    cov = cov - cross - cross.T
    return 0.5 * (cov + cov.T)
