"""The heads of one action, computed alone, equal the heads of all actions with that one selected."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvax.data.transition import Spec, Transition
from uvax.estimators import RND, UVU, Policy
from uvax.nets import Conditioned, grouped, networks
from uvax.nets.grouped import linear_at
from uvax.training.loop import CACHES

SPEC = Spec(jax.ShapeDtypeStruct((5,), jnp.float32), 3, 4)


def dense_at(x, weight, bias, action, num_actions):
    out = (x @ weight + bias).reshape(x.shape[0], num_actions, -1)
    return out[jnp.arange(x.shape[0]), action]


def arrays(batch, width, heads, num_actions, seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    x = jax.random.normal(keys[0], (batch, width))
    weight = jax.random.normal(keys[1], (width, num_actions * heads))
    bias = jax.random.normal(keys[2], (num_actions * heads,))
    return x, weight, bias, jax.random.normal(keys[3], (batch, heads))


@partial(jax.jit, static_argnums=(0, 5))
def value_and_gradients(function, x, weight, bias, action, num_actions, y):
    def loss(x, weight, bias):
        out = function(x, weight, bias, action, num_actions)
        return jnp.sum(jnp.sin(out) * y), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, weight, bias)
    return out, *gradients


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([1, 3]), st.lists(st.integers(0, 5), min_size=21, max_size=21))
def test_any_actions(num_actions, actions):
    action = jnp.asarray(actions, jnp.int32) % num_actions
    x, weight, bias, y = arrays(21, 6, 3, num_actions)
    got = value_and_gradients(linear_at, x, weight, bias, action, num_actions, y)
    expected = value_and_gradients(dense_at, x, weight, bias, action, num_actions, y)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=9))
def test_the_first_products_with_enough_rows_for_one_action_have_enough_for_all(counts):
    counts = sorted(counts, reverse=True)
    if counts[0] == 0:
        return
    sets = grouped._sizes(sum(counts), len(counts))
    chosen = next(sizes for sizes in sets if sizes[0] >= counts[0])
    assert all(size >= count for size, count in zip(chosen, counts, strict=True))


@pytest.mark.parametrize("batch", [1, 200, 401])
@pytest.mark.parametrize("probabilities", [(0.25, 0.25, 0.25, 0.25), (1.0, 0.0, 0.0, 0.0), (0.0, 0.9, 0.0, 0.1)])
def test_any_batch(batch, probabilities):
    action = jax.random.choice(jax.random.key(3), 4, (batch,), p=jnp.asarray(probabilities))
    x, weight, bias, y = arrays(batch, 16, 20, 4)
    got = value_and_gradients(linear_at, x, weight, bias, action, 4, y)
    expected = value_and_gradients(dense_at, x, weight, bias, action, 4, y)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_vmapped_parameters():
    action = jax.random.randint(jax.random.key(1), (40,), 0, 4)
    x, weight, bias, y = arrays(40, 8, 5, 4)
    scales = jnp.asarray([0.5, 1.0, -2.0])

    def run(scale):
        return value_and_gradients(linear_at, x, scale * weight, bias, action, 4, y)

    for a, b in zip(jax.vmap(run)(scales), zip(*map(run, scales), strict=True), strict=True):
        np.testing.assert_allclose(a, jnp.stack(b), rtol=1e-5, atol=1e-5)


def test_network_uses_it_for_many_heads_only(monkeypatch):
    calls = []
    monkeypatch.setattr(networks, "linear_at", lambda *args: calls.append(args) or linear_at(*args))
    obs, task, action = jnp.ones((2, 6, 5)), jnp.ones((2, 6, 3)), jnp.arange(12).reshape(2, 6) % 4
    for heads in (grouped.MIN_HEADS - 1, grouped.MIN_HEADS):
        net = Conditioned(SPEC, heads, width=8, depth=1, key=jax.random.key(0))
        chosen = net.heads_chosen(net.features(obs, task), action)
        expected = jnp.take_along_axis(net(obs, task), action[..., None, None], axis=-2)[..., 0, :]
        np.testing.assert_allclose(net.at(obs, task, action), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(chosen, expected, rtol=1e-5, atol=1e-6)
        assert len(calls) == (2 if heads == grouped.MIN_HEADS else 0)


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
