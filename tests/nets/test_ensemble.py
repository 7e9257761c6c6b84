"""An ensemble is its members side by side, however it is evaluated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from catalogue import quick_jit
from uvax.data import Spec
from uvax.nets import Conditioned, Ensemble

SPEC = Spec(jax.ShapeDtypeStruct((4,), jnp.float32), 2, 3)
OBS = jax.random.normal(jax.random.key(1), (5, 4))
TASK = jax.random.normal(jax.random.key(2), (5, 2))
ACTION = jnp.array([0, 1, 2, 0, 1])


def down_the_gradient(network):
    grads = jax.grad(lambda net: jnp.sum(jnp.square(net.at(OBS, TASK, ACTION))))(network)
    return jax.tree.map(lambda x, g: x - 0.1 * g, network, grads)


def evaluated(network):
    """Outputs for all actions, for the taken one, and for all after a step down the gradient."""
    return network(OBS, TASK), network.at(OBS, TASK, ACTION), down_the_gradient(network)(OBS, TASK)


@pytest.mark.parametrize("members", [3, 50], ids=["few: unrolled", "many: stacked"])
def test_members_side_by_side(members):
    """Each member, made from its key and evaluated by itself, against the ensemble: outputs and gradients."""
    keys = jax.random.split(jax.random.key(0), members)

    def build(key):
        return Conditioned(SPEC, 1, width=8, depth=1, key=key)

    @quick_jit
    def both(keys):
        ensemble = Ensemble.init(build, keys)
        alone = jax.lax.map(lambda key: evaluated(build(key)), keys)
        return evaluated(ensemble), alone

    together, alone = both(keys)
    assert together[0].shape == (5, 3, members)
    assert together[1].shape == (5, members)
    for got, members_apart in zip(together, alone, strict=True):
        np.testing.assert_allclose(got, np.moveaxis(members_apart[..., 0], 0, -1), rtol=1e-5, atol=1e-6)
    assert np.ptp(together[0], axis=-1).min() > 1e-4, "members must differ"
    assert np.abs(together[2] - together[0]).max() > 1e-2, "the step must move them"
