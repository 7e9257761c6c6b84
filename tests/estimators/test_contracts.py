"""The contract of `estimators.base`, for every method in the catalogue.

What can be asked of the two programs that the catalogue compiles for each method is asked of those; the rest runs
without jit, on the same shapes, so that little is compiled.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
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
    quick_jit,
    random_batch,
    small,
    spec,
    train,
    train_seeds,
)
from uvax.estimators import METHODS as REGISTRY
from uvax.estimators import Estimator, TrainState
from uvax.training.loop import CACHES

KEY = jax.random.key(0)
BATCH = random_batch(jax.random.key(1), tasks=0)
every_method = pytest.mark.parametrize("name", METHODS)


@functools.cache
def initial(name):
    return small(name).init(spec(tasks=0), key=KEY)


@functools.cache
def seeds(name):
    """Two states at initialisation, with a task, stacked."""
    states = [small(name).init(spec(), key=jax.random.key(seed)) for seed in (0, 1)]
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *states), jax.random.split(KEY, 2)


def take(tree, rows):
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[rows]), tree)


def step(name, batch):
    """One update from initialisation, compiled."""
    return train(small(name), initial(name), batch, 1, key=KEY)


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def assert_close(a, b, *, rtol=1e-5, atol=1e-6):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        # A small entry of an array is a sum of terms as large as its largest one, and rounds like those.
        scale = max(1.0, float(np.max(np.abs(y), initial=0.0)))
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol * scale)


def by_path(tree):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


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
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int8], ids=["float observations", "integer observations"])
def test_update_preserves_structure_shapes_and_dtypes(name, dtype):
    estimator, state = small(name), initial(name)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    batch = BATCH._replace(obs=BATCH.obs.astype(dtype), next_obs=BATCH.next_obs.astype(dtype))
    new, metrics = jax.eval_shape(lambda state: estimator.update(state, batch, key=KEY), state)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(new), strict=True):
        assert (before.shape, before.dtype, before.weak_type) == (after.shape, after.dtype, after.weak_type), path
    assert "loss" in metrics
    for value in metrics.values():
        assert value.shape == ()
        assert value.dtype == jnp.float32


@every_method
def test_value_and_uncertainty_take_any_batch_shape(name):
    estimator, state = small(name), initial(name)

    @jax.jit
    def ask(obs):
        def both(obs):
            task = jnp.zeros((*obs.shape[:-1], 0))
            return estimator.value(state, obs, task), estimator.uncertainty(state, obs, task)

        return both(obs), both(obs.reshape(2, ROWS // 2, STATES)), both(obs[0])

    for flat, nested, single in zip(*ask(BATCH.obs), strict=True):
        assert flat.shape == (ROWS, ACTIONS)
        assert flat.dtype == jnp.float32
        assert np.isfinite(flat).all()
        np.testing.assert_allclose(nested, flat.reshape(2, ROWS // 2, ACTIONS), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(single, flat[0], rtol=1e-5, atol=1e-6)


@every_method
def test_jit_equals_no_jit(name):
    estimator, state, metrics = small(name), initial(name), None
    jitted = train(estimator, state, BATCH, 3, key=KEY)
    for i in range(3):
        state, metrics = estimator.update(state, BATCH, key=jax.random.fold_in(KEY, i))
    assert_close(jitted, (state, metrics), rtol=1e-4, atol=1e-5)
    assert all(np.isfinite(metric) for metric in metrics.values())


@every_method
def test_vmap_over_seeds_equals_a_loop(name):
    estimator, (states, keys), batch = small(name), seeds(name), random_batch(jax.random.key(1))
    together = jax.tree.map(np.asarray, train_seeds(estimator, states, batch, 2, keys=keys))
    for k in range(2):
        state, metrics = take(states, k), None
        for i in range(2):
            state, metrics = estimator.update(state, batch, key=jax.random.fold_in(keys[k], i))
        assert_close(jax.tree.map(lambda x, k=k: x[k], together), (state, metrics), rtol=1e-4, atol=1e-5)


def test_init_under_vmap_equals_a_loop():
    estimator, keys = small("uvu"), jax.random.split(KEY, 2)
    together = quick_jit(jax.vmap(lambda key: estimator.init(spec(), key=key)))(keys)
    together = jax.tree.map(np.asarray, together)
    for k in range(2):
        assert_close(jax.tree.map(lambda x, k=k: x[k], together), estimator.init(spec(), key=keys[k]), rtol=1e-6)


@every_method
def test_same_seed_same_bits_another_seed_others(name):
    """From the seed to the trained state, twice; the two seeds trained beside each other differ."""
    batch, losses = random_batch(jax.random.key(1)), []
    for _ in range(2):
        seeds.cache_clear()
        states, keys = seeds(name)
        losses.append(train_seeds(small(name), states, batch, 5, keys=keys))
    assert_same_bits(*losses)
    first, second = losses[0][1]["loss"]
    assert first != second


@pytest.mark.parametrize("name", OURS)
def test_training_moves_params_and_nothing_frozen(name):
    (states, keys), batch = seeds(name), random_batch(jax.random.key(1))
    trained, _ = train_seeds(small(name), states, batch, 20, keys=keys)
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


def assert_target_moves(update, state, period, target_lambda):
    expected = by_path(state.target)
    assert expected
    assert expected.keys() <= by_path(state.params).keys()
    for i in range(1, 2 * period + 1):
        state = update(state)
        online = by_path(state.params)
        if i % period == 0:
            expected = {path: target_lambda * online[path] + (1 - target_lambda) * expected[path] for path in expected}
        for path, got in by_path(state.target).items():
            np.testing.assert_allclose(got, expected[path], rtol=1e-6, atol=1e-7, err_msg=f"{path} at step {i}")


@pytest.mark.parametrize("name", OURS)
def test_target_moves_every_period_by_lambda(name):
    estimator = small(name)
    assert (estimator.target_period, estimator.target_lambda) == (2, 0.5)
    assert_target_moves(lambda state: train(estimator, state, BATCH, 1, key=KEY)[0], initial(name), 2, 0.5)


@pytest.mark.parametrize("name", OURS)
def test_target_with_lambda_one_is_a_copy(name):
    estimator = small(name, target_period=1, target_lambda=1.0)
    state = estimator.init(spec(tasks=0), key=KEY)
    assert_target_moves(lambda state: estimator.update(state, BATCH, key=KEY)[0], state, 1, 1.0)


@pytest.mark.parametrize("name", OURS)
def test_no_target_network_bootstraps_by_stop_gradient(name):
    """`target_period=0` is what a target that follows at once would give, without keeping one."""
    estimator = small(name, target_period=0)
    state, followed = estimator.init(spec(tasks=0), key=KEY), initial(name)
    assert state.target is None
    for _ in range(2):
        state, _ = estimator.update(state, BATCH, key=KEY)
        followed, _ = train(small(name), followed, BATCH, 1, key=KEY)
        assert_close(state.params, followed.params)
        online = followed.params
        followed = followed._replace(
            target={net: online[net] for net in followed.target} if isinstance(online, dict) else online
        )


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in METHODS for kind in CACHES if hasattr(small(name), kind)]
)
def test_update_with_cache_equals_without(name, kind):
    """The cache is computed once for a dataset; batches get the rows of theirs."""
    estimator, state, rows = small(name), initial(name), np.random.default_rng(0).integers(0, ROWS, ROWS)
    cache = getattr(estimator, kind)(state, BATCH.obs, BATCH.task, BATCH.action, BATCH.next_obs)
    assert jax.tree.leaves(cache)
    batch = take(BATCH, rows)
    with_cache = batch._replace(cache=take(cache, rows))
    for _ in range(3):
        without = estimator.update(state, batch, key=KEY)
        assert_close(estimator.update(state, with_cache, key=KEY), without)
        state = without[0]


def test_an_ensemble_without_priors_has_nothing_to_cache():
    estimator = small("bdqnp", prior_scale=0.0)
    state = estimator.init(spec(tasks=0), key=KEY)
    assert state.frozen is None
    assert estimator.cache(state, BATCH.obs, BATCH.task, BATCH.action, BATCH.next_obs) is None


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_no_loss_and_no_gradient_when_u_is_g(name, optimiser):
    estimator = small(name, optimiser=optimiser)
    state = estimator.init(spec(tasks=0), key=KEY)
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
    estimator, (states, keys) = small(name), seeds(name)
    trained, _ = train_seeds(estimator, states, batch, 600, keys=keys)
    obs, task = jnp.repeat(jnp.eye(STATES), 2, axis=0), jnp.tile(jnp.eye(2), (STATES, 1))
    seen = np.array([s in (0, 1) and z == 0 for s in range(STATES) for z in range(2)])
    for k in range(2):
        uncertainty = np.asarray(estimator.uncertainty(take(trained, k), obs, task))
        assert (uncertainty >= 0.0).all()
        assert uncertainty[seen].max() < 1e-3 * uncertainty[~seen].mean()


@every_method
def test_what_follows_a_terminal_transition_does_not_matter(name):
    batch = BATCH._replace(discount=jnp.zeros(ROWS))
    elsewhere = batch._replace(next_obs=10.0 * batch.next_obs + 1.0)
    assert_close(step(name, batch), step(name, elsewhere))
    # Where it goes on, it does matter.
    assert step(name, BATCH)[1]["loss"] != step(name, BATCH._replace(next_obs=elsewhere.next_obs))[1]["loss"]


@every_method
@settings(max_examples=3)
@given(order=st.permutations(range(ROWS)))
def test_the_order_of_rows_does_not_matter(name, order):
    assert_close(step(name, BATCH), step(name, take(BATCH, np.array(order))), atol=1e-5)


@every_method
def test_the_loss_is_a_mean_over_the_batch(name):
    """Half of the rows, each of them twice, and the other half likewise: the losses average to that of the whole."""
    halves = np.arange(ROWS).reshape(2, -1).repeat(2, axis=1)
    parts = [step(name, take(BATCH, half))[1]["loss"] for half in halves]
    np.testing.assert_allclose(np.mean(parts), step(name, BATCH)[1]["loss"], rtol=1e-5)
