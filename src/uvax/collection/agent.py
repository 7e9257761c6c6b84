"""The online agent that makes the data: Double DQN with the paper's mixture policy, as one jitted program.

Environment, replay buffer and learner live on the device together; the host sees them between chunks of `lax.scan`.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from uvax.collection.settings import CollectionSettings
from uvax.data.transition import Transition
from uvax.envs.go_to_door import WALLS, GoToDoor, State
from uvax.estimators import DQN, TrainState

# The walls on which the learner acts; on the others a fixed random Q-network does (Appendix B).
EXPERT_WALLS = tuple(WALLS.index(wall) for wall in ("south", "west"))


class Replay(NamedTuple):
    """The whole history, [T, E]: step by step, environments side by side."""

    obs: Int8[Array, "T E D"]
    next_obs: Int8[Array, "T E D"]
    target: Int8[Array, "T E"]  # colour of the task
    action: Int8[Array, "T E"]
    reward: Int8[Array, "T E"]  # 0 or 1
    terminated: Bool[Array, "T E"]
    truncated: Bool[Array, "T E"]
    start: Bool[Array, "T E"]


class Agent(NamedTuple):
    """Everything that a collection carries from step to step."""

    learner: TrainState
    random: TrainState  # the fixed random Q-network; never updated
    env: State
    replay: Replay
    step: Int[Array, ""]  # vector steps taken


class StepKeys(NamedTuple):
    """What the randomness of a step is used for."""

    explore: Array
    env: Array
    learn: Array


class Progress(NamedTuple):
    """Sums over a chunk, for the progress bar."""

    reward: Float[Array, " 2"]  # on expert and on the other walls
    steps: Float[Array, " 2"]
    loss: Float[Array, ""]


def key_of_start(seed: Array) -> Array:
    """The key of `init`, which no step has."""
    return jax.random.fold_in(seed, 2**32 - 2)


def keys_of_step(seed: Array, step: Int[Array, ""]) -> StepKeys:
    """The keys of a vector step, which depend on (seed, step) alone."""
    return StepKeys(*jax.random.split(jax.random.fold_in(seed, step), 3))


def first_boards(env: GoToDoor, settings: CollectionSettings, *, key: Array) -> State:
    """The boards that `init` begins with."""
    _, _, key_env = jax.random.split(key, 3)
    smallest = replace(env, size=settings.size(jnp.int32(0), env.size))
    return smallest.batch_reset(settings.environments, key=key_env)


def init(env: GoToDoor, settings: CollectionSettings, *, key: Array) -> Agent:
    """An untrained agent at the start of its first episodes."""
    key_learner, key_random, _ = jax.random.split(key, 3)
    steps, n = settings.vector_steps, settings.environments
    replay = Replay(
        obs=jnp.zeros((steps, n, env.obs_dim), jnp.int8),
        next_obs=jnp.zeros((steps, n, env.obs_dim), jnp.int8),
        target=jnp.zeros((steps, n), jnp.int8),
        action=jnp.zeros((steps, n), jnp.int8),
        reward=jnp.zeros((steps, n), jnp.int8),
        terminated=jnp.zeros((steps, n), bool),
        truncated=jnp.zeros((steps, n), bool),
        start=jnp.zeros((steps, n), bool),
    )
    return Agent(
        learner=settings.dqn.init(env.spec, key=key_learner),
        random=settings.dqn.init(env.spec, key=key_random),
        env=first_boards(env, settings, key=key),
        replay=replay,
        step=jnp.zeros((), jnp.int32),
    )


def on_expert_wall(env: GoToDoor, state: State) -> Bool[Array, "*batch"]:
    """Whether the learner acts in this state: the target door is on the south or west wall."""
    wall = env.target_wall(state)
    return jnp.any(wall[..., None] == jnp.asarray(EXPERT_WALLS, wall.dtype), axis=-1)


def mixture_action(
    env: GoToDoor, dqn: DQN, learner: TrainState, random: TrainState, state: State
) -> Int[Array, "*batch"]:
    """The mixture policy without exploration: the learner on its walls, the random network on the others."""
    obs, task = env.observe(state), env.task(state)
    expert = on_expert_wall(env, state)[..., None]
    q = jnp.where(expert, dqn.value(learner, obs, task), dqn.value(random, obs, task))
    return jnp.argmax(q, axis=-1)


@partial(jax.jit, static_argnames=("settings", "length"), donate_argnames="agent")
def advance(
    agent: Agent, env: GoToDoor, seed: Array, *, settings: CollectionSettings, length: int
) -> tuple[Agent, Progress]:
    """`length` vector steps. The randomness of step i comes from (seed, i) alone, so chunks may have any length."""

    def body(agent: Agent, _: None) -> tuple[Agent, Progress]:
        keys = keys_of_step(seed, agent.step)
        agent, progress = _act(agent, env, settings, keys)
        learner, loss = _learn(agent, settings, keys.learn)
        return agent._replace(learner=learner), progress._replace(loss=loss)

    agent, progress = jax.lax.scan(body, agent, length=length)
    return agent, jax.tree.map(lambda x: jnp.sum(x, axis=0), progress)


def act(
    env: GoToDoor, state: State, action: Int[Array, " E"], *, key: Array
) -> tuple[State, Replay, Float[Array, " E"]]:
    """One step of all environments: where they are then, what is remembered (a row of it), and the rewards."""
    state_after, next_state, step = env.batch_step_autoreset(state, action, key=key)
    row = Replay(
        obs=env.observe(state),
        next_obs=env.observe(next_state),
        target=state.target.astype(jnp.int8),
        action=action.astype(jnp.int8),
        reward=step.reward.astype(jnp.int8),
        terminated=step.terminated,
        truncated=step.truncated,
        start=state.time == 0,
    )
    return state_after, row, step.reward


def _act(agent: Agent, env: GoToDoor, settings: CollectionSettings, keys: StepKeys) -> tuple[Agent, Progress]:
    state, n = agent.env, settings.environments
    env = replace(env, size=settings.size(agent.step, env.size))
    greedy = mixture_action(env, settings.dqn, agent.learner, agent.random, state)
    key_coin, key_action = jax.random.split(keys.explore)
    explore = jax.random.uniform(key_coin, (n,)) < settings.epsilon(agent.step)
    action = jnp.where(explore, jax.random.randint(key_action, (n,), 0, env.num_actions), greedy)
    state_after, row, reward = act(env, state, action, key=keys.env)
    replay = jax.tree.map(lambda buffer, x: buffer.at[agent.step].set(x), agent.replay, row)
    expert = on_expert_wall(env, state)
    groups = jnp.stack([expert, ~expert]).astype(jnp.float32)
    progress = Progress(reward=groups @ reward, steps=jnp.sum(groups, axis=1), loss=jnp.zeros(()))
    return Agent(agent.learner, agent.random, state_after, replay, agent.step + 1), progress


def _learn(agent: Agent, settings: CollectionSettings, key: Array) -> tuple[TrainState, Float[Array, ""]]:
    """`updates` gradient steps on batches drawn uniformly from the history so far."""

    def one(learner: TrainState, key: Array) -> tuple[TrainState, Float[Array, ""]]:
        key_batch, key_update = jax.random.split(key)
        learner, metrics = settings.dqn.update(learner, _sample(agent, settings, key_batch), key=key_update)
        return learner, metrics["loss"]

    def learn(learner: TrainState) -> tuple[TrainState, Float[Array, ""]]:
        if settings.updates == 1:
            return one(learner, key)
        learner, losses = jax.lax.scan(one, learner, jax.random.split(key, settings.updates))
        return learner, jnp.mean(losses)

    waiting = agent.step * settings.environments < settings.learning_starts
    return jax.lax.cond(waiting, lambda learner: (learner, jnp.zeros(())), learn, agent.learner)


def _sample(agent: Agent, settings: CollectionSettings, key: Array) -> Transition:
    key_step, key_env = jax.random.split(key)
    shape = (settings.dqn.batch_size or 512,)
    at = (
        jax.random.randint(key_step, shape, 0, agent.step),
        jax.random.randint(key_env, shape, 0, settings.environments),
    )
    row = jax.tree.map(lambda buffer: buffer[at], agent.replay)
    return Transition(
        obs=row.obs,
        task=jax.nn.one_hot(row.target, GoToDoor.task_dim),
        action=row.action.astype(jnp.int32),
        reward=row.reward.astype(jnp.float32),
        discount=settings.dqn.gamma * (1.0 - row.terminated.astype(jnp.float32)),
        next_obs=row.next_obs,
    )
