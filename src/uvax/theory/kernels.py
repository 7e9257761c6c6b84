"""NNGP and NTK of infinitely wide fully connected networks (Propositions `thm:nngpprop` and `thm:ntkprop`)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from uvax.theory import checks
from uvax.theory.checks import ArrayLike
from uvax.theory.duals import Dual, angle, dual

# A kernel is any function of two point sets that returns their (NNGP, NTK) blocks; see `td_posterior`.
Kernel = Callable[[Any, Any], tuple[Any, Any]]

# Below this value of 1 - |cos| the angle is computed from differences of unit vectors: from the inner product it has
# an error of about eps / sin(theta), here at most 1e-14.
_NEARLY_PARALLEL = 1e-3
# Arrays of a block's size that are alive at once inside one layer, counted in the code below.
_TEMPORARIES = 12


def kernels(
    x1: ArrayLike,
    x2: ArrayLike,
    *,
    depth: int,
    sigma_w: float,
    sigma_b: float,
    nonlinearity: str,
    workspace: int = 2**26,
) -> tuple[Float[np.ndarray, "A B"], Float[np.ndarray, "A B"]]:
    """NNGP k(x1, x2) and NTK Theta(x1, x2) of a network with `depth` hidden layers, in float64.

    x1 [A, D] and x2 [B, D] are points; `nonlinearity` is one of "relu", "erf", "gelu" (exact, x Phi(x)) and
    "sigmoid_like" (the erf closest to the logistic function). With sigma_w, sigma_b the same in every layer and
    k^1 = Theta^1 = sigma_w^2 / D x.x' + sigma_b^2,

        k^l     = sigma_b^2 + sigma_w^2 E[phi(u) phi(v)],    (u, v) ~ N(0, k^{l-1})
        Theta^l = Theta^{l-1} kdot^l + k^l,    kdot^l = sigma_w^2 E[phi'(u) phi'(v)]

    (the paper's recursion prints kdot^{l-1}; see docs/theory.md). Angles between points are carried instead of
    correlations, so duplicates, collinear points and zeros come out exactly and kernel matrices keep their true rank.

    Memory is 16 A B bytes for the two results plus at most about `workspace` bytes, whatever A and B are; time is
    proportional to A B depth (about 0.2 microseconds each for ReLU).

    Example:
        >>> x = np.array([[1.0, 0.0], [2.0, 0.0]])
        >>> nngp, ntk = kernels(x, x, depth=1, sigma_w=2**0.5, sigma_b=0.0, nonlinearity="relu")
        >>> ntk.round(6).tolist()
        [[2.0, 4.0], [4.0, 8.0]]

    `functools.partial(kernels, depth=1, ...)` is a kernel for `td_posterior` and `stability`.
    """
    first = checks.points("x1", x1)
    second = checks.points("x2", x2, like=("x1", first))
    depth = checks.count("depth", depth, 0)
    sigma_w = checks.at_least("sigma_w", sigma_w, 0.0)
    sigma_b = checks.at_least("sigma_b", sigma_b, 0.0)
    workspace = checks.count("workspace", workspace, 1)
    phi = dual(nonlinearity)

    u1, norm1 = _unit_vectors(first, sigma_w, sigma_b)
    u2, norm2 = _unit_vectors(second, sigma_w, sigma_b)
    a_layers = _variances(norm1**2, depth, sigma_w, sigma_b, phi)
    b_layers = _variances(norm2**2, depth, sigma_w, sigma_b, phi)

    nngp = np.empty((len(first), len(second)))
    ntk = np.empty_like(nngp)
    rows = max(1, workspace // (8 * _TEMPORARIES * len(second)))
    for start in range(0, len(first), rows):
        block = slice(start, start + rows)
        theta = _angles(u1[block], u2, workspace)
        k = norm1[block, None] * norm2[None, :] * np.cos(theta)
        tangent = k
        for layer in range(depth):
            a, b = a_layers[layer][block, None], b_layers[layer][None, :]
            moments = phi(a, b, theta)
            k = sigma_b**2 + sigma_w**2 * moments.value
            tangent = tangent * (sigma_w**2 * moments.slope) + k
            if layer + 1 < depth:
                a_next, b_next = a_layers[layer + 1][block, None], b_layers[layer + 1][None, :]
                theta = angle(_next_defect(a, b, k, moments, a_next, b_next, sigma_w, sigma_b))
        nngp[block], ntk[block] = k, tangent
    return nngp, ntk


def _unit_vectors(x: np.ndarray, sigma_w: float, sigma_b: float) -> tuple[np.ndarray, np.ndarray]:
    """Points as unit vectors of the first layer's feature space, and their norms sqrt(k^1(x, x))."""
    features = np.empty((len(x), x.shape[1] + 1))
    features[:, :-1] = x * (sigma_w / np.sqrt(x.shape[1]))
    features[:, -1] = sigma_b
    # Scaling by the largest entry keeps squares of tiny and huge inputs inside the range of float64.
    largest = np.abs(features).max(axis=1)
    features /= np.where(largest > 0, largest, 1.0)[:, None]
    norms = np.sqrt(np.einsum("ij,ij->i", features, features))
    features /= np.where(norms > 0, norms, 1.0)[:, None]
    return features, norms * largest


def _angles(u: np.ndarray, v: np.ndarray, workspace: int) -> np.ndarray:
    """Angles between unit vectors, accurate near 0 and pi; a zero vector is orthogonal to everything."""
    cos = u @ v.T
    theta = np.arccos(np.clip(cos, -1.0, 1.0))
    width = u.shape[1]
    for sign in (1.0, -1.0):
        i, j = np.nonzero(sign * cos > 1.0 - _NEARLY_PARALLEL)
        pairs = max(1, workspace // (32 * width))
        for start in range(0, len(i), pairs):
            ii, jj = i[start : start + pairs], j[start : start + pairs]
            gap = u[ii] - sign * v[jj]
            half = np.arcsin(np.minimum(0.5 * np.sqrt(np.einsum("ij,ij->i", gap, gap)), 1.0))
            theta[ii, jj] = 2.0 * half if sign > 0 else np.pi - 2.0 * half
    return theta


def _variances(
    first: np.ndarray, depth: int, sigma_w: float, sigma_b: float, phi: Callable[..., Dual]
) -> list[np.ndarray]:
    """k^l(x, x) for l = 1..depth, through the same dual as the pairs so that duplicates agree to the last bit."""
    layers = [first]
    for _ in range(depth - 1):
        a = layers[-1]
        layers.append(sigma_b**2 + sigma_w**2 * phi(a, a, np.zeros_like(a)).value)
    return layers


def _next_defect(
    a: np.ndarray,
    b: np.ndarray,
    k: np.ndarray,
    moments: Dual,
    a_next: np.ndarray,
    b_next: np.ndarray,
    sigma_w: float,
    sigma_b: float,
) -> np.ndarray:
    """1 - correlation after a layer, without cancellation where the dual allows (ReLU)."""
    scale = np.sqrt(a_next * b_next)
    safe = np.where(scale > 0, scale, 1.0)
    if moments.defect is None:
        return 1.0 - np.where(scale > 0, k / safe, 0.0)
    # With A = sigma_w^2 a / 2 and B likewise: sqrt((A + c)(B + c)) - (c + sqrt(AB)(1 - h))
    #   = sqrt(AB) h + c (sqrt A - sqrt B)^2 / (sqrt((A + c)(B + c)) + sqrt(AB) + c).
    root_a, root_b = sigma_w * np.sqrt(0.5 * a), sigma_w * np.sqrt(0.5 * b)
    product, c = root_a * root_b, sigma_b**2
    bias = c * (root_a - root_b) ** 2 / np.where(scale > 0, scale + product + c, 1.0)
    return np.where(scale > 0, (product * moments.defect + bias) / safe, 1.0)
