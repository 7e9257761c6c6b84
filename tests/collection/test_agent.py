"""The online agent: who acts where, what is remembered, what is random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.collection import CollectionSettings, agent, preset_settings
from uvax.envs import GoToDoor
from uvax.envs.go_to_door import WALLS
from uvax.errors import InvalidInput
from uvax.estimators import DQN

ENV = GoToDoor(size=5)
TINY = CollectionSettings(
    steps=1_600, environments=8, learning_starts=80, dqn=DQN(width=16, depth=1, batch_size=16, target_period=10)
)


@pytest.fixture(scope="module")
def finished() -> agent.Agent:
    start = agent.init(ENV, TINY, key=jax.random.key(0))
    return agent.advance(start, ENV, jax.random.key(1), settings=TINY, length=TINY.vector_steps)[0]


def test_the_learner_acts_on_south_and_west_and_the_random_network_elsewhere():
    state = ENV.batch_reset(512, key=jax.random.key(3))
    learner = TINY.dqn.init(ENV.spec, key=jax.random.key(4))
    random = TINY.dqn.init(ENV.spec, key=jax.random.key(5))
    acts = np.asarray(agent.mixture_action(ENV, TINY.dqn, learner, random, state))
    obs, task = ENV.observe(state), ENV.task(state)
    by_learner = np.asarray(jnp.argmax(TINY.dqn.value(learner, obs, task), -1))
    by_random = np.asarray(jnp.argmax(TINY.dqn.value(random, obs, task), -1))
    wall = np.asarray(ENV.target_wall(state))
    expert = (wall == WALLS.index("south")) | (wall == WALLS.index("west"))
    np.testing.assert_array_equal(acts, np.where(expert, by_learner, by_random))
    assert expert.any()
    assert (~expert).any()
    assert (by_learner != by_random).any()


def test_the_history_is_what_the_environment_did(finished):
    """Replaying the recorded actions from the recorded observations gives the recorded next observations."""
    replay = jax.tree.map(np.asarray, finished.replay)
    obs, next_obs = replay.obs.astype(int), replay.next_obs.astype(int)
    # Within an episode the next observation is the following one; at its end the true one is kept.
    same_episode = ~replay.start[1:]
    np.testing.assert_array_equal(next_obs[:-1][same_episode], obs[1:][same_episode])
    assert replay.truncated[49].all()
    assert replay.start[50].all()
    np.testing.assert_array_equal(next_obs[49][:, 3:], obs[49][:, 3:])  # doors are those of the episode that ended
    turned = replay.action == 0
    moved = turned & (replay.reward == 0)
    np.testing.assert_array_equal(next_obs[moved][:, 2], (obs[moved][:, 2] - 2) % 4 + 1)
    assert not replay.terminated.any()
    assert set(np.unique(replay.reward)) <= {0, 1}


def test_the_random_network_stays_and_the_learner_moves(finished):
    start = agent.init(ENV, TINY, key=jax.random.key(0))
    for before, after in zip(jax.tree.leaves(start.random), jax.tree.leaves(finished.random), strict=True):
        np.testing.assert_array_equal(before, after)
    before, after = jax.tree.leaves(start.learner.params), jax.tree.leaves(finished.learner.params)
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(before, after, strict=True))
    # No gradient step before `learning_starts` transitions, one for every vector step after.
    assert int(finished.learner.step) == TINY.vector_steps - (TINY.learning_starts // TINY.environments - 1)


def test_chunks_of_any_length_give_the_same_bits(finished):
    state = agent.init(ENV, TINY, key=jax.random.key(0))
    for length in (70, 1, 129):
        state, _ = agent.advance(state, ENV, jax.random.key(1), settings=TINY, length=length)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(finished), strict=True):
        np.testing.assert_array_equal(a, b)


def test_epsilon_falls_linearly_and_then_stays():
    settings = CollectionSettings(steps=1_000, environments=10, epsilon_decay=0.5)
    at = [float(settings.epsilon(jnp.int32(step))) for step in (0, 25, 50, 99)]
    np.testing.assert_allclose(at, [1.0, 0.525, 0.05, 0.05], rtol=1e-6)


def test_exploration_rate_is_met():
    """With epsilon 1 actions are uniform: chi-square over 4 actions, error rate 1e-4."""
    settings = CollectionSettings(steps=20_000, environments=100, epsilon_end=1.0, learning_starts=10**9, dqn=TINY.dqn)
    state = agent.init(ENV, settings, key=jax.random.key(0))
    state, _ = agent.advance(state, ENV, jax.random.key(2), settings=settings, length=200)
    counts = np.bincount(np.asarray(state.replay.action).ravel(), minlength=4)
    assert np.sum((counts - 5_000) ** 2 / 5_000) < 21.1


def test_the_paper_preset_is_the_papers_table():
    settings = preset_settings("paper", size=10)
    dqn = settings.dqn
    assert (dqn.width, dqn.depth, dqn.batch_size, dqn.gamma) == (512, 3, 512, 0.9)
    assert (dqn.learning_rate, dqn.target_period, dqn.target_lambda) == (3e-4, 256, 1.0)
    assert dqn.adam_epsilon == 0.005
    assert (settings.environments, settings.updates) == (1, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("environments", 0), ("updates", 0), ("epsilon_start", 1.5), ("epsilon_decay", 0.0), ("steps", 15)],
)
def test_impossible_settings_are_refused_with_a_sentence(field, value):
    with pytest.raises(InvalidInput, match=f"{field} is {value}"):
        CollectionSettings(**{"environments": 2, field: value})


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(InvalidInput, match=r"unknown preset 'cpuu': did you mean 'cpu'"):
        preset_settings("cpuu", size=5)
