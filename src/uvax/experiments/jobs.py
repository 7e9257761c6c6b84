"""Jobs: what an executor is given and what a worker does with it.

A job is plain JSON, so that it can cross to another process or machine. It is either a trial, which ends in a row, or
a collection, which ends in a dataset.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uvax.errors import unknown_name
from uvax.experiments.presets import imported
from uvax.experiments.rows import Trial

Progress = Callable[[float, str], None]  # share done, and a few words

# kind of a configuration -> the function that runs it: f(config, seed, *, data, work, progress) -> result.
# A kind of your own is "your_module:function" itself; the module must be importable where the trial runs.
KINDS = {
    "task_rejection": "uvax.experiments.trial:perform",
    "step_time": "uvax.experiments.timing:perform",
    "board": "uvax.experiments.board:perform",
    "novelty": "uvax.experiments.novelty:perform",
    "exploration": "uvax.experiments.exploration:perform",
}


@dataclass(frozen=True)
class Job:
    """`work` is a folder of the job's own, in which it finds what an earlier attempt left."""

    id: str
    title: str
    task: str  # "trial" or "collect"
    payload: Mapping[str, Any]
    work: str
    nice: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Job":
        return cls(**values)


def trial_job(trial: Trial, *, title: str, work: Path, data: Path | None, command: str, nice: int = 0) -> Job:
    """The job that runs a trial; `command` is what the user typed, for the row's provenance."""
    payload = {
        "experiment": trial.experiment,
        "config": dict(trial.config),
        "seed": trial.seed,
        "data": None if data is None else str(data.resolve()),
        "command": command,
    }
    return Job(trial.id, title, "trial", payload, str((work / trial.id).resolve()), nice)


def collect_job(
    size: int, *, preset: str, folder: Path, work: Path, recording: Path | None = None, nice: int = 0
) -> Job:
    """The job that makes the dataset of a size, or goes on making it; from recorded actions, if there are any."""
    payload = {
        "size": size,
        "preset": preset,
        "folder": str(folder.resolve()),
        "recording": None if recording is None else str(recording.resolve()),
    }
    name = f"collect-{folder.name}"
    title = f"{'collecting' if recording is None else 'replaying'} size {size}"
    return Job(name, title, "collect", payload, str((work / name).resolve()), nice)


def perform(job: Job, progress: Progress) -> dict[str, Any] | None:
    """Do the job here and now. A trial's row is returned, not stored; a collection returns None."""
    if job.task == "collect":
        _collect(job, progress)
        return None
    return _trial(job, progress)


def finish(job: Job) -> None:
    """Remove what a finished job no longer needs."""
    shutil.rmtree(job.work, ignore_errors=True)


def _trial(job: Job, progress: Progress) -> dict[str, Any]:
    payload = job.payload
    trial = Trial(payload["experiment"], payload["config"], payload["seed"], started=time.time())
    kind = str(trial.config.get("kind"))
    if kind not in KINDS and ":" not in kind:
        raise unknown_name("kind of trial", kind, KINDS)
    run = imported(KINDS.get(kind, kind), "kind of trial")
    data = None if payload["data"] is None else Path(payload["data"])
    row = trial.row(run(trial.config, trial.seed, data=data, work=Path(job.work), progress=progress))
    row["provenance"] |= {"command": payload["command"], "device": _device()}
    return row


def _device() -> str:
    import jax

    return jax.devices()[0].device_kind


def _collect(job: Job, progress: Progress) -> None:
    from uvax.collection import collect, replay
    from uvax.envs import GoToDoor

    payload = job.payload
    folder = Path(payload["folder"])
    if payload["recording"] is not None:
        replay(payload["recording"], out=folder, resume=folder.exists())
        return
    collect(
        GoToDoor(size=payload["size"]),
        preset=payload["preset"],
        out=folder,
        resume=folder.exists(),
        progress=lambda report: progress(report.done, str(report)),
    )
