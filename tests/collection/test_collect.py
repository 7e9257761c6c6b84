"""Collecting into a folder: whole files, resumption to the same bits, refusals."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import uvax
from uvax.collection import CollectionSettings, collect
from uvax.envs import GoToDoor
from uvax.errors import InvalidInput
from uvax.estimators import DQN

ENV = GoToDoor(size=5)
TINY = CollectionSettings(steps=800, environments=8, learning_starts=80, dqn=DQN(width=8, depth=1, batch_size=8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("collected") / "size5"
    collect(ENV, settings=TINY, seed=3, out=out, progress=False)
    return out


def test_a_collection_is_a_dataset_with_its_provenance(folder):
    data = uvax.load(folder)
    assert len(data) == 800
    assert data.obs.dtype == np.int8
    assert data.header["environment"] == {"name": "GoToDoor", "size": 5, "max_steps": 50}
    assert data.header["seed"] == 3
    assert data.header["collection"]["dqn"]["width"] == 8
    assert data.header["greedy_policy_score"]["episodes"] == 2_000
    # Each environment's episodes in a row: two of 50 steps for each of 8 environments.
    assert [s.stop - s.start for s in data.episodes()] == [50] * 16
    assert data.truncated.sum() == 16
    assert not (folder / "checkpoints").exists()


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(folder):
    again = collect(ENV, settings=TINY, seed=3, progress=False)
    assert again.checksum == uvax.load(folder).checksum
    assert collect(ENV, settings=TINY, seed=4, progress=False).checksum != again.checksum


def test_reports_come_in_order():
    seen = []
    collect(ENV, settings=TINY, seed=3, progress=seen.append)
    done = [report.done for report in seen]
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert seen[-1].updates == seen[-1].updates_in_all == 100


def test_a_folder_is_never_written_over_silently(folder, tmp_path):
    with pytest.raises(InvalidInput, match="already holds a finished dataset"):
        collect(ENV, settings=TINY, seed=3, out=folder, progress=False)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not a collection of uvax"):
        collect(ENV, settings=TINY, out=tmp_path, progress=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_resuming_a_finished_collection_loads_it(folder):
    assert collect(ENV, settings=TINY, seed=3, out=folder, resume=True, progress=False).checksum


def test_resuming_with_other_settings_is_refused_and_says_which(folder):
    with pytest.raises(InvalidInput, match="seed was 3, is 5"):
        collect(ENV, settings=TINY, seed=5, out=folder, resume=True, progress=False)


_RUN = """
import uvax.collection.run as c
c._CHECKPOINT_SECONDS = 0.0
from uvax.envs import GoToDoor
from uvax.collection import CollectionSettings, collect
from uvax.estimators import DQN
tiny = CollectionSettings(steps=800, environments=8, learning_starts=80, dqn=DQN(width=8, depth=1, batch_size=8))
collect(GoToDoor(size=5), settings=tiny, seed=3, out={out!r}, resume=True, progress=lambda r: print(r.done, flush=True))
"""


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bits(folder, tmp_path):
    out = tmp_path / "killed"
    command = [sys.executable, "-c", _RUN.format(out=str(out))]
    for stop_after in (2, 5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
            assert process.stdout is not None
            for _ in range(stop_after):
                assert process.stdout.readline()
            time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert not (out / "data.safetensors").exists()
    finished = collect(ENV, settings=TINY, seed=3, out=out, resume=True, progress=False)
    assert finished.checksum == uvax.load(folder).checksum
