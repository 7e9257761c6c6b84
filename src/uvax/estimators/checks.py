"""Refusals of hyperparameters that cannot be, each in one sentence and when the estimator is made."""

import math
import numbers
from collections.abc import Sequence

from uvax.errors import InvalidInput, unknown_name


def require(condition: bool, name: str, got: object, expected: str) -> None:
    """Raise the error of a hyperparameter that cannot be."""
    if not condition:
        raise InvalidInput(f"{name} is {got!r}; expected {expected}")


def require_whole(name: str, got: object, least: int, *, optional: bool = False) -> None:
    """A whole number, at least `least`; None too if `optional`."""
    whole = isinstance(got, numbers.Integral) and not isinstance(got, bool) and int(got) >= least
    expected = f"a whole number, at least {least}" + (", or None" if optional else "")
    require(whole or (optional and got is None), name, got, expected)


def require_positive(name: str, got: object) -> None:
    """A finite number above 0."""
    require(number(got) > 0.0, name, got, "a positive number")


def require_nonnegative(name: str, got: object) -> None:
    """A finite number, 0 or above."""
    require(number(got) >= 0.0, name, got, "a number, at least 0")


def require_flag(name: str, got: object) -> None:
    """True or False, and not a string that would count as true."""
    require(isinstance(got, bool), name, got, "True or False")


def require_one_of(name: str, got: object, known: Sequence[str]) -> None:
    """One of the known names; the error lists the close ones."""
    if got not in known:
        raise unknown_name(name, str(got), known)


def number(got: object) -> float:
    """`got` as a float, or NaN, which fails every comparison, if it is not a finite number."""
    real = isinstance(got, numbers.Real) and not isinstance(got, bool)
    return float(got) if real and math.isfinite(got) else math.nan  # type: ignore[arg-type]  # `real` says so
