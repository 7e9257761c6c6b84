"""Uncertainty falls when data are added and stays where they are not: two datasets, the same seed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from catalogue import STATES, VARIANCES, probe, small, train

FEW = probe((0, 0, 1.0, "end"), (0, 1, 0.0, "end"), values={})
MORE = probe((0, 0, 1.0, "end"), (0, 1, 0.0, "end"), (1, 0, 0.0, "end"), (1, 1, 1.0, "end"), values={})


@pytest.mark.parametrize("name", VARIANCES)
def test_more_data_less_uncertainty_there(name):
    """State 0 is in both, state 1 is added, states 2 and 3 are in neither."""
    estimator = small(name)
    state = estimator.init(FEW.spec, key=jax.random.key(0))
    obs, task = jnp.eye(STATES), jnp.zeros((STATES, 0))
    few, more = (
        np.asarray(estimator.uncertainty(trained, obs, task))
        for data in (FEW, MORE)
        for trained, _ in [train(estimator, state, data.batch, 1_000, key=jax.random.key(1))]
    )
    prior = np.asarray(estimator.uncertainty(state, obs, task))
    assert few[0].max() < 1e-3 * prior.mean()
    assert more[0].max() < 1e-3 * prior.mean()
    assert few[1].mean() > 0.1 * prior.mean()
    assert more[1].max() < 1e-3 * few[1].mean(), "the added state must become certain"
    for uncertainty in (few, more):
        assert uncertainty[2:].mean() > 0.1 * prior[2:].mean(), "states without data must stay uncertain"
