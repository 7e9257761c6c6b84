"""Value and uncertainty over whole boards, as compact JSON: what the report's grid explorer shows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from uvax.envs.go_to_door import WALLS, GoToDoor, State
from uvax.evaluation.rollouts import greedy_action

BOARDS = 4
_SEED = 6  # the boards are the same for every method, seed and run


def explore(estimator: Any, state: PyTree, env: GoToDoor, *, boards: int = BOARDS) -> dict[str, Any]:
    """Every cell, direction and task of a few boards.

    `boards` describes them (doors in the order of WALLS, `start` the agent's first pose). `value`, `uncertainty` and
    `action` are lists over boards of arrays [task][y][x][direction] over the interior: Q(s, a0, z) and its
    uncertainty at the greedy action a0, four significant digits.
    """
    drawn = jax.device_get(jax.jit(env.batch_reset, static_argnums=0)(boards, key=jax.random.key(_SEED)))
    each = [jax.tree.map(lambda x, i=i: x[i], drawn) for i in range(boards)]
    poses = [_poses(env, board) for board in each]
    shapes = [(env.task_dim, int(b.height) - 2, int(b.width) - 2, 4) for b in each]
    together = jax.tree.map(lambda *parts: jnp.concatenate(parts), *poses)
    fields = jax.device_get(_at_greedy_action(estimator, state, env, together))
    ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
    value, uncertainty, action = (
        [part.reshape(shape) for part, shape in zip(np.split(field, ends), shapes, strict=True)] for field in fields
    )
    return {
        "boards": [_describe(board) for board in each],
        "value": [_digits(field) for field in value],
        "uncertainty": [_digits(field) for field in uncertainty],
        "action": [field.tolist() for field in action],
    }


def _poses(env: GoToDoor, board: State) -> State:
    """Every task, cell and direction of a board, in this order, y before x."""
    task, y, x, direction = np.meshgrid(
        np.arange(env.task_dim),
        np.arange(1, int(board.height) - 1),
        np.arange(1, int(board.width) - 1),
        np.arange(4),
        indexing="ij",
    )
    spread = State(*(jnp.broadcast_to(field, (task.size, *np.shape(field))) for field in board))
    return spread._replace(
        pos=jnp.asarray(np.stack([x.ravel(), y.ravel()], axis=-1), jnp.int32),
        direction=jnp.asarray(direction.ravel(), jnp.int32),
        target=jnp.asarray(task.ravel(), jnp.int32),
    )


def _at_greedy_action(estimator: Any, state: PyTree, env: GoToDoor, poses: State) -> tuple[Array, Array, Array]:
    def compute(state: PyTree, poses: State) -> tuple[Array, Array, Array]:
        obs, task = env.observe(poses), env.task(poses)
        action = greedy_action(estimator, state, obs, task)[:, None]

        def pick(x: Array) -> Array:
            return jnp.take_along_axis(x, action, axis=-1)[:, 0]

        value, uncertainty = estimator.value(state, obs, task), estimator.uncertainty(state, obs, task)
        return pick(value), pick(uncertainty), action[:, 0]

    return jax.jit(compute)(state, poses)


def _describe(board: State) -> dict[str, Any]:
    doors = [
        {"wall": wall, "x": int(x), "y": int(y), "colour": int(colour)}
        for wall, (x, y), colour in zip(WALLS, board.door_pos, board.door_color, strict=True)
    ]
    start = {"x": int(board.pos[0]), "y": int(board.pos[1]), "direction": int(board.direction)}
    return {"width": int(board.width), "height": int(board.height), "doors": doors, "start": start}


def _digits(values: np.ndarray) -> list[Any]:
    return np.vectorize(lambda v: float(f"{v:.4g}"), otypes=[np.float64])(values).tolist()
