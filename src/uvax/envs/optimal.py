"""The best possible return in GoToDoor, exactly: the ceiling of every table.

Opening the right door costs the agent its place and nothing else, and where it is put next does not depend on
how it got there. So the best policy, discounted or not, takes a shortest path to the door every time. Its
expected return follows from the path lengths on the board alone, by a renewal equation over the steps left.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from uvax.envs.go_to_door import MIN_SIZE, OPEN, WALLS, GoToDoor, State, check_range, in_front
from uvax.errors import InvalidInput

UNREACHABLE = 2**20  # poses in walls, and every pose when the target is not on the board
GRID = 10  # the paper's largest size
CHUNK = 512  # holds all boards of size 10


class Ceiling(NamedTuple):
    """Best possible mean return, over all tasks and for each wall (order of WALLS), with standard errors."""

    mean: float
    stderr: float
    by_wall: Float[np.ndarray, " 4"]
    by_wall_stderr: Float[np.ndarray, " 4"]


def distances(state: State, *, grid: int = GRID) -> Int[Array, "grid grid 4"]:
    """Moves needed from [x, y, direction] until the target door can be opened: 0 in front of it, facing it.

    Breadth-first search backwards from the door over position and direction, for one state (vmap for more).
    `grid` bounds width and height of the board and is static. Cost O(grid^2) for each of O(grid) levels.
    """
    _check_grid(state, grid)
    x, y, direction = _poses(grid)
    interior = _interior(state, grid)
    front_x, front_y = in_front(x, y, direction)
    opens = jnp.any(
        (state.door_pos[:, 0] == front_x[..., None])
        & (state.door_pos[:, 1] == front_y[..., None])
        & (state.door_color == state.target),
        axis=-1,
    )
    reached = opens & interior
    found = jnp.where(reached, 0, UNREACHABLE)

    def expand(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        found, reached, level = carry
        turned = jnp.roll(reached, 1, axis=2) | jnp.roll(reached, -1, axis=2)
        # Rolling around the edge is harmless: the outermost cells are never interior.
        moved = jnp.stack(
            [
                jnp.roll(reached[..., 0], -1, axis=0),
                jnp.roll(reached[..., 1], -1, axis=1),
                jnp.roll(reached[..., 2], 1, axis=0),
                jnp.roll(reached[..., 3], 1, axis=1),
            ],
            axis=-1,
        )
        new = (turned | moved) & interior & (found == UNREACHABLE)
        return jnp.where(new, level, found), new, level + 1

    return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), expand, (found, reached, jnp.int32(1)))[0]


def optimal_action(state: State, table: Int[Array, "grid grid 4"] | None = None, *, grid: int = GRID) -> Int[Array, ""]:
    """An action of a shortest path; among equals the first of left, right, forward.

    `table` is `distances(state)`, which stays the same for a whole episode. With a target that is not on the
    board nothing helps, and the agent turns left.
    """
    table = distances(state, grid=grid) if table is None else table
    x, y, direction = state.pos[0], state.pos[1], state.direction
    front_x, front_y = in_front(x, y, direction)
    after = jnp.stack(
        [
            table[x, y, (direction - 1) & 3],
            table[x, y, (direction + 1) & 3],
            table[front_x, front_y, direction],
        ]
    )
    return jnp.where(table[x, y, direction] == 0, OPEN, jnp.argmin(after).astype(jnp.int32))


def optimal_return(
    state: State, *, horizon: int, gamma: Float[ArrayLike, ""] = 1.0, grid: int = GRID
) -> Float[Array, ""]:
    """Expected return of the best policy from this state with `horizon` steps left; 0 for an absent target.

    With c = distance + 1 the cost of opening the door from the state and M_t the mean of the return over all
    poses with t steps left: V_t = gamma^(c-1) (1 + gamma M_{t-c}) if c <= t, else 0. For one state; vmap for
    more.
    """
    _check_gamma(gamma)
    cost, by_time = _renewal(state, horizon, gamma, grid)
    here = cost[state.pos[0], state.pos[1], state.direction]
    left = jnp.maximum(horizon - here, 0)
    return jnp.where(here <= horizon, _power(gamma, here - 1) * (1 + gamma * by_time[left]), 0.0)


def ceiling(env: GoToDoor, *, episodes: int | None = None, key: Array | None = None, gamma: float = 1.0) -> Ceiling:
    """Best possible mean return over fresh boards, starting poses and tasks that are present.

    Without `episodes` exact: the return depends on width, height and the place of the target door only, and
    all of them are gone through (126 boards per wall at size 10; the cost grows with size^6). With `episodes`
    and `key`, the mean of the exact values of that many fresh resets.

        ceiling(GoToDoor(size=5)).mean
    """
    size, horizon = np.asarray(env.size), env.max_steps
    if size.ndim:
        raise InvalidInput(f"ceiling takes an environment with one size, got size {size.tolist()}; use one at a time")
    grid = max(int(size), GRID)
    _check_gamma(gamma)
    if episodes is None:
        states, weights = _all_boards(int(size))
        values = _in_chunks(states, horizon, grid, True, gamma)
        by_wall = np.sum(values.reshape(len(WALLS), -1) * weights, axis=1)
        return Ceiling(float(by_wall.mean()), 0.0, by_wall, np.zeros(len(WALLS)))
    if key is None or episodes < 2:
        raise InvalidInput(f"ceiling needs a key and at least 2 episodes to sample, got episodes={episodes}, {key=}")
    states = env.batch_reset(episodes, key=key)
    walls = np.asarray(env.target_wall(states))
    values = _in_chunks(states, horizon, grid, False, gamma)
    parts = [values[walls == wall] for wall in range(len(WALLS))]
    return Ceiling(
        float(values.mean()),
        _stderr(values),
        np.array([part.mean() if part.size else np.nan for part in parts]),
        np.array([_stderr(part) for part in parts]),
    )


def _renewal(
    state: State, horizon: int, gamma: Float[ArrayLike, ""], grid: int
) -> tuple[Int[Array, "grid grid 4"], Float[Array, " horizon_plus_1"]]:
    """Steps to open the door from every pose, and M_0..M_horizon.

    M_t = sum_{k=1}^t h_k gamma^(k-1) (1 + gamma M_{t-k}), where h_k is the share of poses with cost k.
    """
    check_range("horizon", horizon, 0, UNREACHABLE)
    cost = distances(state, grid=grid) + 1
    k = jnp.arange(1, horizon + 1, dtype=jnp.int32)
    interior = _interior(state, grid)
    poses = jnp.sum(interior).astype(jnp.float32)
    share = jnp.sum((cost[..., None] == k) & interior[..., None], axis=(0, 1, 2)).astype(jnp.float32) / poses
    gain = share * _power(gamma, k - 1)

    def advance(past: Float[Array, " horizon"], t: Int[Array, ""]) -> tuple[Array, Array]:
        now = jnp.sum(jnp.where(k <= t, gain * (1 + gamma * past), 0.0))
        return jnp.concatenate([now[None], past])[:horizon], now

    _, means = jax.lax.scan(advance, jnp.zeros(horizon, jnp.float32), k)
    return cost, jnp.concatenate([jnp.zeros(1, jnp.float32), means])


def _poses(grid: int) -> tuple[Int[Array, "grid grid 4"], Int[Array, "grid grid 4"], Int[Array, "grid grid 4"]]:
    """x, y and direction of every entry of a table."""
    axes = (jnp.arange(n, dtype=jnp.int32) for n in (grid, grid, 4))
    x, y, direction = jnp.meshgrid(*axes, indexing="ij")
    return x, y, direction


def _interior(state: State, grid: int) -> Bool[Array, "grid grid 4"]:
    x, y, _ = _poses(grid)
    return (x > 0) & (x < state.width - 1) & (y > 0) & (y < state.height - 1)


def _power(gamma: Float[ArrayLike, ""], exponent: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.asarray(gamma, jnp.float32) ** exponent.astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _returns(states: State, horizon: int, grid: int, placed: bool, gamma: Float[ArrayLike, ""]) -> Float[Array, " n"]:
    """`optimal_return` of each state, or its mean over all poses on the board."""
    if placed:
        return jax.vmap(lambda state: _renewal(state, horizon, gamma, grid)[1][-1])(states)
    return jax.vmap(lambda state: optimal_return(state, horizon=horizon, gamma=gamma, grid=grid))(states)


def _in_chunks(states: State, horizon: int, grid: int, placed: bool, gamma: float) -> Float[np.ndarray, " n"]:
    """In chunks of one length, the last one filled up: one compiled program for all sizes up to GRID."""
    n = len(states.time)
    values = []
    states = jax.device_get(states)
    for start in range(0, n, CHUNK):
        rows = np.minimum(np.arange(start, start + CHUNK), n - 1)
        part = State(*(field[rows] for field in states))
        values.append(np.asarray(_returns(part, horizon, grid, placed, gamma), np.float64))
    return np.concatenate(values)[:n]


def _all_boards(size: int) -> tuple[State, Float[np.ndarray, "4 boards"]]:
    """Every (width, height, place of the target door) for each wall in turn, and their probabilities."""
    sides = range(MIN_SIZE, size + 1)
    boards, weights = [], []
    for wall, width, height in itertools.product(range(len(WALLS)), sides, sides):
        along = width if wall < 2 else height
        for offset in range(2, along - 2):
            doors = np.array([[2, 0], [2, height - 1], [0, 2], [width - 1, 2]])
            doors[wall, 0 if wall < 2 else 1] = offset
            boards.append((width, height, doors, wall))
            weights.append(1 / (len(sides) ** 2 * (along - 4)))
    widths, heights, doors, walls = (np.array(column, np.int32) for column in zip(*boards, strict=True))
    n = len(boards)
    states = State(
        width=jnp.asarray(widths),
        height=jnp.asarray(heights),
        pos=jnp.ones((n, 2), jnp.int32),
        direction=jnp.zeros(n, jnp.int32),
        door_pos=jnp.asarray(doors),
        door_color=jnp.tile(jnp.arange(len(WALLS), dtype=jnp.int32), (n, 1)),
        target=jnp.asarray(walls),
        time=jnp.zeros(n, jnp.int32),
    )
    return states, np.array(weights).reshape(len(WALLS), -1)


def _stderr(values: Float[np.ndarray, " n"]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _check_gamma(gamma: Any) -> None:
    if not isinstance(gamma, jax.core.Tracer) and not 0 <= gamma <= 1:
        raise InvalidInput(f"gamma must be a number from 0 to 1, got {gamma}")


def _check_grid(state: State, grid: int) -> None:
    if isinstance(state.width, jax.core.Tracer) or isinstance(state.height, jax.core.Tracer):
        return
    # Into NumPy first: a constant of a traced function must not become a traced maximum.
    largest = max(int(np.asarray(side).max()) for side in (state.width, state.height))
    if largest > grid:
        raise InvalidInput(f"grid={grid} is smaller than the board ({largest}); pass grid={largest} or more")
