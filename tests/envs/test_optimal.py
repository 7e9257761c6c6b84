"""The optimal-policy oracle against searches and dynamic programmes written another way, and against play."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.envs import GoToDoor, ceiling, optimal_action, optimal_return
from uvax.envs.go_to_door import FORWARD, LEFT, OPEN, RIGHT
from uvax.envs.optimal import UNREACHABLE, distances
from uvax.errors import InvalidInput

DELTAS = [(1, 0), (0, 1), (-1, 0), (0, -1)]


@jax.jit
def _reset(env, key):
    return env.reset(key=key)


def board(size, seed):
    return jax.device_get(_reset(GoToDoor(size=size), jax.random.key(seed)))


def follow(state, pose, action):
    """The rules once more, in plain Python: the next pose, or None when the target door opens."""
    x, y, direction = pose
    ahead = x + DELTAS[direction][0], y + DELTAS[direction][1]
    if action in (LEFT, RIGHT):
        return x, y, (direction + (1 if action == RIGHT else -1)) % 4
    if action == FORWARD:
        inside = 0 < ahead[0] < state.width - 1 and 0 < ahead[1] < state.height - 1
        return (*ahead, direction) if inside else pose
    doors = {tuple(cell): colour for cell, colour in zip(state.door_pos, state.door_color, strict=True)}
    return None if doors.get(ahead) == state.target else pose


def poses(state):
    return [(x, y, d) for x in range(1, state.width - 1) for y in range(1, state.height - 1) for d in range(4)]


def search(state):
    """Breadth-first from every pose forwards, where the oracle goes once backwards."""
    found = {}
    for start in poses(state):
        queue, seen = collections.deque([(start, 0)]), {start}
        while queue:
            pose, moves = queue.popleft()
            if follow(state, pose, OPEN) is None:
                found[start] = moves
                break
            for action in (LEFT, RIGHT, FORWARD):
                after = follow(state, pose, action)
                if after not in seen:
                    seen.add(after)
                    queue.append((after, moves + 1))
    return found


def best_values(state, horizon, gamma):
    """Backward induction with a maximum over all four actions: it knows nothing of shortest paths."""
    value = dict.fromkeys(poses(state), 0.0)
    for _ in range(horizon):
        placed = np.mean(list(value.values()))
        value = {
            pose: max(
                1 + gamma * placed if after is None else gamma * value[after]
                for after in (follow(state, pose, action) for action in range(4))
            )
            for pose in value
        }
    return value


_distances = jax.jit(distances)


@pytest.mark.parametrize("seed", range(6))
def test_distances_by_another_search(seed):
    state = board(size=5 + seed, seed=seed)
    table = np.asarray(_distances(state))
    found = search(state)
    assert table[table < UNREACHABLE].size == len(found) == len(poses(state))
    assert all(table[pose] == moves for pose, moves in found.items())


@jax.jit
def _from_every_pose(state, poses, gamma):
    def ask(pose):
        return optimal_return(state._replace(pos=pose[:2], direction=pose[2]), horizon=50, gamma=gamma)

    return jax.vmap(ask)(poses)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("size", [5, 7])
def test_no_policy_is_better(size, gamma):
    state = board(size=size, seed=size)
    value = best_values(state, 50, gamma)
    found = _from_every_pose(state, jnp.array(poses(state), jnp.int32), gamma)
    assert np.allclose(found, [value[pose] for pose in poses(state)], rtol=1e-5)


def test_short_horizons_by_hand():
    """In front of the door: one step pays 1 and every further one at least what the mean pose is worth."""
    state = board(size=5, seed=0)
    table = np.asarray(_distances(state))
    x, y, direction = np.argwhere(table == 0)[0]
    state = state._replace(pos=jnp.array([x, y], jnp.int32), direction=jnp.int32(direction))
    ask = jax.jit(optimal_return, static_argnames="horizon")
    assert float(ask(state, horizon=0)) == 0
    assert float(ask(state, horizon=1)) == 1
    # One pose of the 36 on a 5x5 board faces the door.
    assert float(ask(state, horizon=2)) == pytest.approx(1 + 1 / 36)
    assert float(ask(state, horizon=2, gamma=0.5)) == pytest.approx(1 + 0.5 / 36)
    turned = state._replace(direction=jnp.int32((direction + 2) % 4))
    assert float(ask(turned, horizon=2)) == 0
    assert float(ask(turned, horizon=3, gamma=0.5)) == 0.25


def test_absent_target_is_worth_nothing():
    state = board(size=6, seed=1)
    absent = next(c for c in range(6) if c not in state.door_color)
    state = jax.tree.map(jnp.asarray, state._replace(target=jnp.int32(absent)))
    assert np.all(distances(state) == UNREACHABLE)
    assert float(optimal_return(state, horizon=50)) == 0
    assert int(optimal_action(state)) == LEFT


@functools.partial(jax.jit, static_argnums=2)
def _play(env, key, episodes):
    def episode(key):
        key_reset, key_steps = jax.random.split(key)
        state = env.reset(key=key_reset)
        table = distances(state)

        def advance(state, key):
            after, step = env.step(state, optimal_action(state, table), key=key)
            return after, step.reward

        _, rewards = jax.lax.scan(advance, state, jax.random.split(key_steps, env.max_steps))
        return rewards.sum(), rewards @ 0.9 ** jnp.arange(env.max_steps, dtype=jnp.float32)

    return jax.vmap(episode)(jax.random.split(key, episodes))


@pytest.mark.parametrize("size", [5, 10])
def test_playing_shortest_paths_earns_the_ceiling(size):
    """Within 4 standard errors of the mean over 2,000 episodes (about 0.1 percent)."""
    returns, discounted = _play(GoToDoor(size=jnp.int32(size)), jax.random.key(0), 2_000)
    for played, gamma in ((returns, 1.0), (discounted, 0.9)):
        stderr = np.std(played, ddof=1) / np.sqrt(len(played))
        assert abs(np.mean(played) - ceiling(GoToDoor(size=size), gamma=gamma).mean) < 4 * stderr


@pytest.mark.parametrize("size", [5, 8])
def test_ceiling_exact_and_sampled(size):
    env = GoToDoor(size=size)
    exact = ceiling(env)
    assert exact.stderr == 0
    # The walls are alike: boards mirrored or turned are as likely.
    assert np.allclose(exact.by_wall, exact.mean, rtol=1e-6)
    sampled = ceiling(env, episodes=2_000, key=jax.random.key(0))
    assert abs(sampled.mean - exact.mean) < 4 * sampled.stderr
    assert np.all(np.abs(sampled.by_wall - exact.by_wall) < 4.5 * sampled.by_wall_stderr)


def test_ceiling_falls_with_size():
    means = [ceiling(GoToDoor(size=size)).mean for size in (5, 6, 7)]
    assert means == sorted(means, reverse=True)
    assert means[0] == pytest.approx(11.2086, abs=1e-3)


def test_optimal_action_takes_one_off_the_distance():
    env = GoToDoor(size=10)
    states = env.batch_reset(500, key=jax.random.key(2))

    @jax.jit
    @jax.vmap
    def check(state):
        table = distances(state)
        action = optimal_action(state, table)
        after, step = env.step(state, action, key=jax.random.key(0))
        here = table[state.pos[0], state.pos[1], state.direction]
        there = table[after.pos[0], after.pos[1], after.direction]
        return here, there, step.reward, optimal_action(state) == action

    here, there, reward, same = jax.device_get(check(states))
    assert np.array_equal(reward == 1, here == 0)
    assert np.all(there[here > 0] == here[here > 0] - 1)
    assert np.all(same)


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match="pass grid=20 or more"):
        distances(board(size=20, seed=0)._replace(width=jnp.int32(20)))
    with pytest.raises(InvalidInput, match="horizon must be an integer from 0"):
        optimal_return(board(size=5, seed=0), horizon=-1)
    for gamma in (1.1, -0.1, float("nan")):
        with pytest.raises(InvalidInput, match="gamma must be a number from 0 to 1"):
            ceiling(GoToDoor(), gamma=gamma)
        with pytest.raises(InvalidInput, match="gamma must be a number from 0 to 1"):
            optimal_return(board(size=5, seed=0), horizon=50, gamma=gamma)
    with pytest.raises(InvalidInput, match="needs a key"):
        ceiling(GoToDoor(), episodes=10)
    with pytest.raises(InvalidInput, match="one size"):
        ceiling(GoToDoor(size=jnp.array([5, 6])))
