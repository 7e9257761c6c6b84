"""One step of every method against the paper's equations, written out in slow loops, and against rlax.

The loops give the loss, and by hand its derivative with respect to the networks' outputs at (s, a); targets have none
(semi-gradient). The derivative goes through the network by `jax.vjp`, and plain gradient descent with rate one
shows the gradient that `update` used.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogue import ACTIONS, ROWS, random_batch, small, spec
from uvax.estimators import Greedy, Policy, Sampler

with warnings.catch_warnings():
    # Its dependency tensorflow-probability uses names that jax is about to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    import rlax

SGD = {"optimiser": "sgd", "learning_rate": 1.0}
RATES = {
    "uvu": {"uvu_learning_rate": 1.0},
    "dqn-rnd": {"rnd_learning_rate": 1.0},
    "dqn-rnd-p": {"rnd_learning_rate": 1.0},
}
seeds = given(seed=st.integers(0, 2**20))
few = settings(max_examples=3)


def action_scores(next_obs, task):
    return jnp.stack([next_obs[..., 0] + task[..., 0], next_obs[..., 1]], axis=-1)


BOOTSTRAPS = {
    "greedy": Greedy(),
    "policy": Policy(lambda next_obs, task: jax.nn.softmax(action_scores(next_obs, task))),
    "sampler": Sampler(lambda key, next_obs, task: jax.random.categorical(key, action_scores(next_obs, task))),
}


@functools.cache
def estimator_of(name, bootstrap="greedy", **changes):
    return small(name, bootstrap=BOOTSTRAPS[bootstrap], **SGD, **RATES.get(name, {}), **changes)


def draw(estimator, seed):
    """A state whose target network is not its online network, a batch, and the key of the step."""
    keys = jax.random.split(jax.random.key(seed), 4)
    state = estimator.init(spec(), key=keys[0])
    other = estimator.init(spec(), key=keys[1])
    return state._replace(target=other.target), random_batch(keys[2]), keys[3]


def f64(x):
    return np.asarray(x, np.float64)


def given_weights(bootstrap, batch, key):
    """pi(a' | s', z) [B, A] of a given policy; None when greedy."""
    if isinstance(bootstrap, Policy):
        return f64(bootstrap.probs(batch.next_obs, batch.task))
    if isinstance(bootstrap, Sampler):
        return np.eye(ACTIONS)[np.asarray(bootstrap.sample(key, batch.next_obs, batch.task))]
    return None


def at_next(values, scores, pi, i):
    """v(s'_i, a') with a' = argmax of the scores, or the expectation under the given policy."""
    if pi is None:
        return values[i, int(np.argmax(scores[i]))]
    return sum(pi[i, a] * values[i, a] for a in range(ACTIONS))


def td_loop(outputs, targets, batch):
    """Eq. tdloss / uvu_td_loss: 1/(2B) sum_i sum_k (y_ik - f_k(s_i, a_i))^2, and d/df [B, A, H]."""
    loss, slope = 0.0, np.zeros(outputs.shape)
    for i in range(ROWS):
        a = int(batch.action[i])
        for k in range(outputs.shape[-1]):
            error = outputs[i, a, k] - targets[i, k]
            loss += 0.5 * error**2 / ROWS
            slope[i, a, k] += error / ROWS
    return loss, slope


def through(network, slope, batch):
    """The gradient of the network's parameters for that slope of its outputs at s."""
    outputs, pull = jax.vjp(lambda net: net(batch.obs, batch.task), network)
    return pull(jnp.asarray(slope, outputs.dtype))[0]


def assert_gradient(before, after, expected):
    for old, new, grad in zip(*(jax.tree.leaves(tree) for tree in (before, after, expected)), strict=True):
        np.testing.assert_allclose(f64(old) - f64(new), grad, rtol=1e-4, atol=2e-6)
    assert max(float(jnp.abs(grad).max()) for grad in jax.tree.leaves(expected)) > 1e-3, "nothing was compared"


def q_targets(state, batch, pi):
    """r_i + d_i Q_target(s'_i, argmax_a Q_online(s'_i, a)): Double DQN (Eq. lossimp)."""
    network, target = state.params["q"], state.target["q"]
    online_next = f64(network(batch.next_obs, batch.task)[..., 0])
    target_next = f64(target(batch.next_obs, batch.task)[..., 0])
    reward, discount = f64(batch.reward), f64(batch.discount)
    return np.array([[reward[i] + discount[i] * at_next(target_next, online_next, pi, i)] for i in range(ROWS)])


@pytest.mark.parametrize("bootstrap", BOOTSTRAPS)
@pytest.mark.parametrize("changes", [{}, {"prior_scale": 3.0, "error_scale": 0.5}], ids=["paper", "scaled"])
@few
@seeds
def test_uvu_is_the_papers_equations(bootstrap, changes, seed):
    estimator = estimator_of("uvu", bootstrap, **changes)
    state, batch, key = draw(estimator, seed)
    new, metrics = estimator.update(state, batch, key=key)

    c, scale = estimator.error_scale, estimator.prior_scale
    u, g = state.params["u"], state.frozen["g"]
    u_s, g_s = scale * f64(u(batch.obs, batch.task)), scale * f64(g(batch.obs, batch.task))
    u_next, g_next = scale * f64(u(batch.next_obs, batch.task)), scale * f64(g(batch.next_obs, batch.task))
    u_target_next = scale * f64(state.target["u"](batch.next_obs, batch.task))
    q_next = f64(state.params["q"](batch.next_obs, batch.task)[..., 0])
    pi = given_weights(estimator.bootstrap, batch, key)

    heads, own_actions = u_s.shape[-1], set()
    targets = np.zeros((ROWS, heads))
    for i in range(ROWS):
        discount, action = float(batch.discount[i]), int(batch.action[i])
        for k in range(heads):
            # Appendix B, independent bootstrapping: head k's own Q-estimate Q + c eps_k chooses its next action ...
            own_q = q_next + c * (u_next[..., k] - g_next[..., k])
            own_actions.add((i, int(np.argmax(own_q[i]))))
            # ... which is used in the synthetic reward (Eq. synthetic_rewards) and in the bootstrap alike.
            synthetic_reward = g_s[i, action, k] - discount * at_next(g_next[..., k], own_q, pi, i)
            targets[i, k] = synthetic_reward + discount * at_next(u_target_next[..., k], own_q, pi, i)
    assert len(own_actions) > ROWS, "heads must disagree about the next action somewhere, or this tests less"

    loss_u, slope = td_loop(u_s, targets, batch)
    assert float(metrics["loss_u"]) == pytest.approx(loss_u, rel=1e-5)
    assert_gradient(u, new.params["u"], through(u, scale * slope, batch))

    q = state.params["q"]
    loss_q, slope = td_loop(f64(q(batch.obs, batch.task)), q_targets(state, batch, pi), batch)
    assert float(metrics["loss_q"]) == pytest.approx(loss_q, rel=1e-5)
    assert_gradient(q, new.params["q"], through(q, slope, batch))
    assert float(metrics["loss"]) == pytest.approx(loss_u + loss_q, rel=1e-5)

    errors = u_s - g_s
    np.testing.assert_allclose(
        estimator.uncertainty(state, batch.obs, batch.task), 0.5 * (errors**2).mean(axis=-1), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("name", ["dqn-rnd", "dqn-rnd-p"])
@pytest.mark.parametrize("bootstrap", ["greedy", "policy"])
@few
@seeds
def test_rnd_is_the_papers_equations(name, bootstrap, seed):
    estimator = estimator_of(name, bootstrap, intrinsic_scale=7.0)
    state, batch, key = draw(estimator, seed)
    new, metrics = estimator.update(state, batch, key=key)

    u, g, intrinsic = state.params["u"], state.frozen["g"], state.params["intrinsic"]
    u_s, g_s = f64(u(batch.obs, batch.task)), f64(g(batch.obs, batch.task))
    difference = f64(u(batch.next_obs, batch.task)) - f64(g(batch.next_obs, batch.task))
    heads = u_s.shape[-1]

    def local_error(signed):
        """Eq. rnd_loss: one half of the mean over heads, times the scale of intrinsic rewards."""
        return estimator.intrinsic_scale * 0.5 * sum(signed[k] ** 2 for k in range(heads)) / heads

    q_next = f64(state.params["q"](batch.next_obs, batch.task)[..., 0])
    intrinsic_next = f64(state.target["intrinsic"](batch.next_obs, batch.task)[..., 0])
    intrinsic_s = f64(intrinsic(batch.obs, batch.task))
    error_s = np.zeros((ROWS, ACTIONS))
    for i in range(ROWS):
        for a in range(ACTIONS):
            error_s[i, a] = local_error(u_s[i, a] - g_s[i, a])
            if estimator.prior:  # "Intrinsic reward priors": the error is part of the output, without a gradient
                intrinsic_next[i, a] += local_error(difference[i, a])
                intrinsic_s[i, a, 0] += error_s[i, a]
    pi = given_weights(estimator.bootstrap, batch, key)
    discount = f64(batch.discount)
    targets = np.array(
        [[error_s[i, int(batch.action[i])] + discount[i] * at_next(intrinsic_next, q_next, pi, i)] for i in range(ROWS)]
    )
    distilled = np.array([g_s[i, int(batch.action[i])] for i in range(ROWS)])

    for metric, network, outputs, wanted in (
        ("loss_q", "q", f64(state.params["q"](batch.obs, batch.task)), q_targets(state, batch, pi)),
        ("loss_intrinsic", "intrinsic", intrinsic_s, targets),
        ("loss_u", "u", u_s, distilled),
    ):
        loss, slope = td_loop(outputs, wanted, batch)
        assert float(metrics[metric]) == pytest.approx(loss, rel=1e-5), metric
        assert_gradient(state.params[network], new.params[network], through(state.params[network], slope, batch))

    expected = intrinsic_s[..., 0]
    np.testing.assert_allclose(estimator.uncertainty(state, batch.obs, batch.task), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        estimator.error(state, batch.obs, batch.task), error_s / estimator.intrinsic_scale, rtol=1e-4, atol=1e-6
    )


def rlax_loss(q_s, q_next_target, q_next_online, batch):
    """Mean over the batch of half the squared TD error of rlax's double Q-learning; q [B, A]."""
    errors = jax.vmap(rlax.double_q_learning)(
        q_s, batch.action, batch.reward, batch.discount, q_next_target, q_next_online
    )
    return 0.5 * jnp.mean(jnp.square(errors))


@few
@seeds
def test_dqn_is_rlax_double_q_learning(seed):
    estimator = estimator_of("dqn")
    state, batch, key = draw(estimator, seed)
    new, metrics = estimator.update(state, batch, key=key)
    q_target = estimator.value(state._replace(params=state.target), batch.next_obs, batch.task)

    def loss(params):
        online = state._replace(params=params)
        q_s, q_next = (estimator.value(online, obs, batch.task) for obs in (batch.obs, batch.next_obs))
        return rlax_loss(q_s, q_target, q_next, batch)

    value, grads = jax.value_and_grad(loss)(state.params)
    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    assert_gradient(state.params, new.params, grads)


@pytest.mark.parametrize("prior_scale", [0.0, 2.0])
@few
@seeds
def test_bdqnp_is_rlax_double_q_learning_for_every_member(prior_scale, seed):
    estimator = estimator_of("bdqnp", prior_scale=prior_scale)
    state, batch, key = draw(estimator, seed)
    new, metrics = estimator.update(state, batch, key=key)
    q_target = estimator.member_values(state._replace(params=state.target), batch.next_obs, batch.task)

    def loss(params):
        online = state._replace(params=params)
        q_s, q_next = (estimator.member_values(online, obs, batch.task) for obs in (batch.obs, batch.next_obs))
        return sum(rlax_loss(q_s[..., k], q_target[..., k], q_next[..., k], batch) for k in range(estimator.members))

    value, grads = jax.value_and_grad(loss)(state.params)
    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    assert_gradient(state.params, new.params, grads)

    members = f64(estimator.member_values(state, batch.obs, batch.task))
    np.testing.assert_allclose(estimator.value(state, batch.obs, batch.task), members.mean(-1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        estimator.uncertainty(state, batch.obs, batch.task), members.var(-1, ddof=1), rtol=1e-4, atol=1e-6
    )


CERTAIN = jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0])


@pytest.mark.parametrize("name", ["dqn", "bdqnp", "dqn-rnd", "dqn-rnd-p", "uvu"])
def test_a_certain_policy_equals_a_certain_sampler(name):
    policy = small(name, bootstrap=Policy(lambda next_obs, task: jnp.where(next_obs[:, :1] > 0, *CERTAIN)))
    sampler = small(name, bootstrap=Sampler(lambda key, next_obs, task: (next_obs[:, 0] > 0).astype(jnp.int32)))
    state, batch, key = draw(policy, 0)
    one, other = policy.update(state, batch, key=key), sampler.update(state, batch, key=key)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["bdqnp", "uvu"])
def test_shared_bootstrap_is_another_method(name):
    """The ablation: one next action for all heads or members. It must differ from independent bootstrapping."""
    estimator, shared = estimator_of(name), estimator_of(name, shared_bootstrap=True)
    state, batch, key = draw(estimator, 0)
    loss, shared_loss = (float(e.update(state, batch, key=key)[1]["loss"]) for e in (estimator, shared))
    assert abs(loss - shared_loss) > 1e-3

    # With all heads choosing Q's argmax, it is what a sampler that knows Q would give.
    def best(key, next_obs, task):
        return jnp.argmax(estimator.value(state, next_obs, task), axis=-1)

    told = small(name, bootstrap=Sampler(best), **SGD, **RATES.get(name, {}))
    assert shared_loss == pytest.approx(float(told.update(state, batch, key=key)[1]["loss"]), rel=1e-5)


@pytest.mark.parametrize(("bootstrap", "sentence"), [
    (Policy(lambda next_obs, task: jnp.ones(ROWS)), r"Policy.probs returned shape \[12\]; expected \[12, 2\]"),
    (Sampler(lambda key, next_obs, task: jnp.zeros((ROWS, 1), jnp.int32)),
     r"Sampler.sample returned shape \[12, 1\]; expected \[12\]"),
])  # fmt: skip
def test_a_policy_of_another_shape_is_refused(bootstrap, sentence):
    estimator = small("dqn", bootstrap=bootstrap)
    state, batch, key = draw(estimator, 0)
    with pytest.raises(ValueError, match=sentence):
        estimator.update(state, batch, key=key)
