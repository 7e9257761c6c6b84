"""Adam in our order of operations against optax's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from uvax.estimators.adam import adam


def test_the_state_is_that_of_optax():
    params = {"weight": jnp.ones((3, 4)), "bias": jnp.zeros(4)}
    ours, theirs = (optimiser.init(params) for optimiser in (adam(1e-3, 1e-4), optax.adam(1e-3)))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)


@pytest.mark.parametrize("epsilon", [0.1 / 512, 1e-8])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_updates_are_those_of_optax(scale, epsilon):
    """Over a thousand steps from the first, with large corrections, for gradients below and above epsilon and 0."""
    ours, theirs = adam(3e-4, epsilon), optax.adam(3e-4, eps=epsilon)
    gradients = scale * jax.random.normal(jax.random.key(0), (1000, 8, 16)).at[:, 0].set(0.0)

    def updates(optimiser):
        def step(state, gradient):
            update, state = optimiser.update(gradient, state)
            return state, update

        return jax.jit(lambda: jax.lax.scan(step, optimiser.init(gradients[0]), gradients))()

    state, got = updates(ours)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes int32 counts with floats
        expected_state, expected = updates(theirs)
    np.testing.assert_array_equal(got[:, 0], 0.0)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5 * float(jnp.abs(expected).max()))
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected_state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * scale)
