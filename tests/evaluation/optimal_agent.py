"""An estimator without a network: it plays perfectly, knows its values, and is as uncertain as it is told to be."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from uvax.envs import GoToDoor
from uvax.envs.go_to_door import LEFT
from uvax.envs.optimal import optimal_action, optimal_return

# At size 5 every board is 5 x 5 with its doors in the middle of the walls, so what is best depends on the wall of the
# door and on the pose alone, and all of it fits into two tables.
ENV = GoToDoor(size=5)
GAMMA = 0.9


@functools.cache
def tables():
    """The best action and its expected discounted return in 50 steps, by [wall, x, y, direction]."""
    with jax.ensure_compile_time_eval():  # the first call comes from within a traced function
        return jax.tree.map(np.asarray, _tables())


def _tables():
    wall, x, y, direction = (jnp.asarray(a.ravel(), jnp.int32) for a in np.indices((4, 5, 5, 4)))
    board = jax.tree.map(lambda leaf: leaf[0], ENV.batch_reset(1, key=jax.random.key(0)))

    def best(wall, x, y, direction):
        at = board._replace(pos=jnp.stack([x, y]), direction=direction, target=board.door_color[wall])
        value = optimal_return(at, horizon=50, gamma=GAMMA, grid=5)
        return optimal_action(at, grid=5), value

    action, value = jax.jit(jax.vmap(best))(wall, x, y, direction)
    return action.reshape(4, 5, 5, 4), value.reshape(4, 5, 5, 4)


def read(obs, task):
    """Place of the task's door and pose, as an observation and a task show them."""
    x, y, direction = (obs[..., i].astype(jnp.int32) for i in range(3))
    colour = jnp.argmax(task, axis=-1)[..., None]
    doors = jnp.argmax(obs[..., 3:27].reshape(*obs.shape[:-1], 4, 6), axis=-1)
    here = doors == colour
    place = jnp.where(jnp.any(here, axis=-1), jnp.argmax(here, axis=-1), 4)
    return place, (jnp.minimum(place, 3), x, y, direction - 1)


class Opinion(NamedTuple):
    """The agent's state, by the place of a task's door: its uncertainty there, and whether it turns in place."""

    uncertainty: Array
    helpless: Array


def opinion(uncertainty, helpless=()):
    return Opinion(jnp.asarray(uncertainty, jnp.float32), jnp.asarray([place in (*helpless, 4) for place in range(5)]))


@dataclass(frozen=True)
class OptimalAgent:
    """Takes a shortest path to the door wherever it is not helpless."""

    gamma: float = GAMMA
    batch_size: int | None = None

    def action_value(self, state, obs, task):
        place, pose = read(obs, task)
        action = jnp.where(state.helpless[place], LEFT, jnp.asarray(tables()[0])[pose])
        return jax.nn.one_hot(action, 4, dtype=jnp.float32)

    def value(self, state, obs, task):
        """Not what it is greedy in: the value of its policy, the same for every action."""
        place, pose = read(obs, task)
        value = jnp.where(state.helpless[place], 0.0, jnp.asarray(tables()[1])[pose])
        return jnp.broadcast_to(value[..., None], (*value.shape, 4))

    def uncertainty(self, state, obs, task):
        uncertainty = state.uncertainty[read(obs, task)[0]]
        return jnp.broadcast_to(uncertainty[..., None], (*uncertainty.shape, 4))
