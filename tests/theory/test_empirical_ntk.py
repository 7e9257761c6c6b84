"""The NTK of given networks: gradients multiplied out, in the precision of the parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.errors import InvalidInput
from uvax.theory import empirical_kernel, empirical_ntk, kernels, stability


def two_layers(params, x):
    """NTK-parametrised, one hidden layer, sigma_w = 1.5, sigma_b = 0.1."""
    hidden = 1.5 / np.sqrt(x.shape[0]) * params["w1"] @ x + 0.1 * params["b1"]
    return 1.5 / np.sqrt(hidden.shape[0]) * params["w2"] @ jax.nn.relu(hidden) + 0.1 * params["b2"]


def draw(width, seed=0, dtype=np.float32, inputs=3):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (width, inputs), "b1": (width,), "w2": (width,), "b2": ()}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


X = np.random.default_rng(1).normal(size=(6, 3))
Y = np.random.default_rng(2).normal(size=(4, 3))


def by_hand(params, x1, x2):
    def gradient(x):
        slope = 1.5 / np.sqrt(3) * params["w1"] @ x + 0.1 * params["b1"]
        width = len(slope)
        back = 1.5 / np.sqrt(width) * params["w2"] * (slope > 0)
        parts = [np.outer(1.5 / np.sqrt(3) * back, x), 0.1 * back, 1.5 / np.sqrt(width) * np.maximum(slope, 0), [0.1]]
        return np.concatenate([np.ravel(part) for part in parts])

    return np.stack([gradient(x) for x in x1]) @ np.stack([gradient(x) for x in x2]).T


def test_float64_parameters_give_float64_gradients_without_changing_the_setting():
    params = draw(16, dtype=np.float64)
    before = jax.config.jax_enable_x64
    ntk = empirical_ntk(two_layers, params, X, Y)
    np.testing.assert_allclose(ntk, by_hand(params, X, Y), rtol=1e-12)
    assert jax.config.jax_enable_x64 == before
    assert jnp.asarray(1.0).dtype == (jnp.float64 if before else jnp.float32)


def test_float32_in_float64_out():
    params = draw(16)
    ntk = empirical_ntk(two_layers, params, X, X)
    assert ntk.dtype == np.float64
    np.testing.assert_allclose(ntk, by_hand(params, X, X), rtol=1e-4)
    # Inner products in float64: symmetric, and no eigenvalue below zero beyond float64's rounding.
    np.testing.assert_array_equal(ntk, ntk.T)
    spectrum = np.linalg.eigvalsh(empirical_ntk(two_layers, params, np.repeat(X, 3, axis=0), np.repeat(X, 3, axis=0)))
    assert abs(spectrum).min() < 1e-12 * spectrum.max()


def test_blocks_and_symmetry_do_not_change_the_result():
    params = draw(16)
    whole = empirical_ntk(two_layers, params, X, X)
    size = sum(np.size(leaf) for leaf in params.values())
    np.testing.assert_allclose(
        empirical_ntk(two_layers, params, X, X, workspace=2 * 8 * size * 4), whole, rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(empirical_ntk(two_layers, params, X, X.copy(), workspace=1), whole, rtol=1e-6, atol=1e-6)


def test_modules_pytrees_and_actions():
    """An equinox module with several outputs, on points that carry an action."""
    net = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
    points = {"obs": X.astype(np.float32), "action": np.arange(6) % 2}
    params, static = eqx.partition(net, eqx.is_inexact_array)
    ntk = empirical_ntk(lambda p, z: eqx.combine(p, static)(z["obs"])[z["action"]], params, points, points)
    first = empirical_ntk(lambda p, x: eqx.combine(p, static)(x)[0], params, points["obs"], points["obs"])
    np.testing.assert_allclose(ntk[::2, ::2], first[::2, ::2], rtol=1e-10)
    single = eqx.nn.MLP(3, "scalar", 8, 1, key=jax.random.key(0))
    module = empirical_ntk(single, None, X, Y)
    p, s = eqx.partition(single, eqx.is_inexact_array)
    np.testing.assert_allclose(module, empirical_ntk(lambda q, x: eqx.combine(q, s)(x), p, X, Y), rtol=1e-10)


def test_wide_networks_approach_the_analytic_kernel():
    expected = kernels(X, Y, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu")[1]
    errors = []
    for width in (64, 4096):
        found = np.stack([empirical_ntk(two_layers, draw(width, seed), X, Y) for seed in range(4)])
        errors.append(np.sqrt(np.mean((found - expected) ** 2)) / np.abs(expected).max())
    assert errors[1] < 0.02
    assert 3 < errors[0] / errors[1] < 20  # 1 / sqrt(width) says 8


def test_as_a_kernel_for_stability():
    report = stability(empirical_kernel(two_layers, draw(512)), X, 0.3 * X, None, 0.5)
    assert report.converges


@pytest.mark.parametrize(
    ("network", "params", "points", "words"),
    [
        (lambda p, x: p @ jnp.stack([x, x]).T, np.ones(3, np.float32), X, r"shape \(2,\), expected one number"),
        (lambda p, x: x.sum(), np.ones(3, int), X, "no floating-point parameters"),
        (lambda p, x: x.sum(), {}, X, "no floating-point parameters"),
        (lambda p, x: p @ x, np.ones(3, np.float32), X[:0], "x1 is empty"),
    ],
)
def test_bad_networks(network, params, points, words):
    with pytest.raises(InvalidInput, match=words):
        empirical_ntk(network, params, points, X)
