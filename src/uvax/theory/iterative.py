"""The TD posterior of more transitions than a direct solve has memory for: lineax GMRES on one N x N matrix.

Only Delta is kept. It is preconditioned by its Nystroem approximation from landmark columns,
mu I + Delta_J Theta_JJ^-1 Theta_JX, and the NNGP kernel is recomputed strip by strip for the covariance.
"""

import numpy as np
import scipy.linalg
from jaxtyping import Float

from uvax.errors import Diverged
from uvax.theory import spectrum
from uvax.theory.blocks import bootstrap_transposed, equal_rows, evaluate
from uvax.theory.checks import Weights
from uvax.theory.kernels import Kernel

LANDMARKS = 1_000
RESTART = 40
STRIP = 256
# Relative residual of every solve; means and covariances then agree with the direct path to TOLERANCE (relative to
# their largest entry), unless Delta is worse conditioned than that leaves room for.
RESIDUAL = 1e-9
TOLERANCE = 1e-6


def _strips(n: int) -> list[slice]:
    return [slice(start, min(start + STRIP, n)) for start in range(0, n, STRIP)]


def td_matrix_in_strips(
    kernel: Kernel, x: np.ndarray, y: np.ndarray, p: Weights, gamma: float, ridge: float
) -> Float[np.ndarray, "N N"]:
    """Delta + ridge I, never holding another N x N array."""
    n = len(x)
    delta = _aligned(n)
    for rows in _strips(n):
        delta[rows] = evaluate(kernel, "xx", x[rows], x)[1]
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


def certify(delta: Float[np.ndarray, "N N"], x: np.ndarray, ridge: float) -> spectrum.Decision:
    """Converges if the symmetric part is positive definite (on distinct points); undecided otherwise."""
    groups = equal_rows(x)
    basis = spectrum.group_basis(groups) if ridge == 0.0 and groups.max() + 1 < len(x) else None
    if spectrum.is_positive_definite(spectrum.restrict(delta, basis)):
        return spectrum.Decision("positive_definite", "cholesky", basis)
    return spectrum.Decision("undecided", "cholesky", basis)


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
    import lineax as lx  # type: ignore[import-untyped]  # it ships no types

    mu, columns, landmarks, inner = _nystroem(kernel, x, delta, ridge)
    lu, pivots = scipy.linalg.lu_factor(inner, overwrite_a=True)
    scale = float(np.abs(theta_tx).max()) or 1.0
    diagonal = float(np.mean(np.diagonal(delta)))

    def solve(delta, columns, landmarks, lu, pivots, rhs):
        def precondition(v):
            low_rank = jax.scipy.linalg.lu_solve((lu, pivots), v @ columns, trans=1) @ landmarks
            return (v - low_rank) * (diagonal / mu)

        structure = jax.ShapeDtypeStruct(rhs.shape[1:], rhs.dtype)
        operator = lx.FunctionLinearOperator(lambda v: (v @ delta) / diagonal, structure)
        options = {"preconditioner": lx.FunctionLinearOperator(precondition, structure)}
        solver = lx.GMRES(rtol=0.1 * RESIDUAL, atol=0.1 * RESIDUAL, restart=RESTART, max_steps=50, stagnation_iters=5)

        def one(b):
            return lx.linear_solve(operator, b, solver, options=options, throw=False).value

        return jax.vmap(one)(rhs)

    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in (delta, columns, landmarks, lu, pivots, theta_tx / (scale * diagonal))]
        gain = np.asarray(jax.jit(solve)(*arrays)) * scale
    residual = np.linalg.norm(gain @ delta - theta_tx, axis=1).max() / np.linalg.norm(theta_tx, axis=1).max()
    if not residual <= RESIDUAL:
        raise Diverged(
            f"GMRES stopped at a relative residual of {residual:.1e}, above {RESIDUAL:.0e}: Delta is too badly "
            "conditioned; pass ridge > 0, or a memory_limit that allows the direct solve"
        )
    return gain


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
