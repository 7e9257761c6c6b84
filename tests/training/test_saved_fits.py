"""A fit answers for single observations and batches, refuses nonsense, and comes back from its file."""

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax import storage
from uvax.data import from_arrays
from uvax.errors import DamagedFile, InvalidInput
from uvax.estimators import BDQNP, DQN, RND, UVU, Policy
from uvax.training import fit, load_fit
from uvax.training.fitted import Best, Fit, Status, first_difference


def untrained(estimator, data, seed=0) -> Fit:
    state = jax.jit(lambda: estimator.init(data.spec, key=jax.random.key(seed)))()
    return Fit(
        estimator, state, data.spec, 0, seed, Status("finished", 0, "finished after 0 steps"), Best(state, 0, 1.5)
    )


@pytest.fixture(scope="module")
def trained(data, linear):
    return fit(linear(), data, 20, seed=4, evaluate=lambda e, s, i: {"return": -i}, evaluations=2, progress=False)


def test_single_observations_batches_and_their_mixtures_agree(trained, data, linear):
    expected = np.concatenate([data.obs.astype(np.float32), data.task.astype(np.float32)], -1) @ trained.state["w"]
    np.testing.assert_allclose(trained.value(data.obs, data.task), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trained.uncertainty(data.obs, data.task), expected**2, rtol=1e-5, atol=1e-6)
    assert trained.value(data.obs[0], data.task[0]).shape == (3,)
    np.testing.assert_allclose(trained.value(data.obs[0], data.task[0]), expected[0], rtol=1e-5)
    assert trained.value(data.obs[:6].reshape(2, 3, 4), data.task[:6].reshape(2, 3, 2)).shape == (2, 3, 3)
    one_task = trained.value(data.obs[:5], data.task[0])
    np.testing.assert_allclose(one_task, trained.value(data.obs[:5], np.tile(data.task[:1], (5, 1))), rtol=1e-6)
    one_state = trained.value(data.obs[0], data.task[:5])
    np.testing.assert_allclose(one_state, trained.value(np.tile(data.obs[:1], (5, 1)), data.task[:5]), rtol=1e-6)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int64, np.uint16, np.float16, np.float32, np.float64, bool, list, jnp.array]
)
def test_numbers_of_every_kind_give_the_same_answer(trained, data, dtype):
    obs, task = np.abs(data.obs[:3]) > 1, data.task[:3]
    given = obs.astype(float).tolist() if dtype is list else dtype(obs) if dtype is jnp.array else obs.astype(dtype)
    np.testing.assert_array_equal(trained.value(given, task), trained.value(obs.astype(np.int8), task))


def test_a_fit_can_be_used_inside_jit(trained, data):
    inside = jax.jit(lambda obs, task: trained.value(obs, task))(
        jnp.asarray(data.obs), jnp.asarray(data.task, jnp.float32)
    )
    np.testing.assert_allclose(inside, trained.value(data.obs, data.task), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInput, match=r"obs must have shape \[..., 4\]"):
        jax.jit(lambda obs: trained.value(obs, np.zeros(2)))(jnp.zeros((3, 5)))


@pytest.mark.parametrize(
    ("obs", "task", "sentence"),
    [
        (np.zeros((3, 5)), np.zeros((3, 2)), r"obs must have shape \[..., 4\], as in training, got \[3, 5\]"),
        (np.float32(1.0), np.zeros(2), r"obs must have shape \[..., 4\], as in training, got \[\]"),
        (np.zeros((3, 4)), np.zeros((3, 3)), r"task must have shape \[..., 2\]"),
        (np.zeros((3, 4)), np.zeros((2, 2)), r"obs has leading axes \[3\] and task has \[2\]"),
        (np.zeros((3, 4)), None, "task is missing; this estimator was trained with tasks of 2"),
        (np.array([[0, np.nan, 0, 0]]), np.zeros(2), "obs must be finite, but 1 of its numbers are not"),
        (np.zeros((1, 4)), np.full((1, 2), np.inf), "task must be finite, but 2"),
        (np.full((1, 4), 1e300), np.zeros(2), "too large for float32"),
        ([["a"] * 4], np.zeros(2), "obs must hold numbers, got dtype"),
        ([[1, 2], [3]], np.zeros(2), "rows of equal length"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(trained, obs, task, sentence):
    for answer in (trained.value, trained.uncertainty):
        with pytest.raises(InvalidInput, match=sentence):
            answer(obs, task)


def test_without_tasks_none_is_needed(linear):
    data = from_arrays(np.eye(4, dtype=np.float32), [0, 1, 0, 1], np.ones(4), np.eye(4, dtype=np.float32))
    got = fit(linear(), data, 3, progress=False)
    assert got.value(data.obs).shape == (4, 2)
    assert got.uncertainty(data.obs[0]).shape == (2,)


METHODS = {
    "dqn": DQN(width=8, depth=1),
    "bdqnp": BDQNP(members=2, width=8, depth=1),
    "bdqnp without priors": BDQNP(members=2, width=8, depth=1, prior_scale=0.0),
    "rnd": RND(heads=4, width=8, depth=1),
    "uvu": UVU(heads=4, width=8, depth=2, q_width=4),
    "uvu of Theorem 1": UVU(heads=4, width=8, network="mlp", batch_size=None, optimiser="sgd", target_period=0),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_back_from_its_file(data, tmp_path, name):
    before = untrained(METHODS[name], data, seed=3)
    before.save(tmp_path / "m.safetensors")
    after = load_fit(tmp_path / "m.safetensors")
    assert after.estimator == before.estimator
    assert (after.spec, after.steps, after.seed, after.status) == (before.spec, 0, 3, before.status)
    assert (after.best.step, after.best.score) == (0, 1.5)
    assert after.state.opt_state is None
    assert after.state.target is None
    for ask in ("value", "uncertainty"):
        got, expected = (np.asarray(getattr(f, ask)(data.obs[:9], data.task[:9])) for f in (after, before))
        np.testing.assert_array_equal(got, expected)


def test_an_estimator_of_ones_own_is_passed_to_load(trained, data, linear, tmp_path):
    trained.save(tmp_path / "m")
    with pytest.raises(InvalidInput, match=r"'Linear', which uvax does not have"):
        load_fit(tmp_path / "m")
    with pytest.raises(InvalidInput, match=r"another estimator: learning_rate was 0.01 and is 0.5"):
        load_fit(tmp_path / "m", linear(learning_rate=0.5))
    again = load_fit(tmp_path / "m", linear())
    np.testing.assert_array_equal(again.value(data.obs, data.task), trained.value(data.obs, data.task))
    assert (again.best.step, again.best.score, again.steps) == (10, -10.0, 20)


def test_functions_are_not_stored_and_are_asked_for(data, tmp_path):
    estimator = DQN(width=8, depth=1, bootstrap=Policy(lambda obs, task: jnp.ones((*obs.shape[:-1], 3)) / 3))
    untrained(estimator, data).save(tmp_path / "m")
    with pytest.raises(InvalidInput, match="pass the estimator itself"):
        load_fit(tmp_path / "m")
    assert load_fit(tmp_path / "m", estimator).estimator is estimator


def test_the_best_can_be_saved_instead_of_the_last(trained, linear, tmp_path, same):
    trained.at_best().save(tmp_path / "best")
    best = load_fit(tmp_path / "best", linear())
    assert best.steps == 10
    same(best.state, trained.best.state)


def test_files_are_safe(trained, linear, tmp_path):
    path = tmp_path / "m.safetensors"
    trained.save(path)
    with pytest.raises(InvalidInput, match="overwrite=True"):
        trained.save(path)
    trained.save(path, overwrite=True)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DamagedFile, match="do not match their checksum"):
        load_fit(path, linear())
    with pytest.raises(InvalidInput, match="there is no file"):
        load_fit(tmp_path / "none", linear())
    with pytest.raises(InvalidInput, match=r"no file .*model.safetensors"):
        load_fit(tmp_path, linear())


def test_a_file_whose_arrays_do_not_fit_is_refused(trained, linear, tmp_path):
    trained.save(tmp_path / "m")
    arrays, header = storage.read(tmp_path / "m", "fit")
    storage.write(tmp_path / "wide", "fit", arrays | {"['w']": np.zeros((6, 4), np.float32)}, header)
    with pytest.raises(InvalidInput, match=r"\['w'\] is float32\[6, 4\] there and float32\[6, 3\] here"):
        load_fit(tmp_path / "wide", linear())
    storage.write(tmp_path / "short", "fit", {"['w']": arrays["['w']"]}, header)
    with pytest.raises(InvalidInput, match=r"it lacks \['step'\]"):
        load_fit(tmp_path / "short", linear())
    del header["spec"]
    storage.write(tmp_path / "headless", "fit", arrays, header)
    with pytest.raises(DamagedFile, match="lacks a part of its header"):
        load_fit(tmp_path / "headless", linear())


def test_states_with_keys_and_observations_of_parts_are_stored(tmp_path, data):
    @dataclass(frozen=True)
    class Own:
        gamma: float = 0.9
        batch_size: int = 1
        shape: tuple = (2, float("inf"))

        def init(self, spec, *, key):
            return {"key": key, "w": jnp.ones(3)}

        def value(self, state, obs, task):
            return obs["a"] + state["w"]

    spec = data.spec._replace(obs={"a": jax.ShapeDtypeStruct((3,), jnp.float32), "b": (data.spec.obs,)})
    state = Own().init(spec, key=jax.random.key(9, impl="rbg"))
    status = Status("finished", 0, "finished")

    @dataclass(frozen=True)
    class Seeded(Own):
        def init(self, spec, *, key):
            return super().init(spec, key=jax.random.key(0, impl="rbg"))

    Fit(Seeded(), state, spec, 0, 0, status, Best(state, 0, None)).save(tmp_path / "m")
    again = load_fit(tmp_path / "m", Seeded())
    assert again.spec == spec
    np.testing.assert_array_equal(jax.random.key_data(again.state["key"]), jax.random.key_data(state["key"]))
    np.testing.assert_array_equal(again.value({"a": np.ones(3)}), 2.0)


def test_differences_are_named():
    assert first_difference({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}) is None
    assert first_difference({"a": {"b": 1}}, {"a": {"b": 2}}) == "a.b was 1 and is 2"
    assert first_difference({"a": 1}, {}) == "a (1) is only there"
    assert first_difference({}, {"a": 1}) == "a (1) is not there"


def test_the_header_is_plain_json(trained, tmp_path):
    trained.save(tmp_path / "m")
    _, header = storage.read(tmp_path / "m", "fit")
    assert json.loads(json.dumps(header))["estimator"]["spoil_to"] == "nan"
    assert repr(trained) == "Fit(Linear, seed 4: finished after 20 steps, best -10 at step 10)"
