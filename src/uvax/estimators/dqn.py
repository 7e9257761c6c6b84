"""DQN: one Q-network and no uncertainty. The baseline that rejects at random."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from uvax.data.transition import Spec, Transition
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.bootstrap import next_weights
from uvax.estimators.learning import Hyperparameters, half_square, td_target
from uvax.nets import select


@dataclass(frozen=True, kw_only=True)
class DQN(Hyperparameters):
    """Double DQN with a task-conditioned network (Appendix B, Eq. lossimp).

    `uncertainty` is zero everywhere; a protocol that ranks by it must break ties at random.
    """

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        return self.init_state(self.build_network(spec, 1, key=key), None, self.build_optimiser())

    def update(self, state: TrainState, batch: Transition, *, key: Array) -> tuple[TrainState, Metrics]:
        online, target = state.params, state.params if state.target is None else state.target
        next_q = target(batch.next_obs, batch.task)
        weights = next_weights(
            self.bootstrap,
            lambda: online(batch.next_obs, batch.task),
            batch,
            num_actions=next_q.shape[-2],
            key=key,
        )
        y = td_target(batch.reward[:, None], batch.discount, select(weights, next_q))

        def loss(q):
            q_sa = q.at(batch.obs, batch.task, batch.action)
            return half_square(q_sa - y), {"q": jnp.mean(q_sa)}

        return self.gradient_step(state, loss, self.build_optimiser())

    def value(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return state.params(obs, task)[..., 0]

    def uncertainty(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return jnp.zeros_like(self.value(state, obs, task))
