"""Where jobs run: processes of this machine, or (in `ray_executor`) a cluster.

An executor starts jobs and says what became of them. Retrying and counting is the runner's work.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from uvax.errors import InvalidInput
from uvax.experiments.jobs import Job
from uvax.experiments.worker import REFUSED
from uvax.files import make_folder, write_json_atomic

LOG = "worker.log"
_SECONDS_TO_STOP = 60.0  # a worker that is told to stop finishes its chunk and saves first


@dataclass(frozen=True)
class Progress:
    """How far a running job is; `done` is None until it has said so."""

    done: float | None = None
    text: str = "starting"


@dataclass(frozen=True)
class Outcome:
    """What became of a job. A crash may be tried again, a refusal will be refused again."""

    job: Job
    status: Literal["done", "crashed", "refused"]
    message: str = ""


@runtime_checkable
class Executor(Protocol):
    """Starts jobs; `poll` waits a moment and returns those that ended since."""

    @property
    def description(self) -> str: ...

    @property
    def slots(self) -> int: ...  # jobs that it takes now

    @property
    def capacity(self) -> int: ...  # jobs that run at the same time, at most

    def start(self, job: Job) -> None: ...

    def poll(self, seconds: float) -> list[Outcome]: ...

    def progress(self) -> dict[str, Progress]: ...  # of the jobs at work, without those that wait in its own queue

    def stop(self) -> None: ...


class LocalExecutor:
    """Processes of this machine: `workers` at a time, each with `threads` threads of XLA.

    One single-threaded process per core is faster for small networks than threads that share one step. A worker that
    dies takes nothing with it: what it had saved is where its next attempt begins.
    """

    def __init__(self, store: Path, *, workers: int | None = None, threads: int = 1):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if threads < 1 or (workers is not None and workers < 1):
            raise InvalidInput(f"workers and threads must be at least 1, got {workers} and {threads}")
        self._workers = max(1, cores // threads) if workers is None else workers
        self._store, self._threads = store, threads
        self._running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}

    @property
    def description(self) -> str:
        plural = "processes" if self._workers > 1 else "process"
        threads = "one thread" if self._threads == 1 else f"{self._threads} threads"
        return f"{self._workers} {plural} on this machine, {threads} each"

    @property
    def slots(self) -> int:
        return self._workers - len(self._running)

    @property
    def capacity(self) -> int:
        return self._workers

    def start(self, job: Job) -> None:
        folder = Path(job.work)
        make_folder(folder)
        for name in ("progress.json", "error.json"):
            (folder / name).unlink(missing_ok=True)
        described = {"job": job.to_json(), "store": str(self._store.resolve()), "parent": os.getpid()}
        write_json_atomic(folder / "job.json", described)
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "uvax.experiments.worker", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **worker_environment(self._threads)},
                start_new_session=True,  # Ctrl-C in the terminal reaches the runner, which tells them in order
            )
        self._running[job.id] = (job, process)

    def poll(self, seconds: float) -> list[Outcome]:
        end = time.monotonic() + seconds
        while True:
            ended = [(job, p.returncode) for job, p in self._running.values() if p.poll() is not None]
            if ended or time.monotonic() >= end:
                break
            time.sleep(min(0.1, seconds))
        for job, _ in ended:
            del self._running[job.id]
        return [_outcome(job, code) for job, code in ended]

    def progress(self) -> dict[str, Progress]:
        return {name: _read_progress(Path(job.work)) for name, (job, _) in self._running.items()}

    def stop(self) -> None:
        """Ask every worker to save and end; those that do not within a minute are killed."""
        for _, process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        end = time.monotonic() + _SECONDS_TO_STOP
        for _, process in self._running.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


def worker_environment(threads: int) -> dict[str, str]:
    """Environment variables, to be set before jax is imported: threads of XLA and the BLAS libraries, memory."""
    variables = {name: str(threads) for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    if threads == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        variables["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    # Several processes on one GPU must share its memory instead of each reserving most of it.
    variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return variables | compilation_cache()


def compilation_cache() -> dict[str, str]:
    """The cache of compiled programs that this process uses, for those it starts."""
    if "jax" not in sys.modules:
        return {}
    import jax

    folder = jax.config.values["jax_compilation_cache_dir"]
    if folder is None:
        return {}
    seconds = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(seconds)}


def _outcome(job: Job, code: int) -> Outcome:
    if code == 0:
        return Outcome(job, "done")
    if code == REFUSED:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return Outcome(job, "refused", json.loads((Path(job.work) / "error.json").read_text())["error"])
    if code < 0:
        with contextlib.suppress(ValueError):
            return Outcome(job, "crashed", f"the worker was killed by {signal.Signals(-code).name}")
    return Outcome(job, "crashed", f"the worker ended with code {code}: {_last_words(Path(job.work) / LOG)}")


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip()[:300] if lines else "it left no message"


def _read_progress(folder: Path) -> Progress:
    try:
        return Progress(**json.loads((folder / "progress.json").read_text()))
    except (OSError, ValueError, TypeError):
        return Progress()
