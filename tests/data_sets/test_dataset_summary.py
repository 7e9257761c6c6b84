"""The summary's numbers, worked out by hand, and its table."""

import io

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from uvax.data import from_arrays
from uvax.envs.go_to_door import COLOURS, WALLS, GoToDoor, State


def test_counts_returns_and_endings():
    obs = np.array([[0], [1], [0], [1], [0], [5]], np.float32)
    data = from_arrays(
        obs,
        [0, 1, 0, 1, 0, 0],
        [1, 2, 0, 4, 10, 20],
        np.array([[1], [9], [1], [9], [5], [6]]),
        terminated=[0, 1, 0, 0, 0, 0],
        truncated=[0, 0, 0, 1, 0, 0],
        environment={"name": "Probe", "size": 3},
    )
    summary = data.summary()
    assert summary.title == "Probe (size=3)"
    assert (summary.total.episodes, summary.total.transitions, summary.total.distinct) == (3, 6, 3)
    assert summary.total.return_mean == pytest.approx((3 + 4 + 30) / 3)
    assert summary.total.return_quantiles == pytest.approx(np.quantile([3, 4, 30], [0.1, 0.5, 0.9]))
    assert list(summary.endings.values()) == [1, 1, 1]
    assert summary.parts == {}
    text = str(summary)
    assert "12.33" in text
    assert "1 terminated, 1 truncated, 1 cut off" in text


def test_by_task():
    task = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    data = from_arrays(np.arange(4)[:, None], [0] * 4, [1, 1, 5, 0], np.arange(4)[:, None] + 1, task=task)
    parts = {part.name: part for part in data.summary().parts["task"]}
    assert (parts["0"].episodes, parts["0"].return_mean) == (1, 2)
    assert (parts["1"].episodes, parts["1"].return_mean) == (1, 5)
    vague = from_arrays(np.arange(4)[:, None], [0] * 4, [1, 1, 5, 0], np.arange(4)[:, None] + 1, task=task * 0.5)
    assert {part.name for part in vague.summary().parts["task"]} == {"[0.5 0]", "[0 0.5]"}


def test_many_tasks_are_not_listed():
    task = np.random.default_rng(0).normal(size=(100, 2))
    data = from_arrays(np.arange(100)[:, None], [0] * 100, np.ones(100), np.arange(100)[:, None], task=task)
    assert data.summary().parts == {}


def go_to_door(episodes: int = 60):
    """Boards as the environment observes them; targets include absent colours."""
    rng = np.random.default_rng(0)
    target = np.arange(episodes) % len(COLOURS)
    state = State(
        width=np.full(episodes, 6),
        height=np.full(episodes, 6),
        pos=rng.integers(1, 5, (episodes, 2)),
        direction=rng.integers(0, 4, episodes),
        door_pos=rng.integers(0, 6, (episodes, 4, 2)),
        door_color=np.stack([rng.permutation(6)[:4] for _ in range(episodes)]),
        target=target,
        time=np.zeros(episodes, int),
    )
    state = State(*(jnp.asarray(field, jnp.int32) for field in state))
    obs = np.asarray(GoToDoor(size=6).observe(state))
    return state, obs, np.eye(6, dtype=np.int8)[target]


def test_walls_of_the_target_agree_with_the_environment():
    state, obs, task = go_to_door()
    reward = np.arange(len(obs), dtype=np.float32)
    data = from_arrays(
        obs,
        np.zeros(len(obs), int),
        reward,
        obs + 1,
        task=task,
        num_actions=4,
        environment={"name": "GoToDoor", "size": 6},
    )
    summary = data.summary()
    doors, target = np.asarray(state.door_color), np.asarray(state.target)
    on_wall = {wall: doors[:, i] == target for i, wall in enumerate(WALLS)}
    on_wall["none"] = ~np.any(list(on_wall.values()), axis=0)
    assert on_wall["none"].any()
    for part in summary.parts["wall"]:
        mask = on_wall.pop(part.name)
        assert part.episodes == mask.sum()
        assert part.return_mean == pytest.approx(reward[mask].mean())
    assert not on_wall
    assert [part.name for part in summary.parts["task"]] == list(COLOURS)
    assert [part.episodes for part in summary.parts["task"]] == [10] * 6
    assert sum(part.episodes for part in summary.parts["wall"]) == summary.total.episodes == 60


def test_groups_without_episodes_show_a_dash():
    _, obs, task = go_to_door(episodes=1)
    data = from_arrays(obs, [0], [0], obs + 1, task=task, environment="uvax/GoToDoor-v0")
    empty = [part for part in data.summary().parts["task"] if not part.episodes]
    assert len(empty) == 5
    assert all(part.return_mean is None for part in empty)
    assert " - " in str(data.summary())


def test_the_table_fits_a_terminal():
    _, obs, task = go_to_door()
    data = from_arrays(obs, [0] * 60, [1] * 60, obs + 1, task=task, environment={"name": "GoToDoor", "size": 6})
    text = io.StringIO()
    Console(file=text, width=80, color_system=None).print(data.summary())
    assert "…" not in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "wall north" in text.getvalue()


def test_left_out_rows_are_mentioned():
    data = from_arrays(np.zeros((4, 1)), [0] * 4, [0] * 4, truncated=[0, 1, 0, 1])
    assert "2 truncated rows without a next observation were left out" in str(data.summary())


def test_distinct_rows_are_counted_right():
    rng = np.random.default_rng(0)
    for dtype in (np.int8, np.float32, np.uint32):
        obs = rng.integers(0, 3, (5000, 5)).astype(dtype)
        data = from_arrays(obs, [0] * 5000, [0] * 5000, obs)
        assert data.summary().total.distinct == len(np.unique(obs, axis=0))
    zeros = from_arrays(np.float32([[0.0], [-0.0]]), [0, 0], [0, 0], np.zeros((2, 1), np.float32))
    assert zeros.summary().total.distinct == 1


def test_names_are_not_markup():
    data = from_arrays(np.zeros((1, 1)), [0], [0], np.zeros((1, 1)), environment="[bold]Plant[/x]")
    assert "[bold]Plant[/x]" in str(data.summary())
