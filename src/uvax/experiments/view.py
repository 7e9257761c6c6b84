"""What a person sees while trials run: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from uvax.experiments.estimates import in_words
from uvax.experiments.runner import Snapshot

if TYPE_CHECKING:
    from rich.console import Group

_SECONDS_BETWEEN_LINES = 60.0
_MOST_SHOWN = 16


@contextmanager
def live_view(title: str) -> Iterator[Callable[[Snapshot], None]]:
    """A function to hand snapshots to."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        lines = Lines(title)
        yield lines
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield lambda snapshot: live.update(picture(title, snapshot))


def picture(title: str, snapshot: Snapshot) -> "Group":
    """The snapshot for a terminal."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(width=24)
    table.add_column(no_wrap=True)
    for name, progress in list(snapshot.running.values())[:_MOST_SHOWN]:
        table.add_row(name, ProgressBar(total=1.0, completed=progress.done or 0.0, width=24), progress.text)
    if len(snapshot.running) > _MOST_SHOWN:
        table.add_row(f"and {len(snapshot.running) - _MOST_SHOWN} more", "", "")
    parts: list[Any] = [Text(headline(title, snapshot), style="bold"), table]
    parts += [Text(sentence, style="red") for sentence in snapshot.failed[-3:]]
    return Group(*parts)


def headline(title: str, snapshot: Snapshot) -> str:
    """The snapshot in one line."""
    failed = f", {len(snapshot.failed)} failed" if snapshot.failed else ""
    known = snapshot.seconds_left is not None and (snapshot.running or snapshot.waiting)
    left = f", about {in_words(snapshot.seconds_left or 0.0)} left" if known else ""
    return f"{title}: {snapshot.done} of {snapshot.total} done, {len(snapshot.running)} running{failed}{left}"


class Lines:
    """A line whenever something ended, and one a minute."""

    def __init__(self, title: str):
        self._title = title
        self._last = time.monotonic()
        self._ended = 0
        self._told = 0

    def __call__(self, snapshot: Snapshot) -> None:
        for sentence in snapshot.failed[self._told :]:
            print(sentence, file=sys.stderr, flush=True)
        self._told = len(snapshot.failed)
        ended = snapshot.done + len(snapshot.failed)
        if ended > self._ended or time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._ended, self._last = ended, time.monotonic()
            print(headline(self._title, snapshot), file=sys.stderr, flush=True)
