"""Real processes: one job each, killed, refused, stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sleepy_trials

from uvax.errors import InvalidInput
from uvax.experiments.estimates import Estimates
from uvax.experiments.executors import LocalExecutor, worker_environment
from uvax.experiments.jobs import trial_job
from uvax.experiments.rows import RowStore, Trial
from uvax.experiments.runner import run_jobs

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH")))))


def job(tmp_path, seed=0, **config):
    trial = Trial("sleepy", {"kind": sleepy_trials.KIND, "steps": 20, **config}, seed)
    return trial_job(trial, title=f"seed {seed}", work=tmp_path / ".work", data=None, command="uvax experiment sleepy")


def run(jobs, executor, tmp_path, **options):
    return run_jobs(jobs, executor, results=tmp_path, estimates=Estimates(), show=lambda s: None, **options)


@pytest.mark.slow
def test_killed_refused_and_finished_trials(tmp_path):
    """One worker is killed in the middle and goes on, one dies every time, one is refused, one is fine."""
    jobs = [
        job(tmp_path, 0),
        job(tmp_path, 1, die_at=7),
        job(tmp_path, 2, die_at=5, die_always=True),
        job(tmp_path, 3, refuse=True),
    ]
    summary = run(jobs, LocalExecutor(tmp_path, workers=2), tmp_path, retries=1)
    rows = {row["seed"]: row for row in RowStore(tmp_path).read().rows}
    assert summary.done == 2
    assert set(rows) == {0, 1}
    assert rows[1]["result"]["begin"] == 7  # nothing of what was saved is done again
    assert rows[1]["result"]["attempt"] == 2
    assert rows[0]["result"]["threads"] == "1"
    assert rows[0]["provenance"]["command"] == "uvax experiment sleepy"
    assert sorted(summary.failed) == [
        "seed 2 failed after 2 attempts: the worker was killed by SIGKILL",
        "seed 3 failed: this trial cannot be",
    ]
    assert not Path(jobs[0].work).exists()  # finished trials leave no work folder


@pytest.mark.slow
def test_stopping_ends_the_workers_and_keeps_their_work(tmp_path):
    executor = LocalExecutor(tmp_path, workers=1)
    running = job(tmp_path, 0, steps=10_000, sleep=0.01)
    executor.start(running)
    counter = Path(running.work) / "counter"
    deadline = time.monotonic() + 120
    while not counter.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert executor.progress()[running.id].done is not None
    process = executor._running[running.id][1]
    executor.stop()
    assert process.returncode is not None
    reached = int(counter.read_text())
    assert 0 < reached < 10_000
    assert RowStore(tmp_path).finished() == set()


@pytest.mark.slow
def test_workers_end_when_the_runner_is_killed(tmp_path):
    """No orphan goes on computing after a SIGKILL of the runner, even of one that a script had started with &."""
    script = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path.insert(0, {HERE!r})
from pathlib import Path
from test_executors import job, LocalExecutor
tmp = Path({str(tmp_path)!r})
executor = LocalExecutor(tmp, workers=1)
executor.start(job(tmp, 0, steps=100_000, sleep=0.05))
time.sleep(600)
"""
    runner = subprocess.Popen([sys.executable, "-c", script])
    pid_file = Path(job(tmp_path, 0, steps=100_000, sleep=0.05).work) / "pid"
    deadline = time.monotonic() + 120
    while not pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    worker = int(pid_file.read_text())
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _alive(worker)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_one_thread_each_is_what_workers_are_told(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=somewhere")
    told = worker_environment(1)
    assert told["NPROC"] == told["OMP_NUM_THREADS"] == "1"
    assert told["XLA_FLAGS"].startswith("--xla_dump_to=somewhere ")
    assert "XLA_FLAGS" not in worker_environment(4)


@pytest.mark.parametrize("options", [{"workers": 0}, {"threads": 0}])
def test_nonsense_is_refused(tmp_path, options):
    with pytest.raises(InvalidInput, match="at least 1"):
        LocalExecutor(tmp_path, **options)
