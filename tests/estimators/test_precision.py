"""The gradient that float32 and the compiler give, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.data import Spec, Transition
from uvax.estimators import UVU

ROWS, RATE = 64, 2.0**20  # at this rate a step is all gradient: parameters of order 0.1 do not round it off


def gradient(estimator, state, batch):
    new, _ = jax.jit(estimator.update)(state, batch, key=jax.random.key(0))
    return [
        (np.asarray(old, np.float64) - np.asarray(stepped, np.float64)) / RATE
        for old, stepped in zip(jax.tree.leaves(state.params), jax.tree.leaves(new.params), strict=True)
    ]


@pytest.mark.slow
def test_float32_gradient_of_the_whole_uvu_loss_at_the_papers_size():
    """Width 512, 512 heads, GoToDoor's shapes: an older jaxlib was 4 to 8% off here.

    Rounding gives 1e-6; a head whose two best next actions tie within rounding may choose the other one, which
    moves the gradient by up to 1e-4. The bound is far above both and far below what was wrong then.
    """
    estimator = UVU(width=512, heads=512, optimiser="sgd", learning_rate=RATE, uvu_learning_rate=RATE, batch_size=ROWS)
    spec = Spec(jax.ShapeDtypeStruct((35,), jnp.float32), 6, 4)
    keys = jax.random.split(jax.random.key(0), 6)
    state = estimator.init(spec, key=keys[0])
    obs = jax.random.randint(keys[1], (2, ROWS, 35), 0, 5).astype(jnp.float32)
    batch = Transition(
        obs=obs[0],
        task=jnp.eye(6)[jax.random.randint(keys[2], (ROWS,), 0, 6)],
        action=jax.random.randint(keys[3], (ROWS,), 0, 4),
        reward=jax.random.normal(keys[4], (ROWS,)),
        discount=jnp.full((ROWS,), 0.9, jnp.float32),
        next_obs=obs[1],
    )
    single = gradient(estimator, state, batch)
    with jax.enable_x64(True):

        def widen(x):
            return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x

        double = gradient(estimator, jax.tree.map(widen, state), jax.tree.map(widen, batch))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.params)]
    for path, ours, exact in zip(paths, single, double, strict=True):
        assert np.linalg.norm(ours - exact) < 1e-3 * np.linalg.norm(exact), path
    assert any("u" in path for path in paths)
