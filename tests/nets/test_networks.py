"""The two networks: written out in NumPy, their distribution at initialisation, and the agreement of their halves."""

import functools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from catalogue import quick_jit
from uvax.data import Spec
from uvax.errors import InvalidInput
from uvax.nets import ActionMLP, Conditioned, one_hot, select

B, D, Z, A, M = 6, 5, 3, 4, 7
SPEC = Spec(jax.ShapeDtypeStruct((D,), jnp.float32), Z, A)
NO_TASK = SPEC._replace(task_dim=0)
NETWORKS = {
    "conditioned": partial(Conditioned, SPEC, M, width=16, depth=2),
    "conditioned, not normalised": partial(Conditioned, SPEC, M, width=16, depth=1, normalise=False),
    "conditioned, no task": partial(Conditioned, NO_TASK, M, width=16, depth=1),
    "mlp, ntk": partial(ActionMLP, SPEC, M, width=16, depth=2),
    "mlp, erf, no task": partial(ActionMLP, NO_TASK, M, width=16, depth=1, activation="erf"),
}
every_network = pytest.mark.parametrize(
    "name", ["conditioned", "conditioned, no task", "mlp, ntk", "mlp, erf, no task"]
)


def build(name):
    return NETWORKS[name](key=jax.random.key(0))


def inputs(name, seed=0, shape=(B,)):
    keys = jax.random.split(jax.random.key(seed), 3)
    obs = jax.random.normal(keys[0], (*shape, D))
    task = jax.random.normal(keys[1], (*shape, 0 if "no task" in name else Z))
    return obs, task, jax.random.randint(keys[2], shape, 0, A)


@functools.cache
def evaluated(name, seed=0):
    """Everything that is asked of a network below, from one compiled program."""
    return _evaluate(build(name), *inputs(name, seed))


@quick_jit
def _evaluate(network, obs, task, action):
    def loss(at):
        return jax.grad(lambda net: jnp.sum(jnp.square(at(net))))(network)

    chosen = one_hot(action, A)[..., None]
    features = network.features_at(obs, task, action)
    return {
        "all": network(obs, task),
        "at": network.at(obs, task, action),
        "heads of features": network.heads(network.features(obs, task)),
        "heads_at of features_at": network.heads_at(features, action),
        "nested": network(obs.reshape(2, 3, D), task.reshape(2, 3, -1)),
        "nested at": network.at(obs.reshape(2, 3, D), task.reshape(2, 3, -1), action.reshape(2, 3)),
        "single": network(obs[0], task[0]),
        "single at": network.at(obs[0], task[0], action[0]),
        "integers": network(jnp.round(obs).astype(jnp.int8), task),
        "their floats": network(jnp.round(obs), task),
        "integers at": network.at(jnp.round(obs).astype(jnp.int8), task, action.astype(jnp.int8)),
        "their floats at": network.at(jnp.round(obs), task, action),
        "gradient of at": loss(lambda net: net.at(obs, task, action)),
        "gradient of the taken action": loss(lambda net: select(chosen, net(obs, task))),
    }


@every_network
@pytest.mark.parametrize("seed", range(3))
def test_at_is_the_taken_action_of_all(name, seed):
    got, action = evaluated(name, seed), np.asarray(inputs(name, seed)[2])
    assert got["all"].shape == (B, A, M)
    taken = np.take_along_axis(np.asarray(got["all"]), action[:, None, None], axis=1)[:, 0]
    np.testing.assert_allclose(got["at"], taken, rtol=1e-5, atol=1e-6)


@every_network
def test_gradients_of_at_are_those_of_the_taken_action(name):
    one, other = (jax.tree.leaves(evaluated(name)[f"gradient of {what}"]) for what in ("at", "the taken action"))
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert max(np.abs(x).max() for x in one) > 1e-2


@every_network
def test_halves_make_the_whole(name):
    got = evaluated(name)
    np.testing.assert_allclose(got["heads of features"], got["all"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(got["heads_at of features_at"], got["at"], rtol=1e-6, atol=1e-7)


@every_network
def test_any_batch_shape(name):
    got = evaluated(name)
    np.testing.assert_allclose(got["nested"], got["all"].reshape(2, 3, A, M), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["nested at"], got["at"].reshape(2, 3, M), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["single"], got["all"][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["single at"], got["at"][0], rtol=1e-5, atol=1e-6)


@every_network
def test_integers_are_numbers(name):
    got = evaluated(name)
    np.testing.assert_allclose(got["integers"], got["their floats"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(got["integers at"], got["their floats at"], rtol=1e-6, atol=1e-7)


def affine(layer, x):
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)


@pytest.mark.parametrize("name", ["conditioned", "conditioned, not normalised", "conditioned, no task"])
def test_conditioned_is_the_figure(name):
    """Encoders, product, l2 norm, ReLU layers, l2 norm, linear: Figure "arc" in NumPy. Biases are made to matter."""
    network, (obs, task, _) = build(name), inputs(name)
    network = jax.tree.map(lambda x: x + 0.1 if x.ndim == 1 else x, network)
    x = affine(network.encode_obs, np.asarray(obs, np.float64))
    if "no task" not in name:
        x = x * affine(network.encode_task, np.asarray(task, np.float64))
    if "not normalised" not in name:
        x = x / np.sqrt((x**2).sum(-1, keepdims=True))
    for layer in network.hidden:
        x = np.maximum(affine(layer, x), 0.0)
    if "not normalised" not in name:
        x = x / np.sqrt((x**2).sum(-1, keepdims=True))
    got = quick_jit(Conditioned.__call__)(network, obs, task)
    np.testing.assert_allclose(got, affine(network.head, x).reshape(-1, A, M), rtol=1e-4, atol=1e-5)


def test_the_task_changes_the_values():
    network, (obs, task, _) = build("conditioned"), inputs("conditioned")
    assert np.abs(network(obs, task) - network(obs, task[::-1])).max() > 1e-2


def test_outputs_start_with_standard_deviation_sqrt_2_over_width():
    """Features have norm one and He-uniform heads variance 2 / width, so heads are draws of variance 2 / width.

    4,000 heads of one input: the sample variance has a relative standard error of at most sqrt(2 / 4000), 2%.
    """
    width = 256
    network = Conditioned(SPEC, 1_000, width=width, depth=3, key=jax.random.key(1))
    obs, task, _ = inputs("conditioned", shape=(1,))
    draws = np.asarray(quick_jit(Conditioned.__call__)(network, obs, task), np.float64).ravel()
    assert draws.std() ** 2 == pytest.approx(2 / width, rel=5 * math.sqrt(2 / draws.size))
    assert abs(draws.mean()) < 5 * math.sqrt(2 / width / draws.size)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "erf": scipy.special.erf,
    "gelu": lambda x: 0.5 * x * (1 + scipy.special.erf(x / math.sqrt(2))),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_action_mlp_is_the_network_of_the_theory(activation):
    """f(s, a, z) = sigma_w / sqrt(n) W phi(...) + sigma_b b on [s, one-hot(a), z], in NumPy."""
    network = ActionMLP(
        SPEC, M, width=16, depth=2, sigma_w=1.3, sigma_b=0.4, activation=activation, key=jax.random.key(0)
    )
    obs, task, action = inputs("mlp")
    x = np.concatenate([obs, np.eye(A)[np.asarray(action)], task], axis=-1)
    for i, layer in enumerate(network.layers):
        weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
        x = 1.3 / math.sqrt(x.shape[-1]) * (x @ weight) + 0.4 * bias
        x = ACTIVATIONS[activation](x) if i < 2 else x
    np.testing.assert_allclose(quick_jit(ActionMLP.at)(network, obs, task, action), x, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("without_type_checker")
def test_unknown_activation_is_refused():
    with pytest.raises(InvalidInput, match="unknown activation 'tanh'"):
        ActionMLP(SPEC, M, width=4, depth=1, activation="tanh", key=jax.random.key(0))


def nngp(x, depth, sigma_w, sigma_b):
    """The covariance of outputs at infinite width: the arc-cosine recursion for ReLU."""
    kappa = sigma_w**2 / x.shape[1] * x @ x.T + sigma_b**2
    for _ in range(depth):
        norm = np.sqrt(np.outer(np.diag(kappa), np.diag(kappa)))
        angle = np.arccos(np.clip(kappa / norm, -1.0, 1.0))
        kappa = sigma_w**2 * norm / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) + sigma_b**2
    return kappa


def test_ntk_parametrisation_draws_the_nngp():
    """Covariance of 1,000 networks of two hidden layers against the recursion, within 5 standard errors.

    The variance is exact at every width for ReLU; the covariance is off by order 1 / width, which is added.
    """
    width, draws, sigma_w, sigma_b = 128, 1_000, 1.2, 0.3
    obs, task, _ = inputs("mlp", shape=(1,))

    def outputs(key):
        net = ActionMLP(SPEC, 1, width=width, depth=2, sigma_w=sigma_w, sigma_b=sigma_b, key=key)
        return net(obs, task)[0, :, 0]

    f = np.asarray(jax.jit(partial(jax.lax.map, outputs))(jax.random.split(jax.random.key(0), draws)), np.float64)
    points = np.concatenate([np.tile(obs, (A, 1)), np.eye(A), np.tile(task, (A, 1))], axis=-1).astype(np.float64)
    expected = nngp(points, 2, sigma_w, sigma_b)
    products = f[:, :, None] * f[:, None, :]
    error = products.std(0) / math.sqrt(draws)
    assert (np.abs(products.mean(0) - expected) < 5 * error + expected.max() / width).all()
    assert error.max() < 0.1 * expected.max(), "too few draws to say anything"


def test_select_is_a_weighted_sum_for_each_head():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(B, A, M)).astype(np.float32)
    own = rng.integers(0, A, (B, M))
    weights = (np.arange(A)[:, None] == own[:, None, :]).astype(np.float32)
    expected = [[values[i, own[i, k], k] for k in range(M)] for i in range(B)]
    np.testing.assert_array_equal(select(jnp.asarray(weights), jnp.asarray(values)), expected)
    probs = rng.dirichlet(np.ones(A), B).astype(np.float32)
    got = select(jnp.asarray(probs)[..., None], jnp.asarray(values))
    np.testing.assert_allclose(got, np.einsum("ba,bam->bm", probs, values), rtol=1e-5, atol=1e-6)
