"""The heads of one action, computed alone, equal the heads of all actions with that one selected."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvax.data.transition import Spec, Transition
from uvax.estimators import RND, UVU, Policy
from uvax.nets import Conditioned, Groups, grouped, in_order, networks, sizes_for
from uvax.nets.grouped import linear_at
from uvax.training.loop import CACHES

SPEC = Spec(jax.ShapeDtypeStruct((5,), jnp.float32), 3, 4)


def dense_at(x, weights, biases, action, groups=None):
    out = jnp.stack([x @ weight + bias for weight, bias in zip(weights, biases, strict=True)], axis=1)
    return out[jnp.arange(x.shape[0]), action]


def arrays(batch, width, heads, num_actions, seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    x = jax.random.normal(keys[0], (batch, width))
    weights = list(jax.random.normal(keys[1], (num_actions, width, heads)))
    biases = list(jax.random.normal(keys[2], (num_actions, heads)))
    return x, weights, biases, jax.random.normal(keys[3], (batch, heads))


@partial(jax.jit, static_argnums=0)
def value_and_gradients(function, x, weights, biases, action, y, groups=None):
    def loss(x, weights, biases):
        out = function(x, weights, biases, action, groups)
        return jnp.sum(jnp.sin(out) * y), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, weights, biases)
    return out, *gradients


def assert_close(got, expected, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def groups_of(action, sizes):
    return Groups(jnp.bincount(action, length=len(sizes)).astype(jnp.int32), sizes)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([1, 3]), st.lists(st.integers(0, 5), min_size=21, max_size=21))
def test_any_actions_in_any_order(num_actions, actions):
    action = jnp.asarray(actions, jnp.int32) % num_actions
    x, weights, biases, y = arrays(21, 6, 3, num_actions)
    got = value_and_gradients(linear_at, x, weights, biases, action, y)
    assert_close(got, value_and_gradients(dense_at, x, weights, biases, action, y), 1e-5)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 2), min_size=21, max_size=21))
def test_any_actions_in_order_whatever_sizes_were_expected(actions):
    """Some of these have more rows of an action than the largest of its products."""
    action = jnp.asarray(sorted(actions), jnp.int32)
    x, weights, biases, y = arrays(21, 6, 3, 3)
    groups = groups_of(action, ((1, 5), (2, 8, 21), (16,)))
    got = value_and_gradients(linear_at, x, weights, biases, action, y, groups)
    assert_close(got, value_and_gradients(dense_at, x, weights, biases, action, y), 1e-5)


@pytest.mark.parametrize("batch", [1, 200, 401])
@pytest.mark.parametrize("shares", [(0.25, 0.25, 0.25, 0.25), (1.0, 0.0, 0.0, 0.0), (0.0, 0.9, 0.0, 0.1)])
@pytest.mark.parametrize("in_order", [False, True])
def test_any_batch(batch, shares, in_order):
    action = jax.random.choice(jax.random.key(3), 4, (batch,), p=jnp.asarray(shares)).astype(jnp.int32)
    action = jnp.sort(action) if in_order else action
    x, weights, biases, y = arrays(batch, 16, 20, 4)
    groups = groups_of(action, sizes_for(shares, batch)) if in_order else None
    got = value_and_gradients(linear_at, x, weights, biases, action, y, groups)
    assert_close(got, value_and_gradients(dense_at, x, weights, biases, action, y), 1e-4)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20), st.integers(1, 600))
def test_sizes_are_about_what_is_drawn(weights, batch):
    shares = np.asarray(weights) / sum(weights)
    drawn = np.random.default_rng(0).multinomial(batch, shares, size=200)
    for sizes, counts in zip(sizes_for(shares.tolist(), batch), drawn.T, strict=True):
        assert list(sizes) == sorted(set(sizes))
        assert 1 <= sizes[0] <= sizes[-1] <= batch
        assert np.mean(counts <= sizes[-1]) > 0.97
        # The largest is a few deviations above the mean, not the whole batch.
        assert sizes[-1] <= counts.mean() + 5 * np.sqrt(counts.mean() + 1) + 9
    assert all(some[-1] == batch for some in grouped.any_sizes(batch, len(weights)))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_in_order(actions):
    action = np.asarray(actions, np.int32)
    rows, counts = in_order(jnp.asarray(action), 4)
    np.testing.assert_array_equal(rows, np.argsort(action, kind="stable"))
    np.testing.assert_array_equal(counts, np.bincount(action, minlength=4))


@pytest.mark.parametrize("grouped_rows", [False, True])
def test_vmapped_parameters(grouped_rows):
    action = jnp.sort(jax.random.randint(jax.random.key(1), (40,), 0, 4))
    groups = groups_of(action, sizes_for([0.25] * 4, 40)) if grouped_rows else None
    x, weights, biases, y = arrays(40, 8, 5, 4)
    scales = jnp.asarray([0.5, 1.0, -2.0])

    def run(scale):
        return value_and_gradients(linear_at, x, [scale * w for w in weights], biases, action, y, groups)

    assert_close(jax.vmap(run)(scales), jax.tree.map(lambda *parts: jnp.stack(parts), *map(run, scales)), 1e-5)


@pytest.mark.parametrize("heads", [grouped.MIN_HEADS - 1, grouped.MIN_HEADS])
def test_network_apart_is_the_same_network(heads):
    """It gains by it for many heads only, and all that is asked of a network has the same answer."""
    obs, task, action = jnp.ones((6, 5)), jnp.ones((6, 3)), jnp.sort(jnp.arange(6) % 4)
    net = Conditioned(SPEC, heads, width=8, depth=1, key=jax.random.key(0))
    apart = net.apart()
    assert isinstance(apart.head, tuple) == (heads >= grouped.MIN_HEADS)
    assert eqx.tree_equal(apart.together(), net)
    features, groups = net.features(obs, task), groups_of(action, sizes_for([0.25] * 4, 6))
    expected = jnp.take_along_axis(net(obs, task), action[..., None, None], axis=-2)[..., 0, :]
    for form in (net, apart):
        np.testing.assert_allclose(form(obs, task), net(obs, task), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(jnp.stack(form.heads_apart(features), -2), net.heads(features), rtol=1e-5, atol=1e-6)
        for found in (
            form.at(obs, task, action),
            form.at(obs, task, action, groups),
            form.heads_chosen(features, action),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_network_uses_it_for_many_heads_only(monkeypatch):
    calls = []
    monkeypatch.setattr(networks, "linear_at", lambda *args: calls.append(args) or linear_at(*args))
    obs, task, action = jnp.ones((2, 6, 5)), jnp.ones((2, 6, 3)), jnp.arange(12).reshape(2, 6) % 4
    for heads in (grouped.MIN_HEADS - 1, grouped.MIN_HEADS):
        net = Conditioned(SPEC, heads, width=8, depth=1, key=jax.random.key(0))
        expected = jnp.take_along_axis(net(obs, task), action[..., None, None], axis=-2)[..., 0, :]
        np.testing.assert_allclose(net.at(obs, task, action), expected, rtol=1e-5, atol=1e-6)
        assert len(calls) == (heads == grouped.MIN_HEADS)


def uniform(obs, task):
    return jnp.full((obs.shape[0], 4), 0.25)


@pytest.mark.parametrize(
    "estimator",
    [
        UVU(heads=20, width=16, depth=1, batch_size=32, target_period=3),
        RND(heads=20, width=16, depth=1, batch_size=32, target_period=3),
        RND(heads=20, width=16, depth=1, batch_size=32, target_period=3, bootstrap=Policy(uniform)),
        RND(heads=20, width=16, depth=1, batch_size=32, target_period=3, prior=False),
    ],
    ids=["uvu", "rnd-p", "rnd-p-policy", "rnd"],
)
@pytest.mark.parametrize("kind", CACHES)
def test_training_equals_the_plain_version(estimator, kind, monkeypatch):
    """Seven steps across two target updates: grouped heads and cached ones against all heads in every step."""

    cache = jax.jit(getattr(estimator, kind))

    def train(cached):
        update = jax.jit(estimator.update)
        state = estimator.init(SPEC, key=jax.random.key(0))
        losses = []
        for step in range(7):
            keys = jax.random.split(jax.random.key(step), 5)
            obs, next_obs = jax.random.normal(keys[0], (2, 32, 5))
            task = jax.nn.one_hot(jax.random.randint(keys[1], (32,), 0, 3), 3)
            action = jax.random.randint(keys[2], (32,), 0, 4)
            batch = Transition(obs, task, action, jax.random.normal(keys[3], (32,)), jnp.full((32,), 0.9), next_obs)
            if cached:
                batch = batch._replace(cache=cache(state, obs, task, action, next_obs))
            state, metrics = update(state, batch, key=keys[4])
            losses.append(metrics["loss"])
        return state.params, losses

    fast = train(cached=True)
    monkeypatch.setattr(networks, "MIN_HEADS", 10**9)
    plain = train(cached=False)
    for a, b in zip(jax.tree.leaves(fast), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)
