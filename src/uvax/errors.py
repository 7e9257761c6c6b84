"""What uvax raises. The command line prints these as one sentence; everything else is a bug with a traceback."""

import difflib
from collections.abc import Iterable


class UvaxError(Exception):
    """Something the caller can mend; the message says what came, what was expected and what helps."""


class InvalidInput(UvaxError, ValueError):
    """An argument, array or option that cannot be used."""


class DamagedFile(UvaxError):
    """A file that is truncated, altered, or not one of ours."""


class WriteFailed(UvaxError, OSError):
    """A file could not be written; what was there before is whole."""


class Diverged(UvaxError, ArithmeticError):
    """A computation that has no finite answer: training that blew up, or TD that does not converge."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InvalidInput:
    """The error for a name that does not exist, with the close ones listed first."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
    return InvalidInput(f"unknown {kind} {name!r}: {hint}known are {', '.join(known)}")
