"""What would make a diverging TD problem converge, tried on the problem itself."""

import numpy as np
from jaxtyping import Int

from uvax.theory import checks, spectrum
from uvax.theory.blocks import td_matrix
from uvax.theory.checks import Weights
from uvax.theory.kernels import Kernel

# Each try costs a spectrum; beyond this many rows only the ridge is estimated, from eigenvalues that are known.
_TRIES_LIMIT = 500
_STRIP = 64


def advice(
    kernel: Kernel,
    y: np.ndarray,
    theta_xx: np.ndarray,
    theta_yx: np.ndarray,
    p: Weights,
    gamma: float,
    groups: Int[np.ndarray, " N"],
    eigenvalues: np.ndarray,
    limit: int,
) -> tuple[str, ...]:
    """Sentences on a ridge, a smaller gamma and normalised gradients, with numbers where they were tried."""
    found = []
    if len(eigenvalues):
        shift = max(0.0, -float(eigenvalues.real.min()))
        scale = float(np.abs(eigenvalues).max())
        found.append(f"A ridge above {max(shift, 1e-8 * scale):.3g} makes it converge.")
    else:
        found.append("A ridge makes it converge once it exceeds the negative real parts of Delta.")
    if len(theta_xx) > min(limit, _TRIES_LIMIT):
        return (*found, "A smaller gamma or normalised gradients (layer norm) may help.")
    highest = _largest_gamma(theta_xx, theta_yx, p, gamma, groups)
    if highest > 0:
        found.append(f"So does gamma up to {highest:.3g}.")
    if _converges_normalised(kernel, y, theta_xx, theta_yx, p, gamma, groups):
        found.append("So do gradients of equal norm, Theta(x, x') / sqrt(Theta(x, x) Theta(x', x')) (layer norm).")
    else:
        found.append("Gradients of equal norm alone would not be enough.")
    return tuple(found)


def _converges(theta_xx: np.ndarray, theta_yx: np.ndarray, p: Weights, gamma: float, groups: np.ndarray) -> bool:
    delta = td_matrix(theta_xx, theta_yx, p, gamma)
    return bool(spectrum.decide(delta, theta_xx, groups=groups).converges)


def _largest_gamma(theta_xx: np.ndarray, theta_yx: np.ndarray, p: Weights, gamma: float, groups: np.ndarray) -> float:
    """The first discount, going up from zero, at which TD stops converging, to three digits; 0 if none converges."""
    low, high = 0.0, gamma
    # Stability need not be monotone in gamma: the grid finds the first failure, bisection refines it.
    for candidate in np.linspace(0.0, gamma, 9)[1:]:
        if not _converges(theta_xx, theta_yx, p, float(candidate), groups):
            high = float(candidate)
            break
        low = float(candidate)
    for _ in range(8):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _converges(theta_xx, theta_yx, p, middle, groups) else (low, middle)
    # Rounded down, so that the printed number is one that was tried or is safer.
    return float(np.floor(low * 1e3) / 1e3)


def _converges_normalised(
    kernel: Kernel,
    y: np.ndarray,
    theta_xx: np.ndarray,
    theta_yx: np.ndarray,
    p: Weights,
    gamma: float,
    groups: np.ndarray,
) -> bool:
    own = []
    for start in range(0, len(y), _STRIP):
        strip = y[start : start + _STRIP]
        own.append(np.diagonal(checks.kernel_block("theta_yy", kernel(strip, strip)[1], (len(strip), len(strip)))))
    norm_x, norm_y = np.sqrt(np.diagonal(theta_xx)), np.sqrt(np.concatenate(own))
    if not (norm_x.min() > 0 and norm_y.min() > 0):
        return False
    return _converges(theta_xx / np.outer(norm_x, norm_x), theta_yx / np.outer(norm_y, norm_x), p, gamma, groups)
