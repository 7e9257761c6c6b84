"""The contract of `estimators.base`, for every method in the catalogue."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from catalogue import (
    ACTIONS,
    METHODS,
    OURS,
    ROWS,
    STATES,
    TWINS,
    VARIANCES,
    probe,
    random_batch,
    small,
    spec,
    train,
    train_seeds,
)
from uvax.estimators import METHODS as REGISTRY
from uvax.estimators import Estimator, TrainState

KEY = jax.random.key(0)
BATCH = random_batch(jax.random.key(1))
every_method = pytest.mark.parametrize("name", METHODS)


@functools.cache
def initial(name: str, seed: int = 0, **changes):
    return small(name, **changes).init(spec(), key=jax.random.key(seed))


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def assert_close(a, b, *, rtol=1e-5, atol=1e-6):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def by_path(tree):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_every_registered_class_is_in_the_catalogue():
    assert {cls for cls, _ in REGISTRY.values()} <= {method.make for method in METHODS.values()}


@every_method
def test_has_the_shape_of_an_estimator(name):
    estimator = small(name)
    assert isinstance(estimator, Estimator)
    assert estimator.batch_size == ROWS
    assert estimator.gamma == 0.9
    assert estimator == small(name), "equal hyperparameters must be equal estimators, or jit compiles again"
    assert hash(estimator) == hash(small(name))


@every_method
def test_update_preserves_structure_shapes_and_dtypes(name):
    state = initial(name)
    new, metrics = small(name).update(state, BATCH, key=KEY)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(new), strict=True):
        assert isinstance(before, jax.Array), path
        assert (before.shape, before.dtype, before.weak_type) == (after.shape, after.dtype, after.weak_type), path
    assert "loss" in metrics
    for value in metrics.values():
        assert value.shape == ()
        assert value.dtype == jnp.float32
        assert np.isfinite(value)


@every_method
def test_value_and_uncertainty_take_any_batch_shape(name):
    estimator, state = small(name), initial(name)

    @jax.jit
    def ask(obs, task):
        return {
            shape: (
                estimator.value(state, obs.reshape(*shape, STATES), task.reshape(*shape, 2)),
                estimator.uncertainty(state, obs.reshape(*shape, STATES), task.reshape(*shape, 2)),
            )
            for shape in [(ROWS,), (2, ROWS // 2)]
        }, (estimator.value(state, obs[0], task[0]), estimator.uncertainty(state, obs[0], task[0]))

    batches, singles = ask(BATCH.obs, BATCH.task)
    for which, single in enumerate(singles):
        flat = batches[ROWS,][which]
        assert flat.shape == (ROWS, ACTIONS)
        assert flat.dtype == jnp.float32
        assert np.isfinite(flat).all()
        np.testing.assert_allclose(single, flat[0], rtol=1e-5, atol=1e-6)
        nested = batches[2, ROWS // 2][which]
        np.testing.assert_allclose(nested, flat.reshape(2, ROWS // 2, ACTIONS), rtol=1e-5, atol=1e-6)


@every_method
def test_integer_observations_mean_the_same_as_floats(name):
    estimator, state = small(name), initial(name)
    obs = jax.random.randint(KEY, (ROWS, STATES), -5, 5)
    as_integers = BATCH._replace(obs=obs.astype(jnp.int8), next_obs=obs[::-1].astype(jnp.int8))
    as_floats = BATCH._replace(obs=obs.astype(jnp.float32), next_obs=obs[::-1].astype(jnp.float32))
    assert_same_bits(estimator.update(state, as_integers, key=KEY), estimator.update(state, as_floats, key=KEY))
    assert_same_bits(
        estimator.uncertainty(state, as_integers.obs, BATCH.task),
        estimator.uncertainty(state, as_floats.obs, BATCH.task),
    )


@every_method
def test_jit_equals_no_jit(name):
    estimator, batch = small(name), random_batch(jax.random.key(1), tasks=0)
    state = estimator.init(spec(tasks=0), key=KEY)
    jitted = train(estimator, state, batch, 3, key=KEY)
    metrics = None
    for i in range(3):
        state, metrics = estimator.update(state, batch, key=jax.random.fold_in(KEY, i))
    assert_close(jitted, (state, metrics), rtol=1e-4, atol=1e-5)


@every_method
def test_vmap_over_seeds_equals_a_loop(name):
    estimator, keys = small(name), jax.random.split(KEY, 2)
    states = jax.vmap(lambda key: estimator.init(spec(), key=key))(keys)
    together = train_seeds(estimator, states, BATCH, 3, keys=keys)
    for k in range(2):
        state, metrics = estimator.init(spec(), key=keys[k]), None
        assert_close(jax.tree.map(lambda x, k=k: x[k], states), state, rtol=1e-6)
        for i in range(3):
            state, metrics = estimator.update(state, BATCH, key=jax.random.fold_in(keys[k], i))
        assert_close(jax.tree.map(lambda x, k=k: x[k], together), (state, metrics), rtol=1e-4, atol=1e-5)


@every_method
def test_same_seed_same_bits_another_seed_others(name):
    estimator = small(name)

    def run(seed):
        keys = jax.random.split(jax.random.key(seed), 2)
        return train_seeds(estimator, jax.vmap(lambda key: estimator.init(spec(), key=key))(keys), BATCH, 5, keys=keys)

    first, again, other = run(3), run(3), run(4)
    assert_same_bits(first, again)
    assert not np.array_equal(first[1]["loss"], other[1]["loss"])
    assert len({float(loss) for loss in first[1]["loss"]}) == 2, "seeds trained together must differ"


@pytest.mark.parametrize("name", OURS)
def test_training_moves_params_and_nothing_frozen(name):
    keys = jax.random.split(KEY, 2)
    states = jax.vmap(lambda key: small(name).init(spec(), key=key))(keys)
    trained, _ = train_seeds(small(name), states, BATCH, 20, keys=keys)
    assert isinstance(trained, TrainState)
    assert_same_bits(trained.frozen, states.frozen)
    np.testing.assert_array_equal(trained.step, [20, 20])
    before, after = by_path(states.params), by_path(trained.params)
    for path in before:
        assert not np.array_equal(before[path], after[path]), f"{path} was not trained"


@pytest.mark.parametrize("name", OURS)
def test_the_optimiser_holds_nothing_for_frozen_networks(name):
    """Gradients flow into `params` only: Adam's two moments exist for those and for nothing else."""
    state = initial(name)
    moments = sum(x.size for x in jax.tree.leaves(state.opt_state) if jnp.issubdtype(x.dtype, jnp.floating))
    assert moments == 2 * sum(x.size for x in jax.tree.leaves(state.params))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("target_lambda", [1.0, 0.25])
def test_target_moves_every_period_by_lambda(name, target_lambda):
    estimator = small(name, target_period=2, target_lambda=target_lambda)
    state = estimator.init(spec(), key=KEY)
    expected = by_path(state.target)
    assert expected
    assert expected.keys() <= by_path(state.params).keys()
    for step in range(1, 6):
        state, _ = estimator.update(state, BATCH, key=KEY)
        online = by_path(state.params)
        if step % 2 == 0:
            expected = {p: target_lambda * online[p] + (1 - target_lambda) * expected[p] for p in expected}
        for path, got in by_path(state.target).items():
            np.testing.assert_allclose(got, expected[path], rtol=1e-6, atol=1e-7, err_msg=f"{path} at step {step}")


@pytest.mark.parametrize("name", OURS)
def test_no_target_network_bootstraps_by_stop_gradient(name):
    """`target_period=0` is what a target that follows at once would give, without keeping one."""
    states = []
    for period in (0, 1):
        estimator = small(name, target_period=period)
        state = estimator.init(spec(), key=KEY)
        assert (state.target is None) == (period == 0)
        for _ in range(3):
            state, _ = estimator.update(state, BATCH, key=KEY)
        states.append(state)
    assert_close(states[0].params, states[1].params)


@pytest.mark.parametrize("name", [name for name in METHODS if callable(getattr(small(name), "cache", None))])
def test_update_with_cache_equals_without(name):
    """The cache is computed once for a dataset; batches get the rows of theirs."""
    estimator, state, rows = small(name), initial(name), jax.random.randint(KEY, (ROWS,), 0, ROWS)
    cache = estimator.cache(state, BATCH.obs, BATCH.task, BATCH.action, BATCH.next_obs)
    assert jax.tree.leaves(cache)
    batch = jax.tree.map(lambda x: x[rows], BATCH)
    with_cache = batch._replace(cache=jax.tree.map(lambda x: x[rows], cache))
    for _ in range(3):
        without = estimator.update(state, batch, key=KEY)
        assert_close(estimator.update(state, with_cache, key=KEY), without)
        state = without[0]


def test_an_ensemble_without_priors_has_nothing_to_cache():
    estimator = small("bdqnp", prior_scale=0.0)
    state = estimator.init(spec(), key=KEY)
    assert state.frozen is None
    assert estimator.cache(state, BATCH.obs, BATCH.task, BATCH.action, BATCH.next_obs) is None


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_no_loss_and_no_gradient_when_u_is_g(name, optimiser):
    estimator = small(name, optimiser=optimiser)
    state = estimator.init(spec(), key=KEY)
    g = state.frozen["g"]
    state = state._replace(params={**state.params, "u": g})
    if "u" in state.target:
        state = state._replace(target={**state.target, "u": g})
    new, metrics = estimator.update(state, BATCH, key=KEY)
    assert abs(metrics[METHODS[name].twin_loss]) < 1e-10
    assert metrics["loss_q"] > 1e-3, "the value has still to be learned"
    assert_close(new.params["u"], g, atol=1e-6)


@pytest.mark.parametrize("name", VARIANCES)
def test_a_variance_is_not_negative_and_lower_where_data_are(name):
    """Trained on states 0 and 1 with the first task; states 2 and 3 and the second task were never seen."""
    rows = [(s, a, s - a, "end", 0) for s in (0, 1) for a in (0, 1)]
    batch = probe(*rows, tasks=2, values={}).batch
    estimator, keys = small(name), jax.random.split(KEY, 2)
    states = jax.vmap(lambda key: estimator.init(spec(), key=key))(keys)
    trained, _ = train_seeds(estimator, states, batch, 600, keys=keys)
    obs, task = jnp.repeat(jnp.eye(STATES), 2, axis=0), jnp.tile(jnp.eye(2), (STATES, 1))
    uncertainty = jax.vmap(lambda state: estimator.uncertainty(state, obs, task))(trained)
    assert (uncertainty >= 0.0).all()
    seen = np.array([s in (0, 1) and z == 0 for s in range(STATES) for z in range(2)])
    for k in range(2):
        assert uncertainty[k][seen].max() < 1e-3 * uncertainty[k][~seen].mean()


@every_method
def test_what_follows_a_terminal_transition_does_not_matter(name):
    estimator, state = small(name), initial(name)
    batch = BATCH._replace(discount=jnp.zeros(ROWS))
    elsewhere = batch._replace(next_obs=10.0 * batch.next_obs + 1.0)
    assert_close(estimator.update(state, batch, key=KEY), estimator.update(state, elsewhere, key=KEY))


@every_method
@hypothesis_settings(max_examples=3)
@given(seed=st.integers(0, 2**16))
def test_the_order_of_rows_does_not_matter(name, seed):
    estimator, state = small(name), initial(name)
    order = np.random.default_rng(seed).permutation(ROWS)
    shuffled = jax.tree.map(lambda x: x[order], BATCH)
    assert_close(estimator.update(state, BATCH, key=KEY), estimator.update(state, shuffled, key=KEY), atol=1e-5)


@every_method
def test_the_loss_is_a_mean_over_the_batch(name):
    """Half of the rows, each of them twice, and the other half likewise: the losses average to that of the whole."""
    estimator, state = small(name), initial(name)
    halves = np.arange(ROWS).reshape(2, -1).repeat(2, axis=1)
    parts = [estimator.update(state, jax.tree.map(lambda x, h=h: x[h], BATCH), key=KEY)[1]["loss"] for h in halves]
    whole = estimator.update(state, BATCH, key=KEY)[1]["loss"]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-5)
