"""Problems whose answers can be said aloud, learned by every method with the paper's network and Adam."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from catalogue import ACTIONS, METHODS, PROBES, STATES, VARIANCES, probe, small, train, train_seeds

STEPS = 1_000
ONE_ACTION = probe((0, 0, 1.0, "end"), values={})
PROBLEMS = {**PROBES, "one action": ONE_ACTION}


@functools.cache
def learn(name, problem):
    """Trained states: one without a task, two seeds with one (the two programs that the contracts compile too)."""
    problem, estimator, keys = PROBLEMS[problem], small(name), jax.random.split(jax.random.key(1), 2)
    states = [estimator.init(problem.spec, key=jax.random.key(seed)) for seed in (0, 1)]
    if problem.spec.task_dim == 0:
        return [train(estimator, states[0], problem.batch, STEPS, key=keys[0])[0]]
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *states)
    trained, _ = train_seeds(estimator, stacked, problem.batch, STEPS, keys=keys)
    return [jax.tree.map(lambda x, k=k: jnp.asarray(np.asarray(x)[k]), trained) for k in range(2)]


def ask(function, state, problem):
    """[S, A] without a task, [Z, S, A] with one."""
    tasks = problem.spec.task_dim
    if tasks == 0:
        return np.asarray(function(state, jnp.eye(STATES), jnp.zeros((STATES, 0))))
    task = jnp.repeat(jnp.eye(tasks), STATES, axis=0)
    return np.asarray(function(state, jnp.tile(jnp.eye(STATES), (tasks, 1)), task)).reshape(tasks, STATES, ACTIONS)


def at(answers, point):
    s, a, *z = point
    return answers[(*z, s, a)]


@pytest.mark.parametrize("problem", PROBES)
@pytest.mark.parametrize("name", METHODS)
def test_value(name, problem):
    for state in learn(name, problem):
        answers = ask(small(name).value, state, PROBES[problem])
        for point, value in PROBES[problem].values.items():
            assert at(answers, point) == pytest.approx(value, abs=0.02), f"at (state, action, task) {point}"


@pytest.mark.parametrize("problem", PROBES)
@pytest.mark.parametrize("name", VARIANCES)
def test_no_uncertainty_where_the_data_say_everything(name, problem):
    """Every action that a policy could take is in the data: members agree, and u has found g."""
    for state in learn(name, problem):
        answers = ask(small(name).uncertainty, state, PROBES[problem])
        for point in PROBES[problem].values:
            assert at(answers, point) < 1e-4, f"at (state, action, task) {point}"


@pytest.mark.parametrize("name", [*VARIANCES, "dqn-rnd-p"])
def test_an_action_outside_the_data_stays_uncertain(name):
    """State 0, first action: known. Its second action: as uncertain as at initialisation, within a factor of 4."""
    estimator, (state,) = small(name), learn(name, "one action")
    fresh = estimator.init(ONE_ACTION.spec, key=jax.random.key(0))
    (known, unknown), (_, prior) = (ask(estimator.uncertainty, s, ONE_ACTION)[0] for s in (state, fresh))
    assert abs(known) < 1e-2 * unknown
    assert 0.25 * prior < unknown < 4.0 * prior
