"""An estimator without a network: it plays perfectly, knows its values, and is as uncertain as it is told to be."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from uvax.envs.go_to_door import LEFT, GoToDoor, State
from uvax.envs.optimal import optimal_action, optimal_return

GRID = 5
ENV = GoToDoor(size=GRID)


def read_board(obs, task):
    """The state that an observation and a task show; the doors in the south and east give away the board's size."""
    x = obs.astype(jnp.int32)
    doors = x[27:].reshape(4, 2)
    return State(
        width=doors[3, 0] + 1,
        height=doors[1, 1] + 1,
        pos=x[:2],
        direction=x[2] - 1,
        door_pos=doors,
        door_color=jnp.argmax(x[3:27].reshape(4, 6), axis=-1).astype(jnp.int32),
        target=jnp.argmax(task).astype(jnp.int32),
        time=jnp.int32(0),
    )


@dataclass(frozen=True)
class OptimalAgent:
    """`state[place]` is the uncertainty of tasks whose door is there. On the walls of `helpless` it turns in place."""

    helpless: tuple[int, ...] = ()
    gamma: float = 0.9
    batch_size: int | None = None

    def action_value(self, state, obs, task):
        def of_one(obs, task):
            board = read_board(obs, task)
            lost = jnp.any(ENV.target_wall(board) == jnp.asarray((*self.helpless, -1)))
            best = jnp.where(lost, LEFT, optimal_action(board, grid=GRID))
            return jax.nn.one_hot(best, 4, dtype=jnp.float32)

        return jnp.vectorize(of_one, signature="(d),(z)->(a)")(obs, task)

    def value(self, state, obs, task):
        """Not what it is greedy in: the value of its policy, the same for every action."""

        def of_one(obs, task):
            board = read_board(obs, task)
            lost = jnp.any(ENV.target_wall(board) == jnp.asarray((*self.helpless, -1)))
            best = optimal_return(board, horizon=50, gamma=self.gamma, grid=GRID)
            return jnp.full(4, jnp.where(lost, 0.0, best))

        return jnp.vectorize(of_one, signature="(d),(z)->(a)")(obs, task)

    def uncertainty(self, state, obs, task):
        def of_one(obs, task):
            return jnp.full(4, state[ENV.target_wall(read_board(obs, task))])

        return jnp.vectorize(of_one, signature="(d),(z)->(a)")(obs, task)
