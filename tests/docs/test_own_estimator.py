"""The example of an estimator of one's own: in `fit`, in `task_rejection`, saved and loaded, as a program."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import uvax
from catalogue import PROBES, example
from uvax.estimators import DQN

own = example("own_estimator")


@pytest.mark.slow
def test_the_program_runs(monkeypatch, capsys):
    arguments = ["--transitions", "3000", "--steps", "20", "--episodes", "20"]
    monkeypatch.setattr(sys, "argv", ["own_estimator.py", *arguments])
    own.main()
    printed = capsys.readouterr().out
    assert "CountedDQN" in printed
    assert "return" in printed


def test_it_fits_and_loads_like_any_other(tmp_path):
    """Counts are of what was seen: 1 / (1 + n) at each point of the data, 1 where nothing was."""
    estimator = own.CountedDQN(DQN(width=16, depth=1, batch_size=None), bits=8)
    data = PROBES["the task flips the reward"].data
    fit = uvax.fit(estimator, data, steps=10, seed=0, progress=False)
    obs, task = jnp.eye(4), jnp.tile(jnp.eye(2)[:1], (4, 1))
    uncertainty = np.asarray(fit.uncertainty(obs, task))
    np.testing.assert_allclose(uncertainty[0], 1.0 / (1.0 + 10 * len(data) / 4), rtol=1e-6)
    assert (uncertainty <= 1.0).all()
    assert uncertainty[1:].max() == 1.0

    fit.save(tmp_path / "own.safetensors")
    again = uvax.load_fit(tmp_path / "own.safetensors", estimator)
    np.testing.assert_array_equal(again.uncertainty(obs, task), uncertainty)
    np.testing.assert_array_equal(again.value(obs, task), fit.value(obs, task))
