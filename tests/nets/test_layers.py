"""Layers: the distribution they are drawn from, and the normalisation."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from uvax.nets import Dense, inverse_norm, select
from uvax.nets.layers import product, weight_gradient


def test_he_uniform():
    """U(-l, l) with l = sqrt(6 / n_in): variance 2 / n_in, within 5 standard errors of 250,000 draws."""
    layer = Dense(500, 500, key=jax.random.key(0))
    weight, limit = np.asarray(layer.weight, np.float64), math.sqrt(6 / 500)
    assert np.abs(weight).max() <= limit
    assert np.abs(weight).max() > 0.999 * limit
    # A uniform variable has kurtosis 9/5, so the variance of its square is 4/5 of the squared variance.
    error = 2 / 500 * math.sqrt(0.8 / weight.size)
    assert abs((weight**2).mean() - 2 / 500) < 5 * error
    assert abs(weight.mean()) < 5 * math.sqrt(2 / 500 / weight.size)
    np.testing.assert_array_equal(layer.bias, 0.0)


def test_ntk_parametrisation():
    """Weights and biases are standard normal; the scale is in the map: sigma_w / sqrt(n_in) and sigma_b."""
    layer = Dense(300, 400, key=jax.random.key(0), parametrisation="ntk", sigma_w=1.5, sigma_b=0.5)
    weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
    assert abs(weight.var() - 1.0) < 5 * math.sqrt(2 / weight.size)
    assert abs(bias.var() - 1.0) < 5 * math.sqrt(2 / bias.size)
    x = np.random.default_rng(0).normal(size=(7, 300)).astype(np.float32)
    np.testing.assert_allclose(layer(jnp.asarray(x)), 1.5 / math.sqrt(300) * (x @ weight) + 0.5 * bias, atol=1e-5)


vectors = hnp.arrays(np.float32, (5,), elements=st.floats(-1e6, 1e6, width=32))


@settings(max_examples=50)
@given(x=vectors.filter(lambda x: np.abs(x).max() > 1e-6))
def test_inverse_norm(x):
    norm = np.linalg.norm(x.astype(np.float64))
    np.testing.assert_allclose(inverse_norm(jnp.asarray(x)), [1 / norm], rtol=1e-5)


def test_inverse_norm_of_nothing():
    zero = jnp.zeros((2, 5))
    np.testing.assert_array_equal(inverse_norm(zero), 0.0)
    np.testing.assert_array_equal(jax.grad(lambda x: inverse_norm(x).sum())(zero), 0.0)


@pytest.mark.parametrize("parametrisation", ["he_uniform", "ntk"])
def test_a_layer_of_unit_vectors(parametrisation):
    """Output and gradients are those of normalising first, as the paper draws it; a zero vector gives the bias."""
    layer = Dense(30, 20, key=jax.random.key(0), parametrisation=parametrisation)
    layer = eqx.tree_at(lambda d: d.bias, layer, jax.random.normal(jax.random.key(1), (20,)))
    x = jax.random.normal(jax.random.key(2), (7, 30)) * jnp.logspace(-3, 3, 7)[:, None]
    cotangent = jax.random.normal(jax.random.key(3), (7, 20))

    def plain(layer, x):
        return layer(x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True)))

    got, pull = eqx.filter_vjp(Dense.of_unit, layer, x)
    expected, expected_pull = eqx.filter_vjp(plain, layer, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    (d_layer, dx), (expected_layer, expected_dx) = pull(cotangent), expected_pull(cotangent)
    np.testing.assert_allclose(d_layer.weight, expected_layer.weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_layer.bias, expected_layer.bias, rtol=1e-5)
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    np.testing.assert_allclose(dx * norm, expected_dx * norm, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(layer.of_unit(jnp.zeros(30)), layer(jnp.zeros(30)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (64, 300, 130)])
def test_gradients_of_a_product(shape):
    """Those of x w written plainly, for one set of arrays and for a batch of them."""
    batch, n, m = shape
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight = jax.random.normal(keys[0], (2, batch, n)), jax.random.normal(keys[1], (2, n, m))
    cotangent = jax.random.normal(keys[2], (2, batch, m))

    def gradients(function):
        return lambda x, w, c: jax.vjp(function, x, w)[1](c)

    got, expected = gradients(product), gradients(jnp.matmul)
    one = [a[0] for a in (x, weight, cotangent)]
    for a, b in zip(jax.jit(got)(*one), expected(*one), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    for a, b in zip(
        jax.jit(jax.vmap(got))(x, weight, cotangent), jax.vmap(expected)(x, weight, cotangent), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def test_weight_gradient_writes_the_transpose_apart():
    """The reason for its form, checked where it matters: no fusion of the compiled program holds the transposition."""
    if jax.default_backend() != "cpu":
        pytest.skip("only the CPU backend is told how to do it")
    arrays = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 2
    text = jax.jit(lambda x, c: weight_gradient(jax.nn.relu(x + 1.0), c)).lower(*arrays).compile().as_text()
    for body in text.split("\n\n"):
        assert not ("maximum(" in body and "transpose(" in body)


@pytest.mark.parametrize("heads", [1, 3])
def test_select_is_a_weighted_sum_over_actions(heads):
    rng = np.random.default_rng(0)
    weights, values = rng.normal(size=(2, 5, 4, heads)), rng.normal(size=(2, 5, 4, 3))
    expected = (weights * values).sum(-2)
    got = select(jnp.asarray(weights, jnp.float32), jnp.asarray(values, jnp.float32))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
