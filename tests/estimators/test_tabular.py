"""TD with a network of one's own (`network=`) against linear algebra: exact solutions on small random MDPs.

With a table, plain gradient descent at a rate of 4 is synchronous TD on the empirical MDP, with step one where 4 points
are covered and one half where all 8 are: a contraction by (1 + gamma) / 2 at worst, so that 200 steps leave 1e-14 of
the initial error and float32 decides.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogue import linear, quick_jit, small, train
from uvax.data import Spec, Transition
from uvax.estimators import Policy, Sampler

S, A, ROWS, GAMMA, STEPS, RATE = 4, 2, 24, 0.7, 200, 4.0
EVERYWHERE, SOMEWHERE = S * A, 4
TABLE = linear(np.eye(S * A, dtype=np.float32).reshape(S, A, S * A))
SPEC = Spec(jax.ShapeDtypeStruct((S,), jnp.float32), S * A, A)
RATES = {
    "dqn": ("learning_rate",),
    "bdqnp": ("learning_rate",),
    "dqn-rnd": ("learning_rate", "rnd_learning_rate"),
    "dqn-rnd-p": ("learning_rate", "rnd_learning_rate"),
    "uvu": ("learning_rate", "uvu_learning_rate"),
}


def encoded_policy(next_obs, task):
    """The task is the policy: z = vec(pi), as universal value functions have it."""
    return jnp.einsum("bs,bsa->ba", next_obs, task.reshape(-1, S, A))


EVALUATION = Policy(encoded_policy)


@functools.cache
def tabular(name, bootstrap=EVALUATION):
    return small(
        name,
        network=TABLE,
        optimiser="sgd",
        target_period=0,
        bootstrap=bootstrap,
        **dict.fromkeys(RATES[name], RATE),
    )


class MDP:
    """ROWS transitions, equally many from each of `covered` of the S x A points, and the matrices they define."""

    def __init__(self, seed: int, covered: int):
        rng = np.random.default_rng(seed)
        self.pi = rng.dirichlet(np.ones(A), S).astype(np.float32)
        self.points = rng.permutation(S * A)[:covered]
        self.uncovered = np.setdiff1d(np.arange(S * A), self.points)
        draws = ROWS // covered
        point = self.points.repeat(draws)
        following = rng.integers(0, S, len(point))
        discount = np.where(rng.random(len(point)) < 0.2, 0.0, GAMMA)
        reward = rng.normal(size=len(point))
        self.reward = reward.reshape(covered, draws).mean(1)
        # Rows: covered points. Columns: discounted probability of every next (s', a') under the empirical MDP and pi.
        self.transition = np.zeros((covered, S * A))
        for i in range(len(point)):
            for a in range(A):
                self.transition[i // draws, following[i] * A + a] += discount[i] * self.pi[following[i], a] / draws
        eye = np.eye(S, dtype=np.float32)
        self.task = jnp.asarray(np.tile(self.pi.reshape(1, -1), (len(point), 1)))
        self.batch = Transition(
            obs=jnp.asarray(eye[point // A]),
            task=self.task,
            action=jnp.asarray(point % A, jnp.int32),
            reward=jnp.asarray(reward, jnp.float32),
            discount=jnp.asarray(discount, jnp.float32),
            next_obs=jnp.asarray(eye[following]),
        )

    def solve(self, initial, reward):
        """v = r + P v at the covered points, v = initial elsewhere; initial [S A, H], reward [covered]."""
        inside, outside = self.transition[:, self.points], self.transition[:, self.uncovered]
        value = np.asarray(initial, np.float64).copy()
        known = reward[:, None] + outside @ value[self.uncovered]
        value[self.points] = np.linalg.solve(np.eye(len(self.points)) - inside, known)
        return value

    def ask(self, function, state):
        """What the estimator says at all points, as [S A, H]."""
        got = np.asarray(function(state, jnp.eye(S), self.task[:S]), np.float64)
        return got.reshape(S * A, -1)


def solved(name, mdp, seed):
    estimator = tabular(name)
    before = estimator.init(SPEC, key=jax.random.key(seed))
    return estimator, before, train(estimator, before, mdp.batch, STEPS, key=jax.random.key(seed))[0]


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("covered", [EVERYWHERE, SOMEWHERE], ids=["full coverage", "partial coverage"])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**20))
def test_values_solve_the_bellman_equation(name, covered, seed):
    """Where there are data: v = r + gamma P v, with the initial value at points that have none."""
    mdp = MDP(seed, covered)
    estimator, before, after = solved(name, mdp, seed)
    ask = estimator.member_values if name == "bdqnp" else estimator.value
    np.testing.assert_allclose(mdp.ask(ask, after), mdp.solve(mdp.ask(ask, before), mdp.reward), atol=2e-5)
    if name == "bdqnp":
        members = mdp.ask(ask, after)
        np.testing.assert_allclose(mdp.ask(estimator.uncertainty, after)[:, 0], members.var(-1, ddof=1), atol=1e-5)
        if covered == EVERYWHERE:
            np.testing.assert_allclose(members.var(-1), 0.0, atol=1e-8)


@pytest.mark.parametrize("covered", [EVERYWHERE, SOMEWHERE], ids=["full coverage", "partial coverage"])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**20))
def test_uvu_errors_solve_the_bellman_equation_without_reward(covered, seed):
    """u - g is the discounted sum of the initial errors at the points without data that the policy runs into."""
    mdp = MDP(seed, covered)
    estimator, before, after = solved("uvu", mdp, seed)
    errors = mdp.solve(mdp.ask(estimator.errors, before), np.zeros(covered))
    np.testing.assert_allclose(mdp.ask(estimator.errors, after), errors, atol=2e-5)
    np.testing.assert_allclose(mdp.ask(estimator.uncertainty, after)[:, 0], 0.5 * (errors**2).mean(-1), atol=1e-5)


@pytest.mark.parametrize("name", ["dqn-rnd", "dqn-rnd-p"])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**20))
def test_rnd_uncertainty_propagates_initial_errors(name, seed):
    """Local errors vanish at the data; what is left comes from points without data, with the prior or without."""
    mdp = MDP(seed, SOMEWHERE)
    estimator, before, after = solved(name, mdp, seed)
    expected = mdp.solve(mdp.ask(estimator.uncertainty, before), np.zeros(SOMEWHERE))
    scale = estimator.intrinsic_scale
    np.testing.assert_allclose(mdp.ask(estimator.uncertainty, after) / scale, expected / scale, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mdp.ask(estimator.error, after)[mdp.points], 0.0, atol=1e-10)
    assert (mdp.ask(estimator.error, after)[mdp.uncovered] > 0.0).all()


def test_samples_agree_with_probabilities_in_expectation():
    """The mean step over sampled a' is the step with probabilities, within 5 standard errors of 4,000 samples."""
    mdp, samples = MDP(3, SOMEWHERE), 4_000

    def sample(key, next_obs, task):
        return jax.random.categorical(key, jnp.log(encoded_policy(next_obs, task)))

    expected_td, sampled_td = tabular("uvu"), tabular("uvu", Sampler(sample))
    state = expected_td.init(SPEC, key=jax.random.key(0))
    expected = expected_td.update(state, mdp.batch, key=jax.random.key(1))[0].params

    @quick_jit
    @jax.vmap
    def step(key):
        return sampled_td.update(state, mdp.batch, key=key)[0].params

    drawn = jax.tree.map(np.asarray, step(jax.random.split(jax.random.key(2), samples)))
    for one, many in zip(jax.tree.leaves(expected), jax.tree.leaves(drawn), strict=True):
        mean, spread = np.mean(many, axis=0, dtype=np.float64), np.std(many, axis=0, dtype=np.float64)
        assert (np.abs(mean - one) <= 5.0 * spread / np.sqrt(samples) + 1e-5).all()
        assert (spread > 0.0).any(), "nothing was sampled"


def test_uvu_errors_of_linear_td():
    """With fewer data than features: u - g = eps_0 - phi Phi^T Delta^-1 (Phi - P Phi_Y) w_0, at the data and beyond.

    Delta = Phi Phi^T - P Phi_Y Phi^T is Theorem 1's with the kernel phi . phi, w_0 the initial weights of u - g.
    Features are nearly orthogonal, so Delta is near I - P and TD converges; that it did is checked.
    """
    covered, width = SOMEWHERE, 24
    rng = np.random.default_rng(0)
    phi = (rng.normal(size=(S, A, width)) / np.sqrt(width)).astype(np.float32)
    mdp = MDP(7, covered)
    setting = {"optimiser": "sgd", "target_period": 0, "bootstrap": EVALUATION, "uvu_learning_rate": covered / 2}
    estimator = small("uvu", network=linear(phi), **setting)
    before = estimator.init(SPEC, key=jax.random.key(0))
    after = train(estimator, before, mdp.batch, 600, key=jax.random.key(0))[0]

    everywhere = phi.reshape(S * A, width).astype(np.float64)
    data, following = everywhere[mdp.points], mdp.transition @ everywhere
    delta = (data - following) @ data.T
    assert np.linalg.eigvals(delta).real.min() > 0.1
    initial = np.asarray(before.params["u"].weight, np.float64) - np.asarray(before.frozen["g"].weight, np.float64)
    moved = initial - data.T @ np.linalg.solve(delta, (data - following) @ initial)
    np.testing.assert_allclose(mdp.ask(estimator.errors, after), everywhere @ moved, atol=5e-5)
    assert np.abs(everywhere @ moved)[mdp.uncovered].max() > 0.1
