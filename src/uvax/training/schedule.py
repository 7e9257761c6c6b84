"""Which steps are run together, and after which of them the estimator is evaluated."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from uvax.errors import InvalidInput

# Long enough that host work between chunks is invisible, short enough for progress and Ctrl-C at paper scale.
_LONGEST_CHUNK = 100


@dataclass(frozen=True)
class Schedule:
    """Chunks end at the multiples of `chunk` and at `steps`, so at most two lengths are ever compiled.

    The boundaries depend on nothing but the settings, so a resumed run meets the same ones.
    """

    steps: int
    chunk: int
    evaluations: tuple[int, ...]  # steps after which to evaluate, in order, the last one included; () for none

    def chunks(self, start: int) -> Iterator[tuple[int, int]]:
        """(first step, length) of the chunks still to run after `start` steps."""
        for first in range(start, self.steps, self.chunk):
            yield first, min(self.chunk, self.steps - first)


def make_schedule(steps: int, evaluations: int, log_every: int | None) -> Schedule:
    """`evaluations` equally spaced evaluations, each at the chunk boundary nearest to its place.

    Without `log_every` the chunk is the longest one of at most 100 steps that divides the distance between
    evaluations; where none does (a prime distance), evaluations are up to half a chunk off their place.
    """
    count = min(max(evaluations, 1), steps)
    distance = steps // count
    if log_every is not None and log_every > distance:
        if evaluations:
            raise InvalidInput(
                f"log_every is {log_every}, but {evaluations} evaluations in {steps} steps are {distance} apart;"
                f" expected at most {distance}, or fewer evaluations"
            )
        log_every = distance
    chunk = log_every or _default_chunk(steps, count)
    places = {min(steps, max(1, round(k * steps / count / chunk)) * chunk) for k in range(1, count)} | {steps}
    return Schedule(steps, chunk, tuple(sorted(places)) if evaluations else ())


def _default_chunk(steps: int, count: int) -> int:
    distance = steps // count
    if steps % count == 0:
        longest = max(d for d in range(1, min(distance, _LONGEST_CHUNK) + 1) if distance % d == 0)
        if longest >= min(distance, _LONGEST_CHUNK // 4):
            return longest
    return distance // math.ceil(distance / _LONGEST_CHUNK)
