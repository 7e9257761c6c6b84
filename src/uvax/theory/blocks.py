"""Kernel blocks over the training points X, the next points Y and the test points T, and what they cost in memory."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from uvax.errors import InvalidInput
from uvax.theory import checks
from uvax.theory.checks import Weights
from uvax.theory.kernels import Kernel
from uvax.theory.spectrum import SPECTRUM_LIMIT

# Of the iterative path: columns of the preconditioner, Krylov vectors between restarts, rows per kernel evaluation.
LANDMARKS = 1_000
RESTART = 40
STRIP = 256


@dataclass(frozen=True)
class Blocks:
    """Every block that Theorem `thm:wide_nns_td` needs: theta the NTK, k the NNGP kernel; rows first, columns second.

    `groups` numbers equal rows of X (optional; it makes duplicates cheap).
    """

    theta_xx: np.ndarray  # [N, N]
    theta_yx: np.ndarray  # [M, N]
    theta_tx: np.ndarray  # [T, N]
    k_xx: np.ndarray  # [N, N]
    k_yx: np.ndarray  # [M, N]
    k_yy: np.ndarray  # [M, M]
    k_tt: np.ndarray  # [T, T]
    k_tx: np.ndarray  # [T, N]
    k_ty: np.ndarray  # [T, M]
    groups: Int[np.ndarray, " N"] | None = None

    def __post_init__(self) -> None:
        n, m, t = len(self.theta_xx), len(self.theta_yx), len(self.theta_tx)
        sizes = {"x": n, "y": m, "t": t}
        for name, value in vars(self).items():
            if name != "groups":
                rows, columns = tuple(name.split("_")[1])
                block = checks.kernel_block(name, value, (sizes[rows], sizes[columns]))
                object.__setattr__(self, name, block)


def evaluate(kernel: Kernel, name: str, x1: np.ndarray, x2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(NNGP, NTK) of two point sets from a user's kernel, checked."""
    pair = kernel(x1, x2)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidInput(f"kernel returned {type(pair).__name__}, expected the pair (nngp, ntk)")
    shape = (len(x1), len(x2))
    if pair[0] is None:
        raise InvalidInput(
            "kernel returned no NNGP part, which only stability(...) can do without; "
            "pass a kernel that returns (nngp, ntk)"
        )
    return checks.kernel_block(f"k_{name}", pair[0], shape), checks.kernel_block(f"theta_{name}", pair[1], shape)


def kernel_blocks(kernel: Kernel, x: np.ndarray, y: np.ndarray, test: np.ndarray) -> Blocks:
    """Evaluate `kernel` once on every pair of sets. Memory as in `memory_needed`."""
    k_xx, theta_xx = evaluate(kernel, "xx", x, x)
    k_yx, theta_yx = evaluate(kernel, "yx", y, x)
    k_yy = evaluate(kernel, "yy", y, y)[0]
    k_tx, theta_tx = evaluate(kernel, "tx", test, x)
    k_ty = evaluate(kernel, "ty", test, y)[0]
    k_tt = evaluate(kernel, "tt", test, test)[0]
    return Blocks(theta_xx, theta_yx, theta_tx, k_xx, k_yx, k_yy, k_tt, k_tx, k_ty, equal_rows(x))


def equal_rows(x: np.ndarray) -> Int[np.ndarray, " N"]:
    """A number for every row of x, the same for equal rows."""
    return np.unique(x, axis=0, return_inverse=True)[1].ravel()


def bootstrap(p: Weights, block: Float[np.ndarray, "M K"]) -> Float[np.ndarray, "N K"]:
    """P block, a product only where P is one."""
    return block if p is None else p @ block


def bootstrap_transposed(p: Weights, block: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "M K"]:
    """P^T block."""
    return block if p is None else p.T @ block


def td_matrix(
    theta_xx: Float[np.ndarray, "N N"], theta_yx: Float[np.ndarray, "M N"], p: Weights, gamma: float, ridge: float = 0.0
) -> Float[np.ndarray, "N N"]:
    """Delta = Theta_XX - gamma P Theta_YX, plus ridge I; a new array."""
    delta = theta_xx.copy() if gamma == 0.0 else theta_xx - gamma * bootstrap(p, theta_yx)
    delta[np.diag_indices_from(delta)] += ridge
    return delta


@dataclass(frozen=True)
class Memory:
    """Bytes that a path allocates at its peak, beside the caller's own arrays and a fixed kernel workspace."""

    direct: int
    iterative: int

    def sentence(self, limit: int | None = None) -> str:
        """For people."""
        text = f"direct solve {_gib(self.direct)}, GMRES {_gib(self.iterative)}"
        return text if limit is None else f"{text}, limit {_gib(limit)}"


def memory_needed(
    n: int,
    m: int,
    tests: int,
    p: Weights = None,
    *,
    finite_time: bool = False,
    check: bool = True,
    spectrum_limit: int = SPECTRUM_LIMIT,
) -> Memory:
    """What N transitions, M next points and `tests` test points take, known before anything is allocated.

    Direct: five kernel blocks, Delta, and N x N work arrays: two for the factors, six to certify convergence, fourteen
    where all eigenvalues may be needed, eight for the propagator at finite time. GMRES: Delta, two more N x N to
    certify (one without duplicates), landmarks, Krylov vectors; the NNGP kernel is recomputed in strips.
    """
    small = 4 * tests * (n + m) + 2 * tests * tests
    if finite_time:
        work = 8
    elif not check:
        work = 2
    else:
        work = 14 if n <= spectrum_limit else 6
    blocks = 2 * n * n + 2 * m * n + m * m
    direct = blocks + (1 + work) * n * n + (0 if p is None else n * n) + small
    landmarks = min(n, LANDMARKS)
    iterative = (
        (3 if check else 1) * n * n
        + 4 * landmarks * n
        + 2 * landmarks * landmarks
        + 2 * (RESTART + 4) * tests * n
        + 2 * STRIP * (n + m)
        + small
    )
    return Memory(8 * direct, 8 * iterative)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"
