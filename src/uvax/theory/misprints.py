"""Where the paper's formulas are misprinted: the printed and the corrected one against an independent computation.

`python -m uvax.theory.misprints` prints the table of docs/theory.md. Nothing in it is stored: every number is computed
from the formula as printed, the formula as corrected, and a reference that uses neither.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from scipy.integrate import solve_ivp

from uvax.theory.duals import angle, dual
from uvax.theory.empirical import empirical_ntk
from uvax.theory.kernels import kernels

_GAMMA = 0.7


@dataclass(frozen=True)
class Evidence:
    """How far the printed and the corrected statement are from the reference, in the same measure."""

    where: str
    printed: str
    corrected: str
    measure: str
    printed_error: float
    corrected_error: float


def _kernel(x1: np.ndarray, x2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return kernels(x1, x2, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu")


@dataclass(frozen=True)
class _Problem:
    """Five transitions, five test points, initial outputs, and the flow integrated step by step."""

    test: np.ndarray
    x: np.ndarray
    y: np.ndarray
    reward: np.ndarray
    start: np.ndarray  # initial outputs on test, X, X'

    @classmethod
    def draw(cls) -> "_Problem":
        rng = np.random.default_rng(0)
        test, x = rng.normal(size=(2, 5, 3))
        y = 0.8 * x[::-1] + 0.3 * rng.normal(size=(5, 3))
        return cls(test, x, y, rng.normal(size=5), rng.normal(size=15))

    @property
    def theta(self) -> np.ndarray:
        """NTK of (test, X, X') with X."""
        return _kernel(np.concatenate([self.test, self.x, self.y]), self.x)[1]

    @property
    def delta(self) -> np.ndarray:
        return self.theta[5:10] - _GAMMA * self.theta[10:]

    @property
    def td_error(self) -> np.ndarray:
        return self.start[5:10] - _GAMMA * self.start[10:] - self.reward

    def integrate(self, t: float) -> np.ndarray:
        """Outputs on (test, X, X') at time t from the differential equation `eq:flindynamics` itself."""
        theta = self.theta

        def slope(_: float, f: np.ndarray) -> np.ndarray:
            return -theta @ (f[5:10] - _GAMMA * f[10:] - self.reward)

        return solve_ivp(slope, (0.0, t), self.start, method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]


def finite_time_sign() -> Evidence:
    """The sign in the explicit evolution of predictions, Eq. `eq:flinevolution`."""
    p, t = _Problem.draw(), 0.5
    change = p.theta[:5] @ np.linalg.solve(p.delta, (scipy.linalg.expm(-t * p.delta) - np.eye(5)) @ p.td_error)
    exact = p.integrate(t)[:5]
    return Evidence(
        "Eq. flinevolution",
        "f0 - Θ Δ⁻¹ (exp(-αtΔ) - I) δ0",
        "f0 + Θ Δ⁻¹ (exp(-αtΔ) - I) δ0",
        "largest error of f(t = 0.5) against the integrated differential equation",
        float(np.abs(p.start[:5] - change - exact).max()),
        float(np.abs(p.start[:5] + change - exact).max()),
    )


def block_matrix() -> Evidence:
    """Rows 2 and 3 of the block matrix A, Eq. `eq:blockeq`: their identity belongs to their own block."""
    p = _Problem.draw()
    gains = [p.theta[5 * i : 5 * i + 5] @ np.linalg.inv(p.delta) for i in range(3)]
    eye, zero = np.eye(5), np.zeros((5, 5))
    rows = [np.hstack([-b, _GAMMA * b]) for b in gains]
    printed = np.vstack([np.hstack([eye, row]) for row in rows])
    corrected = np.vstack(
        [
            np.hstack([eye, rows[0]]),
            np.hstack([zero, rows[1] + np.hstack([eye, zero])]),
            np.hstack([zero, rows[2] + np.hstack([zero, eye])]),
        ]
    )
    offset = np.concatenate([b @ p.reward for b in gains])
    exact = p.integrate(400.0)
    return Evidence(
        "Eq. blockeq, rows 2 and 3 of A",
        "(I, -Θ_XX Δ⁻¹, γ Θ_XX Δ⁻¹); (I, -Θ_X'X Δ⁻¹, γ Θ_X'X Δ⁻¹)",
        "(0, I - Θ_XX Δ⁻¹, γ Θ_XX Δ⁻¹); (0, -Θ_X'X Δ⁻¹, I + γ Θ_X'X Δ⁻¹)",
        "largest error of f(X), f(X') against the differential equation integrated to t = 400",
        float(np.abs(printed @ p.start + offset - exact)[5:].max()),
        float(np.abs(corrected @ p.start + offset - exact)[5:].max()),
    )


def online_network() -> Evidence:
    """The sentence after Theorem `thm:wide_nns_td` that gives the converged online network."""
    p = _Problem.draw()
    gain = p.theta[:5] @ np.linalg.inv(p.delta)
    exact = p.integrate(400.0)[:5]
    return Evidence(
        "Section 4, after Theorem 1",
        "u(x, ∞) = Θ Δ⁻¹ r_g",
        "u(x, ∞) = u0(x) + Θ Δ⁻¹ (r_g - (u0(X) - γ u0(X'))); the printed term is its mean",
        "largest error of u(x, t = 400) against the integrated differential equation",
        float(np.abs(gain @ p.reward - exact).max()),
        float(np.abs(p.start[:5] - gain @ p.td_error - exact).max()),
    )


def ensemble_half() -> Evidence:
    """The one half inside the ensemble's sample variance in the proof of Corollary `thm:disteq`."""
    members = 5
    draws = np.random.default_rng(0).standard_normal((200_000, members))
    centred = draws - draws.mean(axis=1, keepdims=True)
    mean = float(np.mean(np.sum(centred**2, axis=1) / (members - 1)))
    return Evidence(
        "Appendix A, proof of Corollary 2",
        "1/M Σ ½ (Q_i - Q̄)² ~ σ²/M χ²(M)",
        "1/M Σ (Q_i - Q̄)² ~ σ²/M χ²(M)",
        "bias of the mean over 200,000 ensembles of 5, in units of σ²",
        abs(0.5 * mean - 1.0),
        abs(mean - 1.0),
    )


def ntk_recursion() -> Evidence:
    """The layer of kdot in the NTK recursion of Proposition `thm:ntkprop`."""
    x = 3.0 * np.random.default_rng(1).normal(size=(4, 3))  # large inputs: the layers differ
    sigma_w, sigma_b = 1.2, 0.8
    phi = dual("erf")
    layers = [sigma_w**2 / 3 * x @ x.T + sigma_b**2]
    slopes: list[np.ndarray] = []
    for _ in range(2):
        k = layers[-1]
        a = np.diagonal(k)
        scale = np.sqrt(np.outer(a, a))
        moments = phi(a[:, None], a[None, :], angle(1.0 - k / scale))
        layers.append(sigma_b**2 + sigma_w**2 * moments.value)
        slopes.append(sigma_w**2 * moments.slope)
    second = layers[0] * slopes[0] + layers[1]  # kdot^1 does not exist, so l = 2 can only mean kdot^2
    printed, corrected = second * slopes[0] + layers[2], second * slopes[1] + layers[2]

    measured = np.mean([_network_ntk(x, 512, seed, sigma_w, sigma_b) for seed in range(12)], axis=0)
    size = float(np.linalg.norm(measured))
    return Evidence(
        "Proposition ntkprop",
        "Θ^l = Θ^{l-1} k̇^{l-1} + k^l",
        "Θ^l = Θ^{l-1} k̇^l + k^l",
        "relative distance to the mean NTK of 12 networks of width 512, erf, two hidden layers",
        float(np.linalg.norm(printed - measured)) / size,
        float(np.linalg.norm(corrected - measured)) / size,
    )


def _network_ntk(x: np.ndarray, width: int, seed: int, sigma_w: float, sigma_b: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sizes = [(width, x.shape[1]), (width, width), (1, width)]
    params = [(rng.standard_normal(s).astype(np.float32), rng.standard_normal(s[0]).astype(np.float32)) for s in sizes]

    def apply(params: Any, x: Any) -> Any:
        from jax.scipy.special import erf

        for index, (w, b) in enumerate(params):
            h = x if index == 0 else erf(x)
            x = sigma_w / np.sqrt(w.shape[1]).item() * (w @ h) + sigma_b * b
        return x[0]

    return empirical_ntk(apply, params, x, x)


def decay_bound() -> Evidence:
    """The exponential bound on the TD error uses an eigenvalue of Delta; it needs one of the symmetric part."""
    delta = np.array([[1.0, -_GAMMA], [0.0, 1.0]])  # a table: s1 -> s2 -> end
    times = np.linspace(0.1, 10.0, 100)
    norms = np.array([np.linalg.norm(scipy.linalg.expm(-t * delta), 2) for t in times])
    eigenvalue = float(np.linalg.eigvals(delta).real.min())
    symmetric = float(np.linalg.eigvalsh(0.5 * (delta + delta.T)).min())
    return Evidence(
        "Appendix A, constancy of the NTK",
        "‖d_t‖ < ‖d_0‖ exp(-t λ_min(Δ))",
        "‖d_t‖ ≤ ‖d_0‖ exp(-t λ_min((Δ + Δᵀ)/2))",
        "how far ‖exp(-tΔ)‖ exceeds the bound (largest ratio - 1), table s1 → s2 → end",
        max(0.0, float((norms * np.exp(times * eigenvalue)).max()) - 1.0),
        max(0.0, float((norms * np.exp(times * symmetric)).max()) - 1.0),
    )


def definiteness() -> Evidence:
    """Positive definiteness is called the condition for convergence; it is sufficient, not necessary."""
    delta = chain_delta(0.9)
    left = float(np.linalg.norm(scipy.linalg.expm(-1500.0 * delta), 2))
    symmetric = float(np.linalg.eigvalsh(0.5 * (delta + delta.T)).min())
    rightmost = float(np.linalg.eigvals(delta).real.min())
    return Evidence(
        "Appendix A, condition of convergence",
        f"Δ positive definite (here λ_min((Δ + Δᵀ)/2) = {symmetric:.2f}: no convergence)",
        f"Re λ(Δ) > 0 on range(Θ_XX) (here min Re λ = {rightmost:.3f}: convergence)",
        "verdict against ‖exp(-1500 Δ)‖ on the paper's chain: 1 if wrong, else what is left of the error",
        1.0 if symmetric <= 0 and left < 1e-6 else left,
        left if rightmost > 0 else 1.0,
    )


def chain_delta(gamma: float, states: int = 10) -> np.ndarray:
    """Delta of the paper's chain: data from action a only, policies that take a with probability z in {0, 1/2, 1}."""

    def point(s: int, action: int, z: float) -> np.ndarray:
        return np.concatenate([np.eye(states)[s], np.eye(2)[action], [z]])

    rows = [(s, z) for z in (0.0, 0.5, 1.0) for s in range(states)]
    kernel: Callable[..., tuple[np.ndarray, np.ndarray]] = partial(
        kernels, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu"
    )
    x = np.stack([point(s, 0, z) for s, z in rows])
    # The last state's transition is terminal; its next points get no weight.
    following = [np.stack([point(min(s + 1, states - 1), a, z) for s, z in rows]) for a in (0, 1)]
    alive = np.array([s < states - 1 for s, _ in rows], dtype=float)
    z = np.array([z for _, z in rows])
    bootstrap = (alive * z)[:, None] * kernel(following[0], x)[1] + (alive * (1 - z))[:, None] * kernel(
        following[1], x
    )[1]
    return kernel(x, x)[1] - gamma * bootstrap


ALL: tuple[Callable[[], Evidence], ...] = (
    finite_time_sign,
    block_matrix,
    online_network,
    ensemble_half,
    ntk_recursion,
    decay_bound,
    definiteness,
)


def table(evidence: list[Evidence]) -> str:
    """Markdown, one row per misprint; errors below 1e-6 are rounding or the integrator's and printed as such."""

    def show(error: float) -> str:
        return "< 1e-6" if error < 1e-6 else f"{error:.2g}"

    lines = [
        "| where | as printed | corrected | measured | printed | corrected |",
        "|---|---|---|---|---|---|",
    ]
    for e in evidence:
        cells = [e.where, e.printed, e.corrected, e.measure, show(e.printed_error), show(e.corrected_error)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([check() for check in ALL]))
