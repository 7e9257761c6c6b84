"""The distribution of TD-trained networks at infinite width (Theorem `thm:wide_nns_td`) at any time of training."""

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from uvax.errors import Diverged, InvalidInput
from uvax.theory import checks, dynamics, iterative, spectrum
from uvax.theory.blocks import (
    Blocks,
    bootstrap,
    bootstrap_transposed,
    evaluate,
    kernel_blocks,
    memory_needed,
    td_matrix,
)
from uvax.theory.checks import ArrayLike, Weights
from uvax.theory.kernels import Kernel
from uvax.theory.laws import Gaussian

Solver = Literal["auto", "direct", "gmres"]

_log = logging.getLogger("uvax.theory")


@dataclass(frozen=True)
class TDPosterior(Gaussian):
    """Outputs on the test points over random initialisations, and the linear map that training applies to them.

    `gain` is B [T, N] with f_t(T) = f_0(T) + B (r - (f_0(X) - gamma P f_0(Y))).
    """

    gain: Float[np.ndarray, "T N"]
    reward: Float[np.ndarray, " N"]
    gamma: float
    weights: Weights
    solver: Literal["direct", "gmres"]
    certified: str  # how convergence is known: "cholesky", "spectrum", "arnoldi", or "none" (finite time, check=False)

    def evolve(
        self,
        test: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        reward: ArrayLike | None = None,
    ) -> Float[np.ndarray, "*heads T"]:
        """What training makes of given initial outputs on T, X and Y (Eq. `eq:flinevolution`, sign corrected).

        test [*heads, T], x [*heads, N] and y [*heads, M]: leading axes are networks or heads. `reward` defaults to the
        posterior's; for UVU pass the synthetic one of every head, g(X) - gamma P g(Y) (`synthetic_reward`).
        """
        f_test, f_x, f_y = (np.asarray(a, dtype=np.float64) for a in (test, x, y))
        heads = f_test.shape[:-1]
        n, m = self.gain.shape[1], len(self.reward) if self.weights is None else self.weights.shape[1]
        for name, outputs, size in (("test", f_test, len(self.mean)), ("x", f_x, n), ("y", f_y, m)):
            if outputs.shape != (*heads, size):
                raise InvalidInput(
                    f"initial outputs {name} have shape {outputs.shape}, expected (*heads, {size}) "
                    f"with heads {heads} as in test"
                )
        target = self.reward if reward is None else np.asarray(reward, dtype=np.float64)
        if target.shape not in ((n,), f_x.shape):
            raise InvalidInput(f"reward has shape {target.shape}, expected ({n},) or {f_x.shape}")
        return f_test + (target - self.synthetic_reward(f_x, f_y)) @ self.gain.T

    def synthetic_reward(self, x: ArrayLike, y: ArrayLike) -> Float[np.ndarray, "*heads N"]:
        """g(X) - gamma P g(Y): UVU's reward from the target network's outputs (Eq. `eq:synthetic_rewards`)."""
        flat = np.asarray(y, dtype=np.float64)
        own = np.asarray(x, dtype=np.float64)
        following = bootstrap(self.weights, flat.reshape(-1, flat.shape[-1]).T).T.reshape(own.shape)
        return own - self.gamma * following

    def uvu_error(self) -> Gaussian:
        """Law of UVU's error u - g, N(0, 2 cov); half its square averages `variance` (Cor. `thm:prediction_error`).

        Holds at every time, not only in the limit: the error follows the same dynamics without a reward.
        """
        return Gaussian(np.zeros_like(self.mean), 2.0 * self.cov)


def td_posterior(
    kernel: Kernel,
    X: ArrayLike,
    Y: ArrayLike,
    P: Any,
    reward: ArrayLike,
    gamma: float,
    test: ArrayLike,
    *,
    t: float = math.inf,
    steps: int | None = None,
    learning_rate: float | None = None,
    ridge: float = 0.0,
    check: bool = True,
    memory_limit: int | None = None,
    solver: Solver = "auto",
    spectrum_limit: int = spectrum.SPECTRUM_LIMIT,
) -> TDPosterior:
    """Mean and covariance of f(T) after semi-gradient TD on transitions X -> Y (Theorem `thm:wide_nns_td`).

    With Delta = Theta_XX - gamma P Theta_YX and B = Theta_TX Delta^-1 (I - exp(-t Delta)),

        mean = B r,    cov = k_TT - (B Lambda_T + h.c.) + B G B^T,

    Lambda_T = k_XT - gamma P k_YT and G the prior covariance of f(X) - gamma P f(Y). The loss is the theorem's: one
    half, summed over transitions, rate 1. For a mean over N divide t or learning_rate by N.

    Args:
        kernel: k(x1, x2) -> (nngp, ntk), e.g. `functools.partial(kernels, depth=1, ...)`.
        X, Y, test: points [N, D], next points [M, D] and test points [T, D], floats.
        P: bootstrap weights [N, M], dense or scipy.sparse, rows summing to at most one, zero rows for terminal
            transitions; None if Y is X' row by row.
        reward: one number per transition [N].
        t: time of gradient flow. Infinity asks for the limit and raises `Diverged` where there is none.
        steps, learning_rate: n steps of gradient descent instead of a flow; both or neither.
        ridge: Delta + ridge I, which is weight decay towards the initial parameters.
        check: False skips the proof of convergence; then the formula is returned whether it is a limit or not.
        memory_limit: bytes; beyond it the limit is solved by GMRES if that fits, else refused.
        solver: "direct" (LU), "gmres" (agrees to 1e-6 of the largest entry), or "auto".
        spectrum_limit: rows up to which all eigenvalues are computed where a Cholesky does not settle convergence.

    Costs 2/3 N^3 for the limit (1/3 N^3 more to certify it), log2(n) products of N x N at finite time; memory as in
    `memory_needed`, logged to "uvax.theory" before anything is allocated.

    Example:
        >>> kernel = lambda a, b: (a @ b.T, a @ b.T)
        >>> one, two = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
        >>> post = td_posterior(kernel, one, two, None, np.array([1.0]), 0.5, np.concatenate([one, two]))
        >>> post.mean.tolist(), post.variance.tolist()
        ([1.0, 0.0], [0.25, 1.0])
    """
    x = checks.points("X", X)
    y = checks.points("Y", Y, like=("X", x))
    points = checks.points("test", test, like=("X", x))
    p = checks.weights(P, len(x), len(y))
    settings = _settings(t, steps, learning_rate, ridge, solver)
    gamma, r = checks.discount(gamma), checks.rewards(reward, len(x))

    finite = settings.steps is not None or math.isfinite(settings.t)
    needed = memory_needed(
        len(x), len(y), len(points), p, finite_time=finite, check=check, spectrum_limit=spectrum_limit
    )
    _log.info("td_posterior of %d transitions: %s", len(x), needed.sentence(memory_limit))
    fits = memory_limit is None or needed.direct <= memory_limit
    if solver == "gmres" or (solver == "auto" and not fits and not finite):
        if finite:
            raise InvalidInput("solver='gmres' solves for t=inf only; finite times and steps need solver='direct'")
        if memory_limit is not None and needed.iterative > memory_limit:
            raise InvalidInput(_too_large(len(x), needed.sentence(memory_limit)))
        return _iterative(kernel, x, y, p, r, gamma, points, settings.ridge, check)
    if not fits:
        raise InvalidInput(_too_large(len(x), needed.sentence(memory_limit)))
    blocks = kernel_blocks(kernel, x, y, points)
    return _direct(blocks, p, r, gamma, settings, check=check, spectrum_limit=spectrum_limit)


def posterior_from_blocks(
    blocks: Blocks,
    P: Any,
    reward: ArrayLike,
    gamma: float,
    *,
    t: float = math.inf,
    steps: int | None = None,
    learning_rate: float | None = None,
    ridge: float = 0.0,
    check: bool = True,
    spectrum_limit: int = spectrum.SPECTRUM_LIMIT,
) -> TDPosterior:
    """`td_posterior` from kernel blocks that exist already: several gammas, policies or times on the same points."""
    n = len(blocks.theta_xx)
    p = checks.weights(P, n, len(blocks.theta_yx))
    settings = _settings(t, steps, learning_rate, ridge, "direct")
    r = checks.rewards(reward, n)
    return _direct(blocks, p, r, checks.discount(gamma), settings, check=check, spectrum_limit=spectrum_limit)


@dataclass(frozen=True)
class _Settings:
    t: float
    steps: int | None
    learning_rate: float
    ridge: float


def _settings(t: Any, steps: Any, learning_rate: Any, ridge: Any, solver: str) -> _Settings:
    if solver not in ("auto", "direct", "gmres"):
        raise InvalidInput(f"solver is {solver!r}, expected 'auto', 'direct' or 'gmres'")
    ridge = checks.at_least("ridge", ridge, 0.0)
    if (steps is None) != (learning_rate is None):
        given, missing = ("steps", "learning_rate") if learning_rate is None else ("learning_rate", "steps")
        raise InvalidInput(f"{given} came without {missing}; gradient descent needs both, gradient flow takes t")
    endless = not isinstance(t, str) and np.ndim(t) == 0 and t == math.inf
    t = math.inf if endless else checks.at_least("t", t, 0.0)
    if steps is None:
        return _Settings(t, None, 0.0, ridge)
    if not endless:
        raise InvalidInput(f"both t={t:g} and steps={steps} came, expected one: a time of flow or a number of steps")
    rate = checks.at_least("learning_rate", learning_rate, 0.0, strict=True)
    return _Settings(t, checks.count("steps", steps, 0), rate, ridge)


def _direct(
    blocks: Blocks, p: Weights, r: np.ndarray, gamma: float, s: _Settings, *, check: bool, spectrum_limit: int
) -> TDPosterior:
    delta = td_matrix(blocks.theta_xx, blocks.theta_yx, p, gamma, s.ridge)
    certified = "none"
    if s.steps is not None:
        gain = dynamics.descent_gain(blocks.theta_tx, delta, s.steps, s.learning_rate)
    elif math.isfinite(s.t):
        gain = dynamics.flow_gain(blocks.theta_tx, delta, s.t)
    else:
        decision = spectrum.decide(
            delta, blocks.theta_xx, groups=blocks.groups, ridge=s.ridge > 0, check=check, limit=spectrum_limit
        )
        if check:
            _require_convergence(decision)
        certified = decision.method
        gain = limit_gain(delta, blocks.theta_tx, decision)
    cov = _covariance(blocks, p, gamma, gain)
    return TDPosterior(gain @ r, cov, gain, r, gamma, p, "direct", certified)


def limit_gain(delta: np.ndarray, theta_tx: np.ndarray, decision: spectrum.Decision) -> Float[np.ndarray, "T N"]:
    """B = Theta_TX S (S^T Delta S)^-1 S^T, S a basis of range(Theta_XX); overwrites `delta`."""
    factor = decision.factor or spectrum.factorise(delta, overwrite=True)
    if factor.rcond == 0.0:
        raise Diverged("Delta is singular on range(Theta_XX), so TD has no limit: pass ridge > 0 or a smaller gamma")
    basis = decision.basis
    if basis is None:
        return factor.solve(theta_tx.T, transposed=True).T
    reduced = factor.solve((theta_tx @ basis).T, transposed=True)
    return (basis @ reduced).T


def _require_convergence(decision: spectrum.Decision) -> None:
    if decision.converges:
        return
    where = "" if decision.leftmost is None else f" (leftmost eigenvalue of Delta {decision.leftmost:.3g})"
    if decision.kind == "undecided":
        raise Diverged(
            f"whether TD converges on these data is undecided{where}: raise spectrum_limit to compute all eigenvalues, "
            "pass ridge > 0, or check=False to get the formula without a proof that it is a limit"
        )
    verb = "does not settle" if decision.kind == "marginal" else "diverges"
    raise Diverged(
        f"TD {verb} on these data{where}, so there is no t=inf posterior: ask for a finite t, pass ridge > 0 or a "
        "smaller gamma, and see stability(...)"
    )


def _covariance(blocks: Blocks, p: Weights, gamma: float, gain: np.ndarray) -> Float[np.ndarray, "T T"]:
    """k_TT - (B Lambda_T + h.c.) + B G B^T as W^T K W with W = (B, -gamma B P), never forming G."""
    wx = gain.T
    cross = blocks.k_tx @ wx
    square = gain @ (blocks.k_xx @ wx)
    if gamma > 0:
        wy = -gamma * bootstrap_transposed(p, wx)
        cross += blocks.k_ty @ wy
        mixed = wy.T @ (blocks.k_yx @ wx)
        square += mixed + mixed.T + wy.T @ (blocks.k_yy @ wy)
    cov = blocks.k_tt - cross - cross.T + square
    return 0.5 * (cov + cov.T)


def _iterative(
    kernel: Kernel,
    x: np.ndarray,
    y: np.ndarray,
    p: Weights,
    r: np.ndarray,
    gamma: float,
    test: np.ndarray,
    ridge: float,
    check: bool,
) -> TDPosterior:
    delta = iterative.td_matrix_in_strips(kernel, x, y, p, gamma, ridge)
    certified = "none"
    if check:
        decision = iterative.certify(delta, kernel, x, ridge)
        _require_convergence(decision)
        certified = decision.method
        if decision.kind != "positive_definite":
            # The proof used the only N x N array there is; evaluating the kernel again is cheaper than another one.
            del delta
            delta = iterative.td_matrix_in_strips(kernel, x, y, p, gamma, ridge)
    gain = iterative.limit_gain(kernel, x, evaluate(kernel, "tx", test, x)[1], delta, ridge)
    del delta
    cov = iterative.covariance_in_strips(kernel, x, y, p, gamma, test, gain)
    return TDPosterior(gain @ r, cov, gain, r, gamma, p, "gmres", certified)


def _too_large(n: int, sentence: str) -> str:
    return (
        f"{n} transitions need more memory than memory_limit allows ({sentence}): "
        "raise memory_limit, pass fewer transitions or a sparse P, or (for t=inf) check=False with solver='gmres'"
    )
