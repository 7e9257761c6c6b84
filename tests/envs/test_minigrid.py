"""GoToDoor in JAX against the real Minigrid: transitions, re-placements, layouts; and the Gymnasium adapter."""

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_COLOR
from minigrid.core.world_object import Door, Wall
from minigrid.envs import GoToDoorEnv as MinigridGoToDoor
from scipy import stats

from uvax.envs import GoToDoor, State
from uvax.envs.go_to_door import OPEN
from uvax.envs.gymnasium import GoToDoorEnv
from uvax.envs.optimal import distances, optimal_action
from uvax.errors import InvalidInput

SIZES = range(5, 11)
EPISODES, STEPS = 334, 50  # of each size: 100,200 transitions
RESETS = 2_000  # Minigrid's, of each size
OURS = 40_000
ERROR_RATE = 1e-3  # that some layout test fails with fresh seeds although all is right


@functools.partial(jax.jit, static_argnums=2)
def _trajectories(env, key, episodes):
    """Episodes with any of the six tasks, of actions that are random or of a shortest path, so that doors open."""

    def episode(key):
        key_reset, key_target, key_steps = jax.random.split(key, 3)
        state = env.reset(key=key_reset, target=jax.random.randint(key_target, (), 0, 6))
        table = distances(state)

        def advance(state, key):
            key_random, key_mix, key_step = jax.random.split(key, 3)
            guess = jax.random.randint(key_random, (), 0, 4)
            action = jnp.where(jax.random.bernoulli(key_mix), guess, optimal_action(state, table))
            after, step = env.step(state, action, key=key_step)
            return after, (action, after, step)

        return state, jax.lax.scan(advance, state, jax.random.split(key_steps, STEPS))[1]

    return jax.vmap(episode)(jax.random.split(key, episodes))


@pytest.mark.slow
def test_a_hundred_thousand_transitions_agree():
    transitions = openings = moves = bumps = 0
    for size in SIZES:
        env = GoToDoor(size=jnp.int32(size), max_steps=STEPS)
        start, (actions, after, steps) = jax.device_get(_trajectories(env, jax.random.key(size), EPISODES))
        observations, tasks = np.asarray(env.observe(after)), np.asarray(env.task(start))
        actions = actions.tolist()
        expected = [list(zip(*episode, strict=True)) for episode in zip(*(f.tolist() for f in steps), strict=True)]
        reference = GoToDoorEnv(size=size, max_steps=STEPS)
        reference.reset(seed=size)
        for e in range(EPISODES):
            reference.state = State(*(field[e] for field in start))
            seen = []
            for t in range(STEPS):
                before = reference.agent_pos
                obs, reward, terminated, truncated, _ = reference.step(actions[e][t])
                assert (reward, terminated, truncated) == expected[e][t]
                if reward:
                    # The one random thing. Go on from the same place.
                    openings += 1
                    reference.agent_pos = tuple(int(i) for i in after.pos[e, t])
                    reference.agent_dir = int(after.direction[e, t])
                    obs = reference.gen_obs()
                else:
                    moves += tuple(before) != tuple(reference.agent_pos)
                    bumps += actions[e][t] == 2 and tuple(before) == tuple(reference.agent_pos)
                seen.append(obs)
                transitions += 1
            assert np.array_equal([obs["obs"] for obs in seen], observations[e]), (size, e)
            assert np.all(np.array([obs["task"] for obs in seen]) == tasks[e])
            final = reference.state
            for name in State._fields:
                assert np.array_equal(getattr(final, name), getattr(after, name)[e, -1]), name
    assert transitions >= 100_000
    # The comparison saw what it has to: openings, moves, and walls or doors in the way.
    assert min(openings, moves, bumps) > 3_000


def test_replacement_in_minigrid_is_uniform_over_the_board():
    """So is ours, in test_go_to_door; the cell it opened from is included in both."""
    env = GoToDoorEnv(size=6)
    env.reset(seed=0)
    state = env.state
    wall = int(GoToDoor().target_wall(state))
    inward = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])[wall]
    pos, direction = np.asarray(state.door_pos)[wall] + inward, [3, 1, 2, 0][wall]
    w, h = env.room[0] - 2, env.room[1] - 2
    counts = np.zeros((w, h, 4))
    for _ in range(8_000):
        env.agent_pos, env.agent_dir = tuple(pos), direction
        _, reward, _, _, _ = env.step(OPEN)
        assert reward == 1
        counts[env.agent_pos[0] - 1, env.agent_pos[1] - 1, env.agent_dir] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-5


def minigrid_layouts(size, resets):
    """The draws of Minigrid's own GoToDoor, read off its grid."""
    env = MinigridGoToDoor(size=size)
    env.reset(seed=size)
    rows = []
    for _ in range(resets):
        env._gen_grid(size, size)  # what `reset` does, without the picture
        width = sum(env.grid.get(x, 0) is not None for x in range(size))
        height = sum(env.grid.get(0, y) is not None for y in range(size))
        border = [(x, y) for x in range(width) for y in range(height) if x in (0, width - 1) or y in (0, height - 1)]
        assert all(isinstance(env.grid.get(*cell), Door | Wall) for cell in border)
        doors = {cell: env.grid.get(*cell).color for cell in border if isinstance(env.grid.get(*cell), Door)}
        walls = [
            next(cell for cell in doors if cell[1] == 0),
            next(cell for cell in doors if cell[1] == height - 1),
            next(cell for cell in doors if cell[0] == 0),
            next(cell for cell in doors if cell[0] == width - 1),
        ]
        colours = [COLOR_TO_IDX[doors[cell]] for cell in walls]
        offsets = [walls[0][0], walls[1][0], walls[2][1], walls[3][1]]
        target = colours.index(COLOR_TO_IDX[env.target_color])
        rows.append([width, height, *offsets, *colours, *env.agent_pos, env.agent_dir, target])
    return np.array(rows, dtype=int)


@functools.partial(jax.jit, static_argnums=1)
def _our_rows(env, n, key):
    s = env.batch_reset(n, key=key)
    offsets = jnp.stack([s.door_pos[:, 0, 0], s.door_pos[:, 1, 0], s.door_pos[:, 2, 1], s.door_pos[:, 3, 1]], axis=1)
    columns = [s.width, s.height, offsets, s.door_color, s.pos, s.direction, env.target_wall(s)]
    return jnp.concatenate([c.reshape(n, -1) for c in columns], axis=1)


def our_layouts(size, n):
    return np.asarray(_our_rows(GoToDoor(size=jnp.int32(size)), n, jax.random.key(size)))


COLUMNS = [
    "width", "height", "north", "south", "west", "east", "colour0", "colour1", "colour2", "colour3",
    "x", "y", "direction", "target",
]  # fmt: skip
FEATURES = [
    "width height", "width north", "width south", "height west", "height east", "north south", "west east",
    "north west", "width x", "height y", "x y", "direction target", "colour0 colour1", "colour2 colour3",
    "colour1 target", "north x", "x direction",
]  # fmt: skip


def same_distribution(ours, theirs):
    """P-values of two-sample chi-square tests of every feature, rare combinations pooled."""
    values = []
    for feature in FEATURES:
        columns = [COLUMNS.index(name) for name in feature.split()]
        base = int(max(ours.max(), theirs.max())) + 1
        a, b = (rows[:, columns] @ base ** np.arange(len(columns)) for rows in (ours, theirs))
        counts = np.stack([np.bincount(x, minlength=base ** len(columns)) for x in (a, b)])
        expected = counts.sum(axis=0) * len(b) / (len(a) + len(b))
        rare = expected < 5
        table = np.concatenate([counts[:, ~rare], counts[:, rare].sum(axis=1, keepdims=True)], axis=1)
        table = table[:, table.sum(axis=0) > 0]
        values.append(stats.chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0)
    return np.array(values)


@pytest.mark.slow
def test_layouts_are_drawn_as_minigrid_draws_them():
    """At each size 5 to 10; the error rate is shared out among all tests (Bonferroni)."""
    values = {size: same_distribution(our_layouts(size, OURS), minigrid_layouts(size, RESETS)) for size in SIZES}
    limit = ERROR_RATE / sum(map(len, values.values()))
    for size, found in values.items():
        for feature, p in zip(FEATURES, found, strict=True):
            assert p > limit, (size, feature, p)


@pytest.mark.parametrize("flaw", ["largest size never drawn", "square rooms", "colours repeat", "doors off by one"])
def test_the_layout_test_sees_known_flaws(flaw):
    """Of the size above with fewer draws; the flaws are those of a well-known other version, and an off-by-one."""
    theirs, ours = minigrid_layouts(7, 600), our_layouts(7, OURS).copy()
    if flaw == "largest size never drawn":
        ours = ours[(ours[:, 0] < 7) & (ours[:, 1] < 7)]
    elif flaw == "square rooms":
        ours = ours[ours[:, 0] == ours[:, 1]]
    elif flaw == "colours repeat":
        ours[:, 6:10] = np.random.default_rng(0).integers(0, 6, (len(ours), 4))
    else:
        ours[:, 2] = np.maximum(ours[:, 2] - 1, 1)
    assert same_distribution(ours, theirs).min() < ERROR_RATE / (len(FEATURES) * len(SIZES))


@pytest.fixture
def headless(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.mark.filterwarnings("ignore:The system font.*couldn't be found:UserWarning")  # Minigrid's, when drawing windows
@pytest.mark.parametrize("size", [5, 8])
def test_passes_gymnasiums_checker(size, headless):
    env = gymnasium.make("uvax/GoToDoor-v0", size=size, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.close()


def test_registered_with_the_papers_spaces():
    env = gymnasium.make("uvax/GoToDoor-v0", size=8)
    assert env.action_space == gymnasium.spaces.Discrete(4)
    assert env.observation_space["obs"].shape == (35,)
    assert env.observation_space["task"].shape == (6,)
    obs, _ = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    assert np.array_equal(obs["obs"], again["obs"])
    assert env.unwrapped.max_steps == 50
    for t in range(1, 51):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        assert isinstance(reward, float)
        assert not terminated
        assert truncated == (t == 50)


@pytest.mark.parametrize("colour", [0, 5, np.int64(3), "red", "grey"])
def test_any_task_through_options(colour):
    env = gymnasium.make("uvax/GoToDoor-v0", size=6)
    absent = present = 0
    for seed in range(12):
        obs, _ = env.reset(seed=seed, options={"target": colour})
        index = COLOR_TO_IDX[colour] if isinstance(colour, str) else int(colour)
        assert obs["task"].tolist() == np.eye(6)[index].tolist()
        assert env.unwrapped.mission == f"go to the {IDX_TO_COLOR[index]} door"
        here = int(GoToDoor().target_wall(env.unwrapped.state)) < 4
        present, absent = present + here, absent + (not here)
    assert present > 0
    assert absent > 0


def test_renders_states_of_the_jax_environment():
    env = GoToDoorEnv(size=8, render_mode="rgb_array")
    pictures = []
    for seed in range(2):
        state = GoToDoor(size=8).reset(key=jax.random.key(seed))
        env.state = state
        assert all(np.array_equal(a, b) for a, b in zip(env.state, state, strict=True))
        picture = env.render()
        assert picture.shape == (8 * 32, 8 * 32, 3)
        assert picture.dtype == np.uint8
        # The agent is a red triangle in its cell.
        x, y = (int(i) * 32 + 16 for i in state.pos)
        assert picture[y, x].tolist() == [255, 0, 0]
        pictures.append(picture)
    assert not np.array_equal(*pictures)


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match="size must be an integer from 5 to 127, got 4"):
        gymnasium.make("uvax/GoToDoor-v0", size=4)
    env = GoToDoorEnv(size=5)
    env.reset(seed=0)
    for action in (4, -1, 1.5, "open"):
        with pytest.raises(InvalidInput, match="action must be an integer from 0 to 3"):
            env.step(action)
    with pytest.raises(InvalidInput, match="did you mean 'red'"):
        env.reset(options={"target": "rde"})
    for target in (6, -1, True, 1.0):
        with pytest.raises(InvalidInput, match="target must be a colour name or an integer from 0 to 5"):
            env.reset(options={"target": target})
    jax_env = GoToDoor(size=5)
    with pytest.raises(InvalidInput, match="index it first"):
        env.state = jax_env.batch_reset(3, key=jax.random.key(0))
    with pytest.raises(InvalidInput, match="make the environment with size="):
        env.state = GoToDoor(size=20).reset(key=jax.random.key(0))
