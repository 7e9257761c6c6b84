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
_BLOCK = 128  # rows through the network at once in rollouts; measured best of 128, 256, 500 at width 128 on two cores

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

    Cost: the value of n x boards rows for each pose that an episode meets for the first time (see `_recall`), 20 to 26
    times in 50 steps for an agent that plays well and 3 times for one that turns in circles.
    """
    task = env.task(starts)
    batch = task.shape[:-1]

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[len(batch) :])

    def step(carry: tuple[PyTree, _Memory, Returns], t: Int[Array, ""]) -> tuple[Any, None]:
        states, memory, returns = carry

        def act(rows: Int[Array, " rows"]) -> Int[Array, " rows"]:
            return greedy_action(estimator, state, flat(env.observe(states))[rows], flat(task)[rows])

        action, memory = _recall(memory, flat(_pose(states)), t, act)
        luck = jax.random.fold_in(key, t)
        # The state to go on from is left unused, so that compiled code draws no fresh boards.
        _, states, (reward, _, _) = jax.vmap(lambda s, a: env.batch_step_autoreset(s, a, key=luck))(
            states, action.reshape(batch)
        )
        weight = jnp.float32(gamma) ** t.astype(jnp.float32)
        return (states, memory, Returns(returns.score + reward, returns.discounted + weight * reward)), None

    nothing = jnp.zeros(batch, jnp.float32)
    blank = jnp.full((env.max_steps, nothing.size), -1, jnp.int32)
    carry = (starts, _Memory(blank, blank), Returns(nothing, nothing))
    (_, _, returns), _ = jax.lax.scan(step, carry, jnp.arange(env.max_steps, dtype=jnp.int32))
    return returns


class _Memory(NamedTuple):
    """What each episode did where: row t has the pose of step t if it was new then (else -1), and the action."""

    pose: Int[Array, "steps episodes"]
    action: Int[Array, "steps episodes"]


def _pose(states: Any) -> Int[Array, "*batch"]:
    """A number for position and direction: all that changes, within an episode, of what the agent sees."""
    return (states.pos[..., 0] * 256 + states.pos[..., 1]) * 4 + states.direction


def _recall(
    memory: _Memory,
    pose: Int[Array, " episodes"],
    t: Int[Array, ""],
    act: Callable[[Int[Array, " rows"]], Int[Array, " rows"]],
) -> tuple[Int[Array, " episodes"], _Memory]:
    """The greedy actions of step t: remembered where the episode was in this pose before, else `act(rows)`.

    A greedy agent does the same in the same place, and it is in few places: paths lead to one door, and an agent that
    fails walks in circles. Rows that need the network come first and go through it in blocks, until there are none;
    the last block is filled up with rows that do not, to the same effect.
    """
    seen = memory.pose == pose
    known = jnp.any(seen, axis=0)
    remembered = jnp.sum(jnp.where(seen, memory.action, jnp.zeros_like(memory.action)), axis=0)
    block = min(_BLOCK, pose.size)
    order = jnp.argsort(known)
    new = jnp.sum((~known).astype(jnp.int32))

    def fill(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        done, action = carry
        rows = jax.lax.dynamic_slice(order, (done,), (block,))
        return done + block, action.at[rows].set(act(rows).astype(action.dtype))

    _, action = jax.lax.while_loop(lambda carry: carry[0] < new, fill, (jnp.int32(0), remembered))
    first = jnp.where(known, jnp.full_like(pose, -1), pose)
    return action, _Memory(memory.pose.at[t].set(first), memory.action.at[t].set(action))
