"""Layers: the distribution they are drawn from, and the normalisation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from uvax.nets import Dense, unit_norm


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
def test_unit_norm_has_norm_one_and_keeps_the_direction(x):
    y = np.asarray(unit_norm(jnp.asarray(x)), np.float64)
    assert np.linalg.norm(y) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(y * np.linalg.norm(x.astype(np.float64)), x, rtol=1e-4, atol=1e-5 * np.abs(x).max())


def test_unit_norm_of_nothing():
    zero = jnp.zeros((2, 5))
    np.testing.assert_array_equal(unit_norm(zero), 0.0)
    assert np.isfinite(jax.grad(lambda x: unit_norm(x).sum())(zero)).all()
