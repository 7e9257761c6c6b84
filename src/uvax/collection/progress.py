"""How a collection shows that it lives."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Report(NamedTuple):
    """How a collection stands."""

    done: float  # share of the steps, 0 to 1
    updates: int
    updates_in_all: int
    expert_return: float  # over the last chunk, exploration included
    other_return: float
    loss: float
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"{self.updates:,}/{self.updates_in_all:,} updates, return {self.expert_return:.2f} on south/west, "
            f"{self.other_return:.2f} on north/east"
        )


_PLAIN_SECONDS = 15.0  # between lines, where there is no terminal


@contextmanager
def progress_reporter(progress: bool | Callable[[Report], None], title: str) -> Iterator[Callable[[Report], None]]:
    """A function to hand reports to: the caller's own, a live bar on a terminal, a line now and then elsewhere."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda report: None
    elif not sys.stderr.isatty():
        yield _plain(title)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=1.0, status="compiling")
            yield lambda report: bar.update(task, completed=report.done, status=str(report))


def _plain(title: str) -> Callable[[Report], None]:
    last = [time.monotonic()]

    def show(report: Report) -> None:
        if time.monotonic() - last[0] >= _PLAIN_SECONDS or report.done >= 1.0:
            last[0] = time.monotonic()
            print(
                f"{title}: {report.done:.0%}, {report}, {report.seconds_left:.0f} s left", file=sys.stderr, flush=True
            )

    return show
