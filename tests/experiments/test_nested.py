"""Small ensembles inside a large one: one training, several trials."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.envs import GoToDoor
from uvax.errors import InvalidInput
from uvax.estimators import BDQNP
from uvax.experiments import run as run_module
from uvax.experiments import table1
from uvax.experiments.experiment import Scope
from uvax.experiments.nested import configurations, contained
from uvax.experiments.presets import Training
from uvax.experiments.rows import RowStore, Trial
from uvax.experiments.runner import contained_in, reuse
from uvax.experiments.timing import random_dataset
from uvax.experiments.trial import run_trial, trial_config
from uvax.nets import ensemble
from uvax.training import fit

SMALL = {"width": 16, "depth": 1, "batch_size": 16, "target_period": 4}
TRAINING = Training(steps=6, evaluations=3, evaluation_episodes=20, final_episodes=30)


@pytest.fixture(scope="module")
def data():
    return random_dataset(GoToDoor(size=5), 500, seed=0)


@pytest.mark.parametrize(("unrolled", "prior_scale"), [(40, 1.0), (1, 1.0), (2, 0.0)])
def test_the_first_members_are_the_smaller_ensemble(data, unrolled, prior_scale, monkeypatch):
    monkeypatch.setattr(ensemble, "MAX_UNROLLED", unrolled)
    large = fit(BDQNP(members=3, prior_scale=prior_scale, **SMALL), data, 20, seed=3, progress=False)
    alone = fit(BDQNP(members=2, prior_scale=prior_scale, **SMALL), data, 20, seed=3, progress=False)
    small, state = large.estimator.first(large.state, 2)
    assert small == alone.estimator
    obs, task = jnp.asarray(data.obs[:50], jnp.float32), jnp.asarray(data.task[:50], jnp.float32)
    for name in ("value", "uncertainty"):
        found, expected = getattr(small, name)(state, obs, task), getattr(alone, name)(obs, task)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert not np.allclose(expected, getattr(large, name)(obs, task), rtol=1e-2)


def test_members_that_depend_on_each_other_are_not_taken_apart(data):
    estimator = BDQNP(members=3, shared_bootstrap=True, **SMALL)
    state = estimator.init(data.spec, key=jax.random.key(0))
    with pytest.raises(InvalidInput, match="shared_bootstrap is True; expected False"):
        estimator.first(state, 2)
    with pytest.raises(InvalidInput, match="members is 4; expected at most 3"):
        BDQNP(members=3, **SMALL).first(state, 4)


def nested_config(data, training=TRAINING):
    return trial_config("bdqnp3", 5, data.checksum, preset="smoke", training=training, first_members=(2,))


@pytest.fixture(scope="module")
def whole(data):
    return run_trial(nested_config(data), 0, data)


@pytest.mark.slow
def test_one_trial_gives_the_rows_of_the_smaller_ensembles(data, whole):
    row = Trial("t", nested_config(data), 0).row(whole)
    parts = list(contained(row))
    assert [part["config"]["hyperparameters"]["members"] for part in parts] == [3, 2]
    assert [part["config"]["method"] for part in parts] == ["bdqnp3", "bdqnp"]
    alone = trial_config("bdqnp", 5, data.checksum, preset="smoke", hyperparameters={"members": 2}, training=TRAINING)
    assert parts[1]["config"] == alone
    expected, found = run_trial(alone, 0, data), parts[1]["result"]
    assert found["curve"]["return"] == pytest.approx(expected["curve"]["return"])
    assert found["best"]["step"] == expected["best"]["step"]
    assert found["final"]["return"] == pytest.approx(expected["final"]["return"])
    assert "explorer" not in found
    assert found["seconds"] == {}
    # The large ensemble's own numbers are what they would be without.
    own = parts[0]["result"]
    assert own["curve"]["return"] == row["result"]["curve"]["return"]
    assert not [name for name in (*own["curve"], *own["best"], *own["last"]) if name.startswith("first")]


@pytest.mark.slow
def test_a_killed_trial_keeps_the_best_of_every_ensemble(data, whole, tmp_path):
    looks = itertools.count(1)

    def killed(done, text):
        if text.startswith("step") and next(looks) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(nested_config(data), 0, data, work=tmp_path / "cut", progress=killed)
    again = run_trial(nested_config(data), 0, data, work=tmp_path / "cut")
    for name in ("best", "final"):
        found, expected = (r["smaller"]["2"][name] for r in (again, whole))
        assert {**found, "seconds": 0} == {**expected, "seconds": 0}


def test_what_a_larger_training_gives_is_not_run(tmp_path):
    scope = Scope(preset="cpu", sizes=(5,), methods=("bdqnp3", "bdqnp15", "bdqnp35", "uvu"), seeds=1)
    trials = table1.trials(scope, {5: "x"}, [])
    by_method = {trial.config["method"]: trial for trial in trials}
    assert contained_in(trials) == {by_method["bdqnp3"].id, by_method["bdqnp15"].id}
    assert contained_in([by_method["bdqnp15"], by_method["bdqnp3"]]) == set()
    other_seed = Trial("table1", by_method["bdqnp15"].config, 1)
    assert other_seed.id not in contained_in([by_method["bdqnp35"], other_seed])

    store = RowStore(tmp_path)
    result = {"status": "finished", "best": {"return": 3.0}, "explorer": {}}
    store.append(by_method["bdqnp35"].row({**result, "smaller": {"15": {"best": {"return": 2.0}, "seconds": {}}}}))
    left = reuse([by_method["bdqnp15"], by_method["bdqnp3"]], store.read().rows, store)
    assert left == [by_method["bdqnp3"]]  # its part is missing in that row
    taken = next(row for row in store.read().rows if row["config"]["method"] == "bdqnp15")
    assert taken["trial_id"] == by_method["bdqnp15"].id
    assert taken["result"] == {"status": "finished", "best": {"return": 2.0}, "seconds": {}}
    assert taken["provenance"]["reused_from"] == f"table1/{by_method['bdqnp35'].id}"
    # The ablation's own ensemble of 35 is the same training.
    plain = dict(configurations(by_method["bdqnp35"].config))[None]
    assert reuse([Trial("ablation", plain, 0)], store.read().rows, store) == []


def test_a_plan_counts_only_what_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "_checksum", lambda path, size: "x")
    settings = run_module.Settings(preset="cpu", sizes=(5,), methods=("bdqnp3", "bdqnp35"), seeds=1)
    places = run_module.Places(data=tmp_path / "data", results=tmp_path)
    (tmp_path / "data" / "size5").mkdir(parents=True)
    places.dataset(5, "cpu").touch()
    plan = run_module.make_plan(table1.EXPERIMENT, settings, places)
    said = plan.sentences(run_module.LocalExecutor(tmp_path, workers=1))
    assert "which take no time of their own: 1." in " ".join(said)
