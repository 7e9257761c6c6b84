"""The chain of Section 3 against values said aloud and against the oracle's inputs."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.data.arrays import from_arrays
from uvax.envs import Chain
from uvax.envs.chain import A, B
from uvax.errors import InvalidInput
from uvax.theory.tabular import tabular_values

ORACLE = pathlib.Path(__file__).parents[1] / "data" / "oracle" / "chain.npz"


@pytest.fixture(params=["c0", "c1"])
def case(request):
    with np.load(ORACLE) as arrays:
        prefix = f"{request.param}_"
        return {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}


def test_same_problem_as_the_oracle(case):
    chain = Chain(length=int(case["n"]), onehot=bool(case["onehot"]))
    problem = chain.td_problem(case["ztrain"])
    for ours, theirs in zip(problem, ("X", "Y", "P", "r"), strict=True):
        assert ours.dtype == np.float64
        assert np.array_equal(ours, case[theirs])
    assert np.array_equal(chain.grid(case["zgrid"], A), case["T_a"])
    assert np.array_equal(chain.grid(case["zgrid"], B), case["T_b"])
    assert np.array_equal(chain.data(case["ztrain"]).terminated, case["done"])


def test_data_and_closed_form_are_the_same_transitions(case):
    """[obs, one-hot action, task] of the data is X, and next pairs weighted by the policy are P over Y."""
    chain = Chain(length=int(case["n"]), onehot=bool(case["onehot"]))
    data = chain.data(case["ztrain"])
    X, Y, P, reward = chain.td_problem(case["ztrain"])
    inputs = np.concatenate([data.obs, np.eye(2)[data.action], data.task], axis=1)
    assert np.allclose(inputs, X, atol=1e-7)
    assert np.array_equal(data.reward, reward)
    probs = np.asarray(Chain.next_probs(jnp.asarray(data.next_obs), jnp.asarray(data.task)))
    next_inputs = [
        np.concatenate([data.next_obs, np.tile(np.eye(2)[a], (len(X), 1)), data.task], axis=1) for a in (A, B)
    ]
    goes_on = ~data.terminated[:, None]
    expected = sum(probs[:, [a]] * goes_on * next_inputs[a] for a in (A, B))
    assert np.allclose(P @ Y, expected, atol=1e-6)
    assert np.allclose(P.sum(axis=1), goes_on[:, 0])


@pytest.mark.parametrize("length", [1, 2, 3, 10])
def test_values_said_aloud(length):
    """From s, action a and then a with probability z: reach the end and be paid gamma z each step away from it."""
    chain, gamma, z = Chain(length=length), 0.7, 0.4
    values = tabular_values(chain.transition, chain.reward, chain.policy(z), gamma)
    away = np.arange(length)[::-1]
    assert np.allclose(values[:, A], (gamma * z) ** away)
    assert np.array_equal(values[:, B], np.zeros(length))


@pytest.mark.parametrize("onehot", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_steps_are_the_matrices(length, onehot):
    chain = Chain(length=length, onehot=onehot)
    start = chain.reset(key=jax.random.key(0), z=0.25)
    assert chain.task(start).tolist() == [0.25]
    advance = jax.jit(chain.step)
    for s in range(length):
        for action in (A, B):
            state = start._replace(position=jnp.int32(s))
            after, step = advance(state, action)
            assert float(step.reward) == chain.reward[s, action]
            assert bool(step.terminated) == (chain.transition[s, action].sum() == 0)
            assert not step.truncated
            if not step.terminated:
                assert chain.transition[s, action, int(after.position)] == 1
                expected = np.eye(length)[s + 1] if onehot else [(s + 1) / (length - 1)]
                assert np.allclose(chain.observe(after), expected)


def test_environment_and_data_agree():
    chain = Chain(length=5, onehot=False)
    data = chain.data([0.5])
    state = chain.reset(key=jax.random.key(0), z=0.5)
    for i in range(5):
        assert np.allclose(chain.observe(state), data.obs[i])
        state, step = chain.step(state, int(data.action[i]))
        assert float(step.reward) == data.reward[i]
        assert bool(step.terminated) == data.terminated[i]
        if not step.terminated:
            assert np.allclose(chain.observe(state), data.next_obs[i])


def test_is_a_dataset():
    chain = Chain(length=4)
    data = from_arrays(**chain.data([0.0, 1.0])._asdict(), num_actions=2, environment=chain.params())
    assert len(data) == 8
    assert data.spec == chain.spec


def test_z_is_drawn_when_not_given():
    states = jax.vmap(lambda key: Chain().reset(key=key))(jax.random.split(jax.random.key(0), 1_000))
    assert np.all((states.z >= 0) & (states.z <= 1))
    assert abs(np.mean(states.z) - 0.5) < 0.05
    assert np.all(states.position == 0)


def test_bad_input_is_refused():
    for length in (0, -1):
        with pytest.raises(InvalidInput, match="length must be an integer from 1"):
            Chain(length=length)
    for z in ([1.2], [-0.1], [], [float("nan")], np.zeros((2, 2))):
        with pytest.raises(InvalidInput, match="z must be a list of probabilities"):
            Chain().data(z)
    with pytest.raises(InvalidInput, match="action must be an integer from 0 to 1"):
        Chain().step(Chain().reset(key=jax.random.key(0)), 2)
