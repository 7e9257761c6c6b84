"""Value and uncertainty over whole boards, as compact JSON: what the report's grid explorer shows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

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
    states = env.batch_reset(boards, key=jax.random.key(_SEED))
    result: dict[str, Any] = {"boards": [], "value": [], "uncertainty": [], "action": []}
    for i in range(boards):
        board = jax.tree.map(lambda x, i=i: np.asarray(x[i]), states)
        result["boards"].append(_describe(board))
        value, uncertainty, action = _evaluate(estimator, state, env, board)
        result["value"].append(_digits(value))
        result["uncertainty"].append(_digits(uncertainty))
        result["action"].append(action.tolist())
    return result


def _evaluate(estimator: Any, state: PyTree, env: GoToDoor, board: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    task, y, x, direction = np.meshgrid(
        np.arange(env.task_dim),
        np.arange(1, int(board.height) - 1),
        np.arange(1, int(board.width) - 1),
        np.arange(4),
        indexing="ij",
    )
    shape, n = task.shape, task.size

    def spread(value: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(value), (n, *np.shape(value)))

    poses = State(*(spread(field) for field in board))._replace(
        pos=jnp.asarray(np.stack([x.ravel(), y.ravel()], axis=-1), jnp.int32),
        direction=jnp.asarray(direction.ravel(), jnp.int32),
        target=jnp.asarray(task.ravel(), jnp.int32),
    )
    obs, tasks = env.observe(poses), env.task(poses)
    action = np.asarray(greedy_action(estimator, state, obs, tasks))
    at = (np.arange(n), action)
    value = np.asarray(estimator.value(state, obs, tasks))[at]
    uncertainty = np.asarray(estimator.uncertainty(state, obs, tasks))[at]
    return value.reshape(shape), uncertainty.reshape(shape), action.reshape(shape)


def _describe(board: State) -> dict[str, Any]:
    doors = [
        {"wall": wall, "x": int(x), "y": int(y), "colour": int(colour)}
        for wall, (x, y), colour in zip(WALLS, board.door_pos, board.door_color, strict=True)
    ]
    start = {"x": int(board.pos[0]), "y": int(board.pos[1]), "direction": int(board.direction)}
    return {"width": int(board.width), "height": int(board.height), "doors": doors, "start": start}


def _digits(values: np.ndarray) -> list[Any]:
    return np.vectorize(lambda v: float(f"{v:.4g}"), otypes=[np.float64])(values).tolist()
