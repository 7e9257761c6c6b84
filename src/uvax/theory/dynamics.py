"""What training does to the initial TD error: B with f_t(T) = f_0(T) + B (r - (f_0(X) - gamma P f_0(Y))).

Gradient flow on the loss of Theorem `thm:wide_nns_td` gives B_t = Theta_TX Delta^-1 (I - exp(-t Delta)), gradient
descent B_n = Theta_TX Delta^-1 (I - (I - lr Delta)^n). Neither needs the inverse: both are sums of a geometric series
of matrices and stay right where Delta is singular.
"""

import math

import numpy as np
import scipy.linalg
from jaxtyping import Float

from uvax.errors import Diverged

Matrix = Float[np.ndarray, "N N"]
Rows = Float[np.ndarray, "T N"]

# A propagator this small no longer changes any float64 sum.
_NEGLIGIBLE = 1e-40


def flow_gain(theta_tx: Rows, delta: Matrix, t: float) -> Rows:
    """B_t of gradient flow: Theta_TX int_0^t exp(-s Delta) ds. Costs about log2(t |Delta|) products of N x N."""
    norm = t * float(np.abs(delta).sum(axis=0).max())
    doublings = max(0, math.ceil(math.log2(norm))) if norm > 0 else 0
    h = math.ldexp(t, -doublings)
    # int_0^h exp(-s Delta) ds = h sum_k (-h Delta)^k / (k + 1)!, with |h Delta| <= 1: 20 terms reach rounding.
    term = h * theta_tx
    first = term.copy()
    for k in range(1, 21):
        term = term @ delta * (-h / (k + 1))
        first += term
    return _series(first, scipy.linalg.expm(-h * delta), 1 << doublings, f"t={t:g}")


def descent_gain(theta_tx: Rows, delta: Matrix, steps: int, learning_rate: float) -> Rows:
    """B_n of n gradient steps: lr Theta_TX sum_{k<n} (I - lr Delta)^k. Costs log2(n) products of N x N."""
    if steps == 0:
        return np.zeros_like(theta_tx)
    step = -learning_rate * delta
    step[np.diag_indices_from(step)] += 1.0
    what = f"steps={steps} with learning_rate={learning_rate:g}"
    return _series(learning_rate * theta_tx, step, steps, what)


def _series(first: Rows, step: Matrix, n: int, what: str) -> Rows:
    """first (I + step + ... + step^(n-1)) by doubling, for any n >= 1."""
    total = np.zeros_like(first)
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            if n & 1:
                total = first + total @ step
            n >>= 1
            # Squaring on towards denormal numbers would change nothing and take much longer.
            if n == 0 or np.abs(step).max() < _NEGLIGIBLE:
                break
            first = first + first @ step
            step = step @ step
    if n:
        total = first
    if not np.isfinite(total).all():
        raise Diverged(
            f"the outputs overflow float64 at {what}: TD diverges on these data; "
            "ask stability(...) what helps, or stop earlier"
        )
    return total
