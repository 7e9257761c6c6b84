"""The same trials on a real Ray cluster of two workers, one of which is killed in the middle of a trial."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import sleepy_trials

from uvax.errors import InvalidInput
from uvax.experiments.estimates import Estimates
from uvax.experiments.jobs import trial_job
from uvax.experiments.ray_executor import RayExecutor
from uvax.experiments.rows import RowStore, Trial
from uvax.experiments.runner import run_jobs

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'uvax[ray]'")

# Ray's own code warns on the way; ours is tested without it.
pytestmark = [pytest.mark.slow, pytest.mark.extras, pytest.mark.filterwarnings("ignore")]

HERE = str(Path(__file__).parent)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    path = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()


def kill_when_counting(work: Path, killed: list[int]) -> None:
    """SIGKILL to the process that works in the folder, once it has counted to five."""
    deadline = time.monotonic() + 500
    while time.monotonic() < deadline:
        if (work / "counter").exists() and int((work / "counter").read_text()) >= 5:
            killed.append(int((work / "pid").read_text()))
            os.kill(killed[0], signal.SIGKILL)
            return
        time.sleep(0.02)


def test_a_killed_worker_costs_no_trial(tmp_path, cluster):
    def job(seed: int, **config):
        trial = Trial("sleepy", {"kind": sleepy_trials.KIND, "steps": 60, "sleep": 0.05, **config}, seed)
        return trial_job(trial, title=f"seed {seed}", work=tmp_path / ".work", data=None, command="uvax test")

    jobs = [job(0), job(1), job(2, refuse=True)]
    killed: list[int] = []
    killer = threading.Thread(target=kill_when_counting, args=(Path(jobs[0].work), killed))
    killer.start()
    executor = RayExecutor(tmp_path, cpus=1.0)
    seen = []
    summary = run_jobs(
        jobs, executor, results=tmp_path, estimates=Estimates(), show=lambda s: seen.append(s), poll_seconds=0.2
    )
    killer.join()
    executor.stop()
    rows = {row["seed"]: row["result"] for row in RowStore(tmp_path).read().rows}
    assert summary.failed == ["seed 2 failed: this trial cannot be"]
    assert set(rows) == {0, 1}
    assert killed
    assert killed[0] != rows[0]["pid"]
    assert rows[0]["begin"] >= 5  # it went on where the killed one had saved
    assert rows[0]["attempt"] == 2
    assert max(len(s.running) for s in seen) >= 2
    assert any(p.done for s in seen for _, p in s.running.values())


def test_a_cluster_that_is_not_there_is_said(tmp_path):
    with pytest.raises(InvalidInput, match="no Ray cluster answers"):
        RayExecutor(tmp_path, address="127.0.0.1:1")


def test_a_trial_needs_resources(tmp_path):
    with pytest.raises(InvalidInput, match="needs some resources"):
        RayExecutor(tmp_path, cpus=0.0, gpus=0.0)
