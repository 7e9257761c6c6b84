"""Gaussian expectations of a nonlinearity: what one layer does to a kernel.

For (u, v) ~ N(0, [[a, c], [c, b]]) a dual gives E[phi(u) phi(v)] and E[phi'(u) phi'(v)]. The correlation enters as the
angle theta, c = sqrt(a b) cos(theta), because c alone has lost theta where it matters: near duplicates 1 - cos(theta)
is below rounding while theta itself is not, and the derivative of the ReLU dual is linear in theta.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from uvax.errors import unknown_name

Array = Float[np.ndarray, "..."]

# erf(x / SIGMOID_SCALE) / 2 + 1/2 is the erf closest to the logistic function.
SIGMOID_SCALE = 2.4020563531719796


class Dual(NamedTuple):
    """E[phi phi], E[phi' phi'], and 1 - correlation of phi(u), phi(v) where a formula without cancellation exists."""

    value: Array
    slope: Array
    defect: Array | None


def _relu(a: Array, b: Array, theta: Array) -> Dual:
    cos = np.cos(theta)
    # sin(theta) - theta cos(theta) cancels for small angles; its series does not.
    square = theta * theta
    series = theta * square * (1.0 / 3.0 - square * (1.0 / 30.0 - square / 840.0))
    bent = np.where(theta < 0.02, series, np.sin(theta) - theta * cos)
    defect = 2.0 * np.sin(0.5 * theta) ** 2 - bent / np.pi
    return Dual(0.5 * np.sqrt(a * b) * (1.0 - defect), (np.pi - theta) / (2.0 * np.pi), defect)


def _erf(a: Array, b: Array, theta: Array) -> Dual:
    ab = a * b
    # (1 + 2a)(1 + 2b) - 4c^2 without subtracting two large numbers.
    root = np.sqrt(1.0 + 2.0 * a + 2.0 * b + 4.0 * ab * np.sin(theta) ** 2)
    value = (2.0 / np.pi) * np.arctan2(2.0 * np.sqrt(ab) * np.cos(theta), root)
    return Dual(value, (4.0 / np.pi) / root, None)


def _sigmoid_like(a: Array, b: Array, theta: Array) -> Dual:
    s2 = SIGMOID_SCALE**-2
    value, slope, _ = _erf(s2 * a, s2 * b, theta)
    return Dual(0.25 * value + 0.25, 0.25 * s2 * slope, None)


def _gelu(a: Array, b: Array, theta: Array) -> Dual:
    ab = a * b
    c = np.sqrt(ab) * np.cos(theta)
    gram = ab * np.sin(theta) ** 2  # ab - c^2
    det = 1.0 + a + b + gram  # (1 + a)(1 + b) - c^2
    both = 0.25 + np.arctan2(c, np.sqrt(det)) / (2.0 * np.pi)  # E[Phi(u) Phi(v)]
    density = 1.0 / (2.0 * np.pi * np.sqrt(det))  # E[Phi'(u) Phi'(v)]
    sides = 1.0 / (1.0 + a) + 1.0 / (1.0 + b)
    value = c * both + density * (gram + c * c * sides)
    return Dual(value, both + density * c * (sides + 1.0 / det), None)


DUALS: dict[str, Callable[[Array, Array, Array], Dual]] = {
    "relu": _relu,
    "erf": _erf,
    "gelu": _gelu,
    "sigmoid_like": _sigmoid_like,
}


def dual(nonlinearity: str) -> Callable[[Array, Array, Array], Dual]:
    """The dual of a nonlinearity by name."""
    if nonlinearity not in DUALS:
        raise unknown_name("nonlinearity", str(nonlinearity), DUALS)
    return DUALS[nonlinearity]


def angle(defect: Array) -> Array:
    """theta from 1 - cos(theta), exact at 0 and within rounding everywhere below pi / 2."""
    defect = np.clip(defect, 0.0, 2.0)
    near = 2.0 * np.arcsin(np.sqrt(0.5 * np.minimum(defect, 1.0)))
    far = math.pi - 2.0 * np.arcsin(np.sqrt(0.5 * np.minimum(2.0 - defect, 1.0)))
    return np.where(defect <= 1.0, near, far)
