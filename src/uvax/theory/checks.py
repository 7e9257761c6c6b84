"""What `uvax.theory` refuses, in one sentence each, before any work starts.

Public functions declare their arrays `ArrayLike` and name the shapes in their docstrings: these checks, not a type
checker, tell a user what is wrong.
"""

import math
import numbers
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy.typing import ArrayLike as ArrayLike

from uvax.errors import InvalidInput

Weights: TypeAlias = np.ndarray | sp.csr_array | None  # P [N, M]

# Rows of P that come out of a float32 softmax sum to one only within rounding.
_ROW_SUM_SLACK = 1e-6


def floats(name: str, value: Any, *, ndim: int) -> np.ndarray:
    """`value` as a finite, non-empty float64 array with `ndim` axes."""
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        raise InvalidInput(f"{name} has the integer dtype {array.dtype}, expected floats: pass {name}.astype(float)")
    if array.dtype.kind != "f":
        raise InvalidInput(f"{name} has dtype {array.dtype}, expected an array of floats")
    if array.ndim != ndim:
        raise InvalidInput(f"{name} has shape {array.shape}, expected {ndim} axes")
    if array.size == 0:
        raise InvalidInput(f"{name} is empty (shape {array.shape}), expected at least one entry per axis")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidInput(f"{name} has the non-finite value {array[where]} at index {where}")
    return np.ascontiguousarray(array, dtype=np.float64)


def points(name: str, value: Any, *, like: tuple[str, np.ndarray] | None = None) -> Float[np.ndarray, "N D"]:
    """A set of points, one per row, as wide as the set `like`."""
    array = floats(name, value, ndim=2)
    if like is not None and array.shape[1] != like[1].shape[1]:
        raise InvalidInput(
            f"{name} has points of length {array.shape[1]}, but {like[0]} has points of length {like[1].shape[1]}"
        )
    return array


def rewards(value: Any, n: int) -> Float[np.ndarray, " N"]:
    """One reward per transition; an array (n, 1) is refused rather than broadcast."""
    array = np.asarray(value)
    if array.ndim != 1 or array.shape[0] != n:
        raise InvalidInput(f"reward has shape {array.shape}, expected ({n},): one number per row of X")
    return floats("reward", array, ndim=1)


def weights(value: Any, n: int, m: int) -> Weights:
    """Bootstrap weights P [N, M]: None (Y is X' row by row), dense, or sparse; mostly-zero arrays become sparse."""
    if value is None:
        if m != n:
            raise InvalidInput(
                f"P=None means that Y is the next point of every row of X, but Y has {m} rows and X has {n}; "
                "pass P with shape (rows of X, rows of Y)"
            )
        return None
    if sp.issparse(value):
        matrix = sp.csr_array(value)
        entries: np.ndarray = matrix.data
        if entries.dtype.kind != "f":
            raise InvalidInput(f"P has the dtype {entries.dtype}, expected floats: pass P.astype(float)")
        if not np.isfinite(entries).all():
            raise InvalidInput("P has a non-finite entry, expected probabilities")
    else:
        matrix = entries = floats("P", value, ndim=2)
    if matrix.shape != (n, m):
        raise InvalidInput(f"P has shape {matrix.shape}, expected (rows of X, rows of Y) = ({n}, {m})")
    if entries.size and entries.min() < 0:
        raise InvalidInput(f"P has the negative entry {entries.min():g}, expected next-action probabilities")
    total = np.asarray(matrix.sum(axis=1)).ravel()
    if total.max() > 1 + _ROW_SUM_SLACK:
        row = int(total.argmax())
        raise InvalidInput(
            f"row {row} of P sums to {total[row]:.9g}, expected at most 1 (and a zero row for a terminal transition)"
        )
    if sp.issparse(matrix):
        return matrix.astype(np.float64)
    # A product with a matrix that is nine tenths zeros is cheaper in compressed rows than in dgemm.
    return sp.csr_array(matrix) if np.count_nonzero(matrix) < matrix.size / 10 else matrix


def _number(name: str, value: Any) -> float:
    scalar = np.asarray(value)
    if scalar.ndim != 0 or scalar.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} is {value!r}, expected one number")
    number = float(scalar)
    if math.isnan(number):
        raise InvalidInput(f"{name} is NaN, expected a number")
    return number


def discount(value: Any) -> float:
    """gamma in [0, 1)."""
    gamma = _number("gamma", value)
    if not 0.0 <= gamma < 1.0:
        raise InvalidInput(f"gamma is {gamma:g}, expected 0 <= gamma < 1")
    return gamma


def at_least(name: str, value: Any, low: float, *, strict: bool = False) -> float:
    """A finite number >= low, or > low."""
    number = _number(name, value)
    if not math.isfinite(number) or number < low or (strict and number == low):
        raise InvalidInput(f"{name} is {number:g}, expected a finite number {'>' if strict else '>='} {low:g}")
    return number


def count(name: str, value: Any, low: int) -> int:
    """An integer >= low."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise InvalidInput(f"{name} is {value!r}, expected an integer >= {low}")
    if value < low:
        raise InvalidInput(f"{name} is {value}, expected an integer >= {low}")
    return int(value)


def kernel_block(name: str, value: Any, shape: tuple[int, int]) -> Float[np.ndarray, "A B"]:
    """One output of a user's kernel function, in float64."""
    array = np.asarray(value)
    if array.shape != shape or array.dtype.kind != "f":
        raise InvalidInput(
            f"the kernel returned {name} with shape {array.shape} and dtype {array.dtype}, "
            f"expected floats of shape {shape}: (rows of x1, rows of x2)"
        )
    if not np.isfinite(array).all():
        raise InvalidInput(f"the kernel returned a non-finite value in {name}")
    return array.astype(np.float64, copy=False)
