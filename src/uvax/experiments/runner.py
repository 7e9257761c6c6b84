"""From a list of trials to rows: what is missing is run, what crashes is tried again, what fails is said."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uvax.experiments.estimates import Estimates
from uvax.experiments.executors import Executor, Progress
from uvax.experiments.jobs import Job
from uvax.experiments.nested import configurations, contained
from uvax.experiments.presets import changes
from uvax.experiments.rows import RowStore, Trial, trial_id
from uvax.files import append_jsonl

FAILED = "failed"  # folder beside the rows, a file for each experiment


@dataclass(frozen=True)
class Snapshot:
    """How a run stands, for whoever shows it."""

    done: int
    total: int
    running: dict[str, tuple[str, Progress]]  # id -> title, progress
    failed: list[str]
    seconds_left: float | None
    waiting: int


@dataclass
class Summary:
    """How a run ended: the number of jobs done, and a sentence for each that failed."""

    done: int = 0
    failed: list[str] = field(default_factory=list)


def missing(trials: Iterable[Trial], rows: Iterable[dict[str, Any]]) -> list[Trial]:
    """The trials that have no row, each once."""
    finished = {row["trial_id"] for row in rows}
    wanted = {trial.id: trial for trial in trials}
    return [trial for name, trial in wanted.items() if name not in finished]


def reuse(trials: Sequence[Trial], rows: Sequence[dict[str, Any]], store: RowStore) -> list[Trial]:
    """Take over what another experiment has run already; returns the trials that are still missing.

    A trial is decided by its configuration and seed, not by which experiment asked for it. The new row keeps the
    result and the provenance of the old one, and names it; what differs from the preset is said anew, since the preset
    may have changed. The training of a large ensemble also gives smaller ones.
    """
    original = [row for row in rows if "reused_from" not in row["provenance"]]
    every = [*(part for row in original for part in contained(row)), *original]
    known = {trial_id("", row["config"], row["seed"]): row for row in every}
    left = []
    for trial in trials:
        row = known.get(trial_id("", trial.config, trial.seed))
        if row is None:
            left.append(trial)
            continue
        origin = f"{row['experiment']}/{row['trial_id']}"
        provenance = {**row["provenance"], "reused_from": origin}
        anew = {"changes": changes(trial.config)} if "changes" in row["result"] else {}
        store.append({**trial.row({**row["result"], **anew}), "provenance": provenance})
    return left


def contained_in(trials: Sequence[Trial]) -> set[str]:
    """The ids of those trials whose result another of them will give too, so that they need not run."""
    given = {trial_id("", config, trial.seed) for trial in trials for _members, config in configurations(trial.config)}
    return {trial.id for trial in trials if trial_id("", trial.config, trial.seed) in given}


def run_jobs(
    jobs: Sequence[Job],
    executor: Executor,
    *,
    results: Path,
    estimates: Estimates,
    show: Callable[[Snapshot], None],
    retries: int = 2,
    poll_seconds: float = 1.0,
    more: Callable[[Set[str]], Sequence[Job]] | None = None,
) -> Summary:
    """Run jobs to the end of the list. Ctrl-C stops the workers at their next checkpoint and is raised again.

    A job that crashes is put back, at most `retries` times, and goes on from its last checkpoint; one that is refused
    is not. Either way a failure ends up in the summary and in `failed/` beside the rows.

    When a job has ended and none waits, `more(ids of the failed)` is asked for jobs that it made possible.
    """
    waiting = deque(jobs)
    total = len(waiting)
    lost: set[str] = set()
    attempts: dict[str, int] = {}
    begun: dict[str, float] = {}  # since when a job is at work, not in the queue of a cluster
    running: dict[str, Job] = {}  # the executor has these
    summary = Summary()

    def snapshot() -> Snapshot:
        progress = executor.progress()
        at_work = {name: job for name, job in running.items() if name in progress}
        queued = [job for name, job in running.items() if name not in progress]
        for name in at_work:
            begun.setdefault(name, time.monotonic())
        left = estimates.left([*waiting, *queued], at_work.values(), progress, begun, slots=executor.capacity)
        state = {name: (job.title, progress[name]) for name, job in at_work.items()}
        return Snapshot(summary.done, total, state, summary.failed, left, len(waiting) + len(queued))

    try:
        while waiting or running:
            while waiting and executor.slots > 0:
                job = waiting.popleft()
                attempts[job.id] = attempts.get(job.id, 0) + 1
                begun.pop(job.id, None)
                running[job.id] = job
                executor.start(job)
            show(snapshot())
            for outcome in executor.poll(poll_seconds):
                job = running.pop(outcome.job.id)
                if outcome.status == "done":
                    summary.done += 1
                    if job.id in begun:
                        estimates.learn(job, time.monotonic() - begun[job.id])
                elif outcome.status == "crashed" and attempts[job.id] <= retries:
                    waiting.append(job)
                else:
                    tried = f" after {attempts[job.id]} attempts" if attempts[job.id] > 1 else ""
                    summary.failed.append(f"{job.title} failed{tried}: {outcome.message}")
                    lost.add(job.id)
                    _record_failure(results, job, outcome.message, attempts[job.id])
                if more is not None and not waiting:
                    waiting.extend(more(lost))
                    total += len(waiting)
        show(snapshot())
    except BaseException:
        executor.stop()
        raise
    return summary


def _record_failure(results: Path, job: Job, message: str, attempts: int) -> None:
    """So that a report can say what is missing and why, after the terminal is gone."""
    experiment = job.payload.get("experiment", "collection")
    row = {
        "experiment": experiment,
        "trial_id": job.id,
        "title": job.title,
        "error": message,
        "attempts": attempts,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
    }
    append_jsonl(results / FAILED / f"{experiment}.jsonl", row)
