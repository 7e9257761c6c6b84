"""Jobs on a Ray cluster: the same trials, scheduled by CPUs and GPUs.

Rows are returned to the driver, which stores them, so that workers need not see its disk. Where they do (a shared
filesystem), datasets are read from it and a trial that is tried again goes on from its checkpoint; elsewhere the
dataset travels through Ray's object store and a lost trial starts anew.
"""

import os
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from uvax.errors import InvalidInput, UvaxError
from uvax.experiments.executors import Outcome, Progress, worker_environment
from uvax.experiments.jobs import Job, finish, perform
from uvax.experiments.rows import RowStore
from uvax.files import make_folder


class RayExecutor:
    """A cluster at `address`, or one of this machine when there is none; a trial reserves `cpus` and `gpus`.

    All jobs are handed over at once, so that a cluster that grows with demand sees the demand.
    """

    def __init__(self, results: Path, *, address: str | None = None, cpus: float = 1.0, gpus: float = 0.0):
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise InvalidInput(f"a trial needs some resources, got {cpus} CPUs and {gpus} GPUs")
        self._ray = _ray()
        self._mine = not self._ray.is_initialized()
        if self._mine:
            _check_reachable(address)
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
                raise InvalidInput(f"{where} cannot be used: {str(error).splitlines()[0]}") from error
        self._store, self._cpus, self._gpus = RowStore(results), cpus, gpus
        self._where = f"the Ray cluster at {address}" if address else "a Ray cluster of this machine"
        self._notes = self._ray.remote(_Notes).options(num_cpus=0).remote()
        self._data: dict[str, Any] = {}
        self._running: dict[Any, Job] = {}

    @property
    def description(self) -> str:
        total = self._ray.cluster_resources()
        each = f"{self._cpus:g} CPU" + (f" and {self._gpus:g} GPU" if self._gpus else "")
        return f"{self._where} ({total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs), {each} for each trial"

    @property
    def slots(self) -> int:
        return 1  # the queue is Ray's

    @property
    def capacity(self) -> int:
        total = self._ray.cluster_resources()
        wanted = {"CPU": self._cpus, "GPU": self._gpus}
        return max(1, min(int(total.get(name, 0.0) / each) for name, each in wanted.items() if each > 0))

    def start(self, job: Job) -> None:
        make_folder(Path(job.work))
        data = job.payload.get("data")
        if data is not None and data not in self._data:
            self._data[data] = self._ray.put(Path(data).read_bytes())
        # A fresh process for each trial, as on one machine.
        remote = self._ray.remote(max_calls=1)(_work).options(
            num_cpus=self._cpus,
            num_gpus=self._gpus,
            max_retries=0,  # the runner counts attempts
            runtime_env={"env_vars": worker_environment(max(1, int(self._cpus)))},
        )
        # In a list, so that Ray fetches the dataset only when the worker asks for it.
        held = [self._data[data]] if data is not None else []
        self._running[remote.remote(job.to_json(), held, self._notes)] = job

    def poll(self, seconds: float) -> list[Outcome]:
        if not self._running:
            return []
        ended, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=seconds)
        return [self._outcome(reference) for reference in ended]

    def progress(self) -> dict[str, Progress]:
        try:
            notes = self._ray.get(self._notes.read.remote(), timeout=10)
        except self._ray.exceptions.RayError:
            notes = {}
        return {job.id: Progress(*notes[job.id]) for job in self._running.values() if job.id in notes}

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._mine and self._ray.is_initialized():
            self._ray.shutdown()

    def _outcome(self, reference: Any) -> Outcome:
        job = self._running.pop(reference)
        try:
            row, refusal = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return Outcome(job, "crashed", f"the worker failed: {str(error.cause)[:300]}")
        except self._ray.exceptions.RayError as error:
            return Outcome(job, "crashed", f"the worker was lost ({type(error).__name__})")
        if refusal is not None:
            return Outcome(job, "refused", refusal)
        if row is not None:
            self._store.append(row)
        return Outcome(job, "done")


class _Notes:
    """How far each job is; lives on the cluster."""

    def __init__(self) -> None:
        self._notes: dict[str, tuple[float, str]] = {}

    def write(self, name: str, done: float, text: str) -> None:
        self._notes[name] = (done, text)

    def read(self) -> dict[str, tuple[float, str]]:
        return self._notes


def _work(described: dict[str, Any], data: list[Any], notes: Any) -> tuple[dict[str, Any] | None, str | None]:
    """A job on a worker: (row, None), or (None, why it was refused)."""
    import ray

    job = Job.from_json(described)

    def tell(done: float, text: str) -> None:
        notes.write.remote(job.id, done, text)

    with tempfile.TemporaryDirectory() as folder:
        path = job.payload.get("data")
        if path is not None and not os.path.exists(path):
            copy = Path(folder) / Path(path).name
            copy.write_bytes(ray.get(data[0]))
            job = replace(job, payload={**job.payload, "data": str(copy)})
        if not (os.path.isdir(job.work) and os.access(job.work, os.W_OK)):  # made by the driver: is its disk ours?
            job = replace(job, work=str(Path(folder) / job.id))
        try:
            row = perform(job, tell)
        except UvaxError as error:
            return None, str(error)
    finish(job)
    return row, None


def _check_reachable(address: str | None) -> None:
    """Ray itself would try for many minutes to reach an address at which nothing listens."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto", "local" and the like
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"no Ray cluster answers at {address} ({error}); start one with: ray start --head"
        ) from error


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InvalidInput("--executor ray needs Ray, which is not installed: pip install 'uvax[ray]'") from None
    return ray
