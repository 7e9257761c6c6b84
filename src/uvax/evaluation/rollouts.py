"""What a greedy agent says about the tasks of a board, and what it earns on them.

Luck belongs to the board: the random numbers of step t on a board come from (key, t, board) whatever the task and
whatever the method, so that methods, and the tasks of one board, are compared under the same luck.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

# More boards at once are no faster, since activations leave the cache, and with many heads take much memory:
# six tasks x 1,000 boards x 4 actions x 512 heads are 50 MB in float32.
BOARDS_AT_ONCE = 1_000

T = TypeVar("T")


class Offers(NamedTuple):
    """The tasks of each board as the agent sees them at s0, at its first action a0 = argmax_a Q(s0, a, z)."""

    wall: Int[Array, "boards tasks"]  # index into WALLS; 4 where the board has no such door
    value: Float[Array, "boards tasks"]  # Q(s0, a0, z)
    uncertainty: Float[Array, "boards tasks"]  # at (s0, a0, z)


class Returns(NamedTuple):
    """What the greedy policy earned in one episode."""

    score: Float[Array, "*batch"]  # sum of rewards
    discounted: Float[Array, "*batch"]  # sum of gamma^t r_t


def in_chunks(play: Callable[[int, Array], T], boards: int, *, key: Array) -> T:
    """`play(boards, key)` for many boards: equal chunks of at most `BOARDS_AT_ONCE`, each with a key of its own.

    A chunk draws its boards itself, so the last one may draw a few too many; they are dropped.
    """
    chunks = -(-boards // BOARDS_AT_ONCE)
    size = -(-boards // chunks)
    played = jax.lax.map(lambda k: play(size, k), jax.random.split(key, chunks))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:boards], played)


def with_tasks(env: Any, boards: PyTree, tasks: Int[Array, "n boards"]) -> PyTree:
    """Every board under n tasks each: leaves `[n, boards, ...]`."""
    return jax.vmap(env.with_target, in_axes=(None, 0))(boards, tasks)


def with_every_task(env: Any, boards: PyTree) -> PyTree:
    """Every board under all tasks, impossible ones included: leaves `[tasks, boards, ...]`."""
    count = jax.tree.leaves(boards)[0].shape[0]
    tasks = jnp.arange(env.task_dim, dtype=jnp.int32)
    return with_tasks(env, boards, jnp.broadcast_to(tasks[:, None], (env.task_dim, count)))


def offers(estimator: Any, state: PyTree, env: Any, boards: PyTree) -> Offers:
    """All tasks of all boards at s0. Cost: value and uncertainty of tasks x boards rows, once."""
    asked = with_every_task(env, boards)
    obs, task = env.observe(asked), env.task(asked)
    a0 = greedy_action(estimator, state, obs, task)[..., None]

    def at_a0(x: Float[Array, "tasks boards A"]) -> Float[Array, "boards tasks"]:
        return jnp.take_along_axis(x, a0, axis=-1)[..., 0].T

    return Offers(
        wall=env.target_wall(asked).T,
        value=at_a0(estimator.value(state, obs, task)),
        uncertainty=at_a0(estimator.uncertainty(state, obs, task)),
    )


def greedy_action(estimator: Any, state: PyTree, obs: PyTree, task: Float[Array, "*batch Z"]) -> Array:
    """argmax over actions of `action_value` where the estimator has one, else of `value`; the first of equals."""
    values = getattr(estimator, "action_value", estimator.value)
    return jnp.argmax(values(state, obs, task), axis=-1)


def greedy_returns(estimator: Any, state: PyTree, env: Any, starts: PyTree, *, key: Array, gamma: float) -> Returns:
    """One greedy episode of `env.max_steps` steps per start; leaves of `starts` are `[n, boards, ...]`.

    `discounted` leaves out what an endless episode would earn after its last step T = max_steps, which is gamma^T
    times the value of the state reached. At gamma = 0.9 and T = 50 the factor is 0.005; values in GoToDoor are at
    most about 3, so a discounted return is at most 0.015 short.
    Cost: one evaluation of n x boards rows per step.
    """
    task = env.task(starts)

    def step(carry: tuple[PyTree, Returns], t: Int[Array, ""]) -> tuple[tuple[PyTree, Returns], None]:
        states, returns = carry
        action = greedy_action(estimator, state, env.observe(states), task)
        luck = jax.random.fold_in(key, t)
        # The state to go on from is left unused, so that compiled code draws no fresh boards.
        _, states, (reward, _, _) = jax.vmap(lambda s, a: env.batch_step_autoreset(s, a, key=luck))(states, action)
        weight = jnp.float32(gamma) ** t.astype(jnp.float32)
        return (states, Returns(returns.score + reward, returns.discounted + weight * reward)), None

    nothing = jnp.zeros(task.shape[:-1], jnp.float32)
    carry = (starts, Returns(nothing, nothing))
    (_, returns), _ = jax.lax.scan(step, carry, jnp.arange(env.max_steps, dtype=jnp.int32))
    return returns
