"""Many steps in another order of work are the same steps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from catalogue import quick_jit
from uvax.envs import GoToDoor
from uvax.estimators import BDQNP, RND, UVU, Policy, Sampler
from uvax.experiments.timing import random_dataset
from uvax.nets import ensemble
from uvax.training import fit, loop

ROWS, STEPS = 16, 9
SIZE = {"width": 16, "depth": 1, "batch_size": ROWS, "learning_rate": 3e-3, "target_period": 4}
SMALL = BDQNP(members=3, **SIZE)
UVU_SMALL = UVU(heads=3, uvu_learning_rate=2e-3, **SIZE)
RND_SMALL = RND(heads=3, rnd_learning_rate=2e-3, intrinsic_scale=10.0, **SIZE)


def evenly(obs, task):
    return jnp.full((len(task), 4), 0.25)


def one_at_random(key, obs, task):
    return jax.random.randint(key, (len(task),), 0, 4)


CASES = {
    "greedy": SMALL,
    "without priors, gradient descent": replace(SMALL, prior_scale=0.0, optimiser="sgd"),
    "without a target, a given policy": replace(SMALL, target_period=0, bootstrap=Policy(evenly)),
    "a slow target, sampled actions": replace(SMALL, target_lambda=0.3, bootstrap=Sampler(one_at_random)),
    "vmapped": replace(SMALL, members=5),
    "uvu": UVU_SMALL,
    "uvu, shared bootstrap, no target": replace(UVU_SMALL, shared_bootstrap=True, target_period=0),
    "uvu, a given policy": replace(UVU_SMALL, bootstrap=Policy(evenly)),
    "uvu, sampled actions, gradient descent": replace(
        UVU_SMALL, bootstrap=Sampler(one_at_random), optimiser="sgd", learning_rate=0.1, uvu_learning_rate=0.1
    ),
    "uvu, many heads": replace(UVU_SMALL, heads=17),
    "uvu, many heads, a given policy": replace(UVU_SMALL, heads=17, bootstrap=Policy(evenly)),
    "rnd with a prior": RND_SMALL,
    "rnd with a prior, many heads": replace(RND_SMALL, heads=17),
    "rnd with a prior, a given policy": replace(RND_SMALL, bootstrap=Policy(evenly)),
    "rnd": replace(RND_SMALL, prior=False, target_lambda=0.3),
}


@pytest.fixture(scope="module")
def data():
    return random_dataset(GoToDoor(size=5), 300, seed=0)


@pytest.mark.parametrize("name", CASES)
def test_network_by_network_is_step_by_step(name, data, monkeypatch):
    """The state afterwards, with or without what is kept of frozen networks, and the metrics of every step."""
    monkeypatch.setattr(ensemble, "MAX_UNROLLED", 4)
    estimator = CASES[name]

    @quick_jit
    def all_ways(key):
        state = estimator.init(data.spec, key=key)
        table = loop._converted(jax.tree.map(jnp.asarray, loop._columns(data, estimator.gamma)))
        rows = jax.random.randint(key, (STEPS, ROWS), 0, len(data))
        cache = estimator.cache(state, table.obs, table.task, table.action, table.next_obs)

        def batch_at(rows, cache=None):
            keys = jax.random.fold_in(key, rows[0])
            return jax.tree.map(lambda x: x[rows], table._replace(cache=cache)), keys

        def step(state, rows):
            batch, key = batch_at(rows)
            return estimator.update(state, batch, key=key)

        step_by_step = jax.lax.scan(step, state, rows)
        cached = estimator.update_many(state, rows, lambda rows: batch_at(rows, cache))
        return state, step_by_step, estimator.update_many(state, rows, batch_at), cached

    start, expected, *found = all_ways(jax.random.key(1))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), start.params, expected[0].params)
    assert min(jax.tree.leaves(moved)) > 1e-4, "nothing was learned"
    assert expected[1]["loss"].shape == (STEPS,)
    for result in found:
        assert jax.tree.structure(result) == jax.tree.structure(expected)
        for (path, leaf), wanted in zip(
            jax.tree_util.tree_leaves_with_path(result), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(leaf, wanted, rtol=2e-4, atol=2e-6, err_msg=jax.tree_util.keystr(path))


def test_members_that_depend_on_each_other_have_no_other_order(data):
    estimator = replace(SMALL, shared_bootstrap=True)
    state = estimator.init(data.spec, key=jax.random.key(0))
    assert estimator.update_many(state, jnp.arange(STEPS), lambda step: None) is None
    assert fit(estimator, data, 2, progress=False).steps == 2


@pytest.mark.parametrize("seeds", [None, 2])
@pytest.mark.parametrize("small", [SMALL, UVU_SMALL], ids=["bdqnp", "uvu"])
def test_fit_uses_it(data, monkeypatch, small, seeds):
    used = []
    cls = type(small)

    def remember(self, state, steps, batch_at, update_many=cls.update_many):
        used.append(len(steps[0]))
        return update_many(self, state, steps, batch_at)

    monkeypatch.setattr(cls, "update_many", remember)
    # A rate of its own: nothing else has compiled this estimator.
    estimator = replace(small, learning_rate=1.2345e-3)
    fit(estimator, data, STEPS, progress=False, **({"seeds": seeds} if seeds else {}))
    assert used == [STEPS]
