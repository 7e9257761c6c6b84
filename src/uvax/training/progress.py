"""What a person sees while training runs: a bar in a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Silence; those below say how far training is."""

    def update(self, step: int, loss: float | None = None, evaluation: str | None = None) -> None:
        """`step` steps are done; what is not given is as before."""

    def say(self, sentence: str) -> None:
        """A sentence that does not disturb the display."""

    def close(self) -> None:
        """No more is to come."""


class Lines(Progress):
    """A plain line every half minute, for logs of batch jobs."""

    def __init__(self, name: str, start: int, steps: int):
        self._name, self._start, self._steps, self._step = name, start, steps, start
        self._begin = self._last = time.monotonic()
        self._loss, self._evaluation = "", ""

    def update(self, step: int, loss: float | None = None, evaluation: str | None = None) -> None:
        self._step = step
        if loss is not None:
            self._loss = f", loss {loss:.3g}"
        if evaluation is not None:
            self._evaluation = f", {evaluation}"
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._line()

    def say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._step > self._start:
            self._line()

    def _line(self) -> None:
        self._last = time.monotonic()
        spent = self._last - self._begin
        left = spent / (self._step - self._start) * (self._steps - self._step)
        times = f"{_clock(spent)} spent, {_clock(left)} left"
        self.say(f"{self._name}: step {self._step:,} of {self._steps:,}{self._loss}{self._evaluation}, {times}")


class Bar(Progress):
    """A bar with the loss, the latest evaluation and the time left."""

    def __init__(self, name: str, start: int, steps: int, console: Any):
        from rich import progress

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[loss]}"),
            progress.TextColumn("{task.fields[evaluation]}"),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._task = self._bar.add_task(name, total=steps, completed=start, loss="", evaluation="")
        self._bar.start()

    def update(self, step: int, loss: float | None = None, evaluation: str | None = None) -> None:
        fields = {} if loss is None else {"loss": f"loss {loss:.3g}"}
        if evaluation is not None:
            fields["evaluation"] = evaluation
        self._bar.update(self._task, completed=step, **fields)  # type: ignore[arg-type]  # fields are free

    def say(self, sentence: str) -> None:
        self._bar.console.print(sentence, highlight=False, markup=False)

    def close(self) -> None:
        self._bar.stop()


def make_progress(wanted: bool, name: str, start: int, steps: int) -> Progress:
    """A bar in a terminal or notebook, lines elsewhere, silence when not wanted."""
    if not wanted:
        return Progress()
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        return Bar(name, start, steps, console)
    return Lines(name, start, steps)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
