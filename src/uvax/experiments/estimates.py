"""How long it will take, from how long it took."""

import time
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from uvax.experiments.executors import Progress
from uvax.experiments.jobs import Job
from uvax.experiments.rows import provenance

# What the time of a trial depends on, besides the number of steps.
_COSTLY = ("class", "width", "depth", "heads", "members", "batch_size", "network", "q_width", "q_depth")


class Estimates:
    """Seconds of trials, by what they compute, learned from rows of this machine and from the trials just run.

    Rows of other processors say nothing about this one and are left out.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
        self._known: dict[Any, list[float]] = {}
        here = provenance(time.time())["cpu"]
        for row in rows:
            origin = row["provenance"]
            seconds = origin.get("seconds")
            if origin.get("cpu") == here and "reused_from" not in origin and seconds:
                self._add(row["config"], seconds)

    def seconds(self, config: Mapping[str, Any]) -> float | None:
        """Expected seconds of a trial; None when nothing like it was ever run here."""
        known = self._known.get(_signature(config))
        return None if not known else median(known) * _amount(config)

    def learn(self, job: Job, seconds: float) -> None:
        """A job that just ended. One that went on from a checkpoint was shorter than a whole one, which is rare."""
        if job.task == "trial":
            self._add(job.payload["config"], seconds)

    def total(self, configs: Iterable[Mapping[str, Any]], *, slots: int) -> tuple[float, int]:
        """Seconds for all that is known, divided over the slots, and how many trials are unknown."""
        each = [self.seconds(config) for config in configs]
        known = [seconds for seconds in each if seconds is not None]
        longest = max(known, default=0.0)
        return max(sum(known) / max(slots, 1), longest), len(each) - len(known)

    def left(
        self,
        waiting: Iterable[Job],
        running: Iterable[Job],
        progress: Mapping[str, Progress],
        begun: Mapping[str, float],
        *,
        slots: int,
    ) -> float | None:
        """Seconds until all is done; None as long as there is nothing to go by."""
        rest, unknown = [], 0
        rates = []  # seconds of whole trials that are running
        for job in running:
            done = progress.get(job.id, Progress()).done or 0.0
            whole = self._job_seconds(job)
            spent = time.monotonic() - begun[job.id]
            if done > 0.05:
                whole = spent / done
            if whole is None:
                unknown += 1
            else:
                rates.append(whole)
                rest.append(max(whole - spent, 0.0))
        for job in waiting:
            whole = self._job_seconds(job)
            if whole is None:
                unknown += 1
            else:
                rates.append(whole)
                rest.append(whole)
        if unknown and not rates:
            return None
        guess = sum(rates) / len(rates) if rates else 0.0
        return max((sum(rest) + unknown * guess) / max(slots, 1), max(rest, default=0.0))

    def _job_seconds(self, job: Job) -> float | None:
        return self.seconds(job.payload["config"]) if job.task == "trial" else None

    def _add(self, config: Mapping[str, Any], seconds: float) -> None:
        self._known.setdefault(_signature(config), []).append(seconds / _amount(config))


def _signature(config: Mapping[str, Any]) -> tuple[Any, ...]:
    hyperparameters = config.get("hyperparameters") or {}
    return (config.get("kind"), *(hyperparameters.get(name) for name in _COSTLY))


def _amount(config: Mapping[str, Any]) -> float:
    return float(config.get("steps") or 1)


def in_words(seconds: float) -> str:
    """'40 s', '12 min', '3 h 20 min'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
