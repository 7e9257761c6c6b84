"""The rules and invariants of GoToDoor, the batched path, and its random draws against their exact distribution."""

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from uvax.envs import COLOURS, WALLS, GoToDoor, State
from uvax.envs.go_to_door import FORWARD, LEFT, OPEN, RIGHT, check_range, in_front
from uvax.errors import InvalidInput

STEPS = 60
ALPHA = 1e-5  # of each goodness-of-fit test here; with the seeds left free, fewer than 1 run in 1,000 would fail

seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(5, 20)
actions = st.lists(st.integers(0, 3), min_size=STEPS, max_size=STEPS)


@jax.jit
def _walk(env, key, targets, actions):
    """All states of one episode of STEPS actions, first to last, and its steps."""
    key_reset, key_steps = jax.random.split(key)
    state = env.reset(key=key_reset)
    state = env.with_target(state, jnp.where(targets < 0, state.target, targets))

    def advance(state, inputs):
        action, key = inputs
        after, step = env.step(state, action, key=key)
        return after, (after, step)

    _, (after, steps) = jax.lax.scan(advance, state, (actions, jax.random.split(key_steps, len(actions))))
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), state, after), steps


@jax.jit
def _reset(env, key):
    return env.reset(key=key)


@jax.jit
def _step(env, state, action, key):
    return env.step(state, action, key=key)


def walk(size, seed, actions, target=-1, max_steps=50):
    env = GoToDoor(size=jnp.int32(size), max_steps=max_steps)
    out = _walk(env, jax.random.key(seed), jnp.int32(target), jnp.asarray(actions, jnp.int32))
    return jax.device_get(out)


def facing_target(size=7, seed=0):
    """A state in front of the target door, facing it."""
    state = _reset(GoToDoor(size=size), jax.random.key(seed))
    wall = int(GoToDoor().target_wall(state))
    inward = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])[wall]
    return state._replace(pos=state.door_pos[wall] + inward, direction=jnp.int32([3, 1, 2, 0][wall]))


def with_pose(state, x, y, direction):
    return state._replace(pos=jnp.array([x, y]), direction=jnp.int32(direction))


@settings(deadline=None, max_examples=100)
@given(sizes, seeds, actions, st.integers(-1, 5))
def test_invariants(size, seed, actions, target):
    states, steps = walk(size, seed, actions, target)
    width, height = states.width[0], states.height[0]
    assert 5 <= width <= size
    assert 5 <= height <= size
    assert np.all((states.pos >= 1) & (states.pos <= np.array([width, height]) - 2)), "the agent is never in a wall"
    assert np.all((states.direction >= 0) & (states.direction < 4))
    assert len(set(states.door_color[0])) == 4
    assert set(states.door_color[0]) <= set(range(6))
    for field in ("width", "height", "door_pos", "door_color", "target"):
        assert np.all(getattr(states, field) == getattr(states, field)[0]), f"{field} never changes"
    north, south, west, east = states.door_pos[0]
    assert north[1] == 0
    assert south[1] == height - 1
    assert west[0] == 0
    assert east[0] == width - 1
    assert 2 <= min(north[0], south[0]) <= max(north[0], south[0]) <= width - 3
    assert 2 <= min(west[1], east[1]) <= max(west[1], east[1]) <= height - 3
    assert np.array_equal(states.time, np.arange(STEPS + 1))
    assert np.array_equal(steps.truncated, states.time[1:] >= 50)
    assert not np.any(steps.terminated)


@settings(deadline=None, max_examples=100)
@given(sizes, seeds, actions, st.integers(-1, 5))
def test_only_the_right_door_pays(size, seed, actions, target):
    states, steps = walk(size, seed, actions, target)
    for t, action in enumerate(actions):
        x, y = states.pos[t] + [(1, 0), (0, 1), (-1, 0), (0, -1)][states.direction[t]]
        doors = {tuple(cell): colour for cell, colour in zip(states.door_pos[t], states.door_color[t], strict=True)}
        pays = action == OPEN and doors.get((x, y)) == states.target[t]
        assert steps.reward[t] == float(pays)
        if not pays:
            inside = 0 < x < states.width[t] - 1 and 0 < y < states.height[t] - 1
            expected = (x, y) if action == FORWARD and inside else tuple(states.pos[t])
            turn = {LEFT: -1, RIGHT: 1}.get(action, 0)
            assert tuple(states.pos[t + 1]) == expected
            assert states.direction[t + 1] == (states.direction[t] + turn) % 4


@settings(deadline=None, max_examples=50)
@given(sizes, seeds, actions, st.sampled_from([[LEFT] * 4, [RIGHT] * 4, [LEFT, RIGHT], [RIGHT, LEFT]]))
def test_turning_four_times_is_nothing(size, seed, actions, turns):
    before = STEPS - len(turns)
    states, _ = walk(size, seed, actions[:before] + turns)
    assert np.array_equal(states.pos[before], states.pos[-1])
    assert states.direction[before] == states.direction[-1]


@settings(deadline=None, max_examples=50)
@given(st.integers(5, 127), seeds)
def test_observation_is_the_papers_35_numbers(size, seed):
    env = GoToDoor(size=jnp.int32(size))
    state, obs, task, wall = jax.device_get(_observed(env, jax.random.key(seed)))
    assert obs.shape == (35,)
    assert obs.dtype == np.int8
    assert obs[:2].tolist() == state.pos.tolist()
    assert obs[2] == state.direction + 1
    assert np.array_equal(obs[3:27].reshape(4, 6), np.eye(6)[state.door_color])
    assert obs[27:].tolist() == state.door_pos.ravel().tolist()
    assert np.array_equal(task, np.eye(6)[state.target])
    assert state.door_color[wall] == state.target, "a drawn task is on the board"


@jax.jit
def _observed(env, key):
    state = env.reset(key=key)
    return state, env.observe(state), env.task(state), env.target_wall(state)


def test_a_worked_example():
    """A 6x5 board by hand: walk to the red door in the east wall, try a wrong door, then open the right one."""
    env = GoToDoor(size=6)
    state = State(
        width=jnp.int32(6),
        height=jnp.int32(5),
        pos=jnp.array([2, 1]),
        direction=jnp.int32(3),
        door_pos=jnp.array([[2, 0], [3, 4], [0, 2], [5, 2]]),
        door_color=jnp.array([4, 1, 2, 0]),
        target=jnp.int32(0),
        time=jnp.int32(0),
    )
    numbers = "2 1 4  0 0 0 0 1 0  0 1 0 0 0 0  0 0 1 0 0 0  1 0 0 0 0 0  2 0 3 4 0 2 5 2"
    assert env.observe(state).tolist() == [int(n) for n in numbers.split()]
    assert WALLS[int(env.target_wall(state))] == "east"
    assert COLOURS[int(state.target)] == "red"
    plan = [OPEN, FORWARD, RIGHT, RIGHT, FORWARD, LEFT, FORWARD, OPEN, FORWARD, OPEN]
    poses = [(2, 1, 3), (2, 1, 3), (2, 1, 0), (2, 1, 1), (2, 2, 1), (2, 2, 0), (3, 2, 0), (3, 2, 0), (4, 2, 0)]
    for action, pose in zip(plan, poses, strict=False):
        state, step = _step(env, state, action, jax.random.key(0))
        assert (*state.pos.tolist(), int(state.direction)) == pose
        assert float(step.reward) == 0
    state, step = _step(env, state, plan[-1], jax.random.key(0))
    assert float(step.reward) == 1
    assert int(state.time) == len(plan)


def test_absent_target_never_pays():
    env = GoToDoor(size=5)
    state = _reset(env, jax.random.key(0))
    absent = next(c for c in range(6) if c not in state.door_color.tolist())
    state = env.with_target(state, absent)
    assert int(env.target_wall(state)) == 4
    for x, y, direction in itertools.product(range(1, 4), range(1, 4), range(4)):
        _, step = _step(env, with_pose(state, x, y, direction), OPEN, jax.random.key(1))
        assert float(step.reward) == 0
    assert int(env.reset(key=jax.random.key(0), target=absent).target) == absent


def test_one_program_for_all_sizes():
    traced = []

    @jax.jit
    def run(env, key):
        traced.append(1)
        states = env.batch_reset(64, key=key)
        return env.batch_step_autoreset(states, jnp.zeros(64, jnp.int32), key=key)

    for size in range(5, 11):
        run(GoToDoor(size=size), jax.random.key(0))
    assert len(traced) == 1


def test_vmap_over_sizes_and_keys():
    sizes, keys = jnp.arange(5, 11), jax.random.split(jax.random.key(0), 6)
    together = jax.device_get(jax.vmap(_reset)(GoToDoor(size=sizes), keys))
    for i, size in enumerate(range(5, 11)):
        alone = jax.device_get(_reset(GoToDoor(size=size), keys[i]))
        assert all(np.array_equal(a[i], b) for a, b in zip(together, alone, strict=True))
    spread = jax.jit(lambda env: env.batch_reset(3000, key=jax.random.key(1)))(GoToDoor(size=jnp.repeat(sizes, 500)))
    assert np.array_equal(np.asarray(spread.width).reshape(6, 500).max(axis=1), range(5, 11))


def test_autoreset_keeps_the_true_next_state():
    env = GoToDoor(size=8, max_steps=3)
    state = env.reset(key=jax.random.key(0))
    for t in range(1, 7):
        on, true_next, step = env.step_autoreset(state, RIGHT, key=jax.random.key(t))
        expected, _ = env.step(state, RIGHT, key=jax.random.key(t))
        assert jax.tree.all(jax.tree.map(jnp.array_equal, true_next, expected))
        assert bool(step.truncated) == (t % 3 == 0)
        if step.truncated:
            assert int(true_next.time) == 3
            assert int(on.time) == 0
            assert not jax.tree.all(jax.tree.map(jnp.array_equal, on.door_pos, true_next.door_pos))
        else:
            assert jax.tree.all(jax.tree.map(jnp.array_equal, on, true_next))
        state = on


@settings(deadline=None, max_examples=10)
@given(st.integers(5, 10), seeds)
def test_batched_path_equals_the_plain_one(size, seed):
    """Where nothing is random the two are equal; where something is, both start over or re-place in the same places."""
    n, max_steps = 512, 20
    env = GoToDoor(size=jnp.int32(size), max_steps=max_steps)
    key, key_time, key_action, key_step = jax.random.split(jax.random.key(seed), 4)
    states = _batch_reset(env, key)._replace(time=jax.random.randint(key_time, (n,), 0, max_steps))
    # Half of the agents in front of their door, so that many are re-placed.
    wall = env.target_wall(states)
    door = jnp.take_along_axis(states.door_pos, wall[:, None, None], axis=1)[:, 0]
    inward = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])[wall]
    half = jnp.arange(n) % 2 == 0
    states = states._replace(
        pos=jnp.where(half[:, None], door + inward, states.pos),
        direction=jnp.where(half, jnp.array([3, 1, 2, 0])[wall], states.direction),
    )
    actions = jax.random.randint(key_action, (n,), 0, 4)
    fast_on, fast_next, fast_step = jax.device_get(_fast(env, states, actions, key_step))
    on, true_next, step = jax.device_get(_plain(env, states, actions, jax.random.split(key_step, n)))

    for a, b in zip(fast_step, step, strict=True):
        assert np.array_equal(a, b)
    opened = step.reward == 1
    assert 0.05 * n < opened.sum() < 0.25 * n
    for name in State._fields:
        a, b = getattr(fast_next, name), getattr(true_next, name)
        same = np.ones(n, bool) if name not in ("pos", "direction") else ~opened
        assert np.array_equal(a[same], b[same]), name
    assert 0 < step.truncated.sum() < n
    for one, following in ((fast_on, fast_next), (on, true_next)):
        for name in State._fields:
            a, b = getattr(one, name), getattr(following, name)
            assert np.array_equal(a[~step.truncated], b[~step.truncated]), name
        assert np.all(one.time[step.truncated] == 0)


@jax.jit
def _batch_reset(env, key):
    return env.batch_reset(512, key=key)


@jax.jit
def _fast(env, states, actions, key):
    return env.batch_step_autoreset(states, actions, key=key)


@jax.jit
def _plain(env, states, actions, keys):
    return jax.vmap(lambda s, a, k: env.step_autoreset(s, a, key=k))(states, actions, keys)


def test_scan_over_thousands_of_environments():
    env, n = GoToDoor(size=10), 4096

    @jax.jit
    def run(key):
        states = env.batch_reset(n, key=key)

        def advance(states, key):
            key_action, key_step = jax.random.split(key)
            actions = jax.random.randint(key_action, (n,), 0, 4)
            states, true_next, step = env.batch_step_autoreset(states, actions, key=key_step)
            return states, (env.observe(true_next), step.reward.mean(), step.truncated.all())

        return jax.lax.scan(advance, states, jax.random.split(key, 150))

    states, (obs, reward, truncated) = run(jax.random.key(0))
    assert obs.shape == (150, n, 35)
    assert np.flatnonzero(truncated).tolist() == [49, 99, 149], "the time limit, and nothing else, ends episodes"
    assert np.all(states.time == 0)
    # Someone at random faces the target door with probability E[1 / 4(w-2)] E[1 / (h-2)] = 0.0103, and opens one in 4.
    assert abs(reward[0] - 0.0103 / 4) < 4 * np.sqrt(0.0103 / 4 / n)


def test_works_with_64_bit_numbers_switched_on():
    with jax.enable_x64(True):
        env, key = GoToDoor(size=9), jax.random.key(3)
        states = jax.jit(env.batch_reset, static_argnums=0)(100, key=key)
        _, wide, _ = jax.jit(env.batch_step_autoreset)(states, jnp.arange(100) % 4, key=key)
        obs = env.observe(wide)
    states = jax.jit(env.batch_reset, static_argnums=0)(100, key=key)
    _, narrow, _ = jax.jit(env.batch_step_autoreset)(states, jnp.arange(100) % 4, key=key)
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(wide, narrow, strict=True))
    assert np.array_equal(obs, env.observe(narrow))


def test_same_key_same_bits_jit_or_not():
    env, key = GoToDoor(size=9), jax.random.key(3)
    state = facing_target(size=9)
    compiled = _step(env, state, OPEN, key)
    for other in (env.step(state, OPEN, key=key), _step(env, state, OPEN, key)):
        assert jax.tree.all(jax.tree.map(jnp.array_equal, compiled, other))
    assert float(compiled[1].reward) == 1
    assert not jax.tree.all(jax.tree.map(jnp.array_equal, compiled[0], _step(env, state, OPEN, jax.random.key(4))[0]))


def uniform_p(values, count):
    """P-value of the chi-square test of uniformity over 0..count-1."""
    assert np.min(values) >= 0
    assert np.max(values) < count
    if count == 1:
        return 1.0
    return stats.chisquare(np.bincount(np.asarray(values).ravel(), minlength=count)).pvalue


@pytest.mark.parametrize("path", ["plain", "batch"])
@pytest.mark.parametrize("size", [5, 10])
def test_replacement_is_uniform_over_the_board(path, size):
    env, n = GoToDoor(size=size), 40_000
    state = facing_target(size=size, seed=size)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), state)
    if path == "plain":
        keys = jax.random.split(jax.random.key(1), n)
        after, step = jax.jit(jax.vmap(lambda s, k: env.step(s, OPEN, key=k)))(states, keys)
    else:
        _, after, step = jax.jit(env.batch_step_autoreset)(states, jnp.full(n, OPEN), key=jax.random.key(1))
    assert np.all(step.reward == 1)
    w, h = int(state.width) - 2, int(state.height) - 2
    pose = ((after.pos[:, 0] - 1) * h + after.pos[:, 1] - 1) * 4 + after.direction
    assert uniform_p(pose, w * h * 4) > ALPHA


@pytest.mark.parametrize("path", ["plain", "batch", "autoreset"])
@pytest.mark.parametrize("size", [6, 10])
def test_resets_have_the_exact_distribution(path, size):
    """Everything a reset draws is uniform given what comes before it, and independent of the rest."""
    env, n, key = GoToDoor(size=size, max_steps=1), 60_000, jax.random.key(size)
    if path == "plain":
        states = jax.jit(jax.vmap(lambda k: env.reset(key=k)))(jax.random.split(key, n))
    else:
        states = env.batch_reset(n, key=key)
        if path == "autoreset":
            states, _, _ = jax.jit(env.batch_step_autoreset)(states, jnp.zeros(n, jnp.int32), key=jax.random.key(99))
    s = jax.device_get(states)
    k = size - 4
    w, h = s.width - 5, s.height - 5
    assert uniform_p(w * k + h, k * k) > ALPHA

    orders = {c: i for i, c in enumerate(itertools.permutations(range(6), 4))}
    assert uniform_p([orders[tuple(c)] for c in s.door_color.tolist()], 360) > ALPHA
    wall = (s.door_color == s.target[:, None]).argmax(axis=1)
    assert uniform_p(wall * 4 + s.direction, 16) > ALPHA

    # Given a place among c equally likely ones, (place + u) / c with u uniform is uniform on [0, 1): boards of
    # all sizes can be tested together, and pairs of places for independence.
    rng = np.random.default_rng(0)

    def spread(place, count):
        return np.minimum((place + rng.random(n)) / count * 6, 5.999).astype(int)

    places = {
        "north": spread(s.door_pos[:, 0, 0] - 2, s.width - 4),
        "south": spread(s.door_pos[:, 1, 0] - 2, s.width - 4),
        "west": spread(s.door_pos[:, 2, 1] - 2, s.height - 4),
        "east": spread(s.door_pos[:, 3, 1] - 2, s.height - 4),
        "x": spread(s.pos[:, 0] - 1, s.width - 2),
        "y": spread(s.pos[:, 1] - 1, s.height - 2),
        "direction": s.direction,
        "wall": wall,
        "width": w,
        "height": h,
        "first colour": s.door_color[:, 0],
    }
    counts = {"direction": 4, "wall": 4, "width": k, "height": k}
    for (first, a), (second, b) in itertools.combinations(places.items(), 2):
        m = counts.get(second, 6)
        assert uniform_p(a * m + b, counts.get(first, 6) * m) > ALPHA, (first, second)


def test_environment_is_a_pytree_with_size_as_its_only_leaf():
    env = GoToDoor(size=6, max_steps=40)
    leaves, tree = jax.tree.flatten(env)
    assert leaves == [6]
    assert jax.tree.unflatten(tree, [6]) == env
    assert hash(env) == hash(GoToDoor(size=6, max_steps=40))
    assert jax.tree_util.tree_flatten_with_path(env)[0][0][0][0].name == "size"


def test_spec_and_params():
    env = GoToDoor(size=6)
    assert (env.spec.obs_dim, env.spec.task_dim, env.spec.num_actions) == (35, 6, 4)
    assert env.params() == {"name": "GoToDoor", "size": 6, "max_steps": 50}
    assert env.observe(env.reset(key=jax.random.key(0))).dtype == env.spec.obs.dtype


@pytest.mark.parametrize("size", [4, 0, -5, 128, np.array([5, 4])])
def test_bad_size_is_refused(size):
    with pytest.raises(InvalidInput, match="size must be an integer from 5 to 127"):
        GoToDoor(size=size)


@pytest.mark.parametrize("max_steps", [0, -1])
def test_bad_max_steps_is_refused(max_steps):
    with pytest.raises(InvalidInput, match="max_steps must be an integer from 1"):
        GoToDoor(max_steps=max_steps)


@pytest.mark.parametrize("value", [5.0, "banana", None, True, [5, 6.5], np.nan])
def test_what_is_not_an_integer_is_refused(value):
    """The check behind all arguments, itself: the tests' type checker would come before it elsewhere."""
    with pytest.raises(InvalidInput, match="size must be an integer from 5 to 127, got"):
        check_range("size", value, 5, 127)


def test_bad_actions_and_targets_are_refused():
    env, key = GoToDoor(), jax.random.key(0)
    state = env.reset(key=key)
    for action in (4, -1):
        with pytest.raises(InvalidInput, match="action must be an integer from 0 to 3"):
            env.step(state, action, key=key)
        with pytest.raises(InvalidInput, match="action must be an integer from 0 to 3"):
            env.step_autoreset(state, action, key=key)
    with pytest.raises(InvalidInput, match="actions must be an integer from 0 to 3"):
        env.batch_step_autoreset(env.batch_reset(2, key=key), jnp.array([0, 7]), key=key)
    for target in (6, -1):
        with pytest.raises(InvalidInput, match="target must be an integer from 0 to 5"):
            env.reset(key=key, target=target)
    with pytest.raises(InvalidInput, match="n must be an integer from 1"):
        env.batch_reset(0, key=key)


def test_in_front_looks_the_way_minigrid_turns():
    x, y, direction = jnp.full(4, 3), jnp.full(4, 5), jnp.arange(4)
    ahead = np.stack(in_front(x, y, direction), axis=1)
    assert ahead.tolist() == [[4, 5], [3, 6], [2, 5], [3, 4]]


def test_importing_envs_needs_no_gymnasium():
    code = "import sys, uvax.envs; sys.exit(sum(name in sys.modules for name in ('gymnasium', 'minigrid', 'pygame')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
