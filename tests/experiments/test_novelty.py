"""What RND's error sees: the measure itself, and a small training of u alone."""

import numpy as np
import pytest

from uvax.envs import GoToDoor
from uvax.experiments import novelty
from uvax.experiments.timing import random_dataset

NORTH, SOUTH, WEST, EAST, NOWHERE = range(5)


def test_told_apart_compares_impossible_with_well_known_tasks():
    wall = np.array([NORTH, SOUTH, WEST, EAST, NOWHERE, NOWHERE])
    # By the first action every impossible task stands above the well-known ones, by the second half of them.
    error = np.array([[9.0, 9.0], [1.0, 2.0], [2.0, 2.0], [7.0, 7.0], [3.0, 1.0], [4.0, 3.0]])
    found = novelty.told_apart(error, wall)
    assert found["auroc"] == pytest.approx((1.0 + 0.5) / 2)
    assert found["known"] == pytest.approx(np.mean(error[[1, 2]]))
    assert found["random"] == pytest.approx(np.mean(error[[0, 3]]))
    assert found["impossible"] == pytest.approx(np.mean(error[[4, 5]]))


def test_u_learns_g_and_goes_on_to_the_same_numbers_after_a_kill(tmp_path):
    data = random_dataset(GoToDoor(size=5), 500, seed=0)
    path = tmp_path / "data.safetensors"
    data.save(path)
    config = novelty.novelty_config(5, data.checksum, "smoke", {"learning_rate": 3e-3})

    def run(work, progress=lambda done, text: None):
        return novelty.perform(config, 0, data=path, work=tmp_path / work, progress=progress)

    whole = run("whole")
    losses = whole["curve"]["train_loss"]
    assert losses[-1] < losses[0]
    assert len(losses) == config["evaluations"]
    assert 0.0 <= whole["last"]["auroc"] <= 1.0

    def stop(done, text):
        if done > 0.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("killed", stop)
    again = run("killed")
    assert {k: v for k, v in again["last"].items() if k != "seconds"} == {
        k: v for k, v in whole["last"].items() if k != "seconds"
    }
