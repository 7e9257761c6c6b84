"""DQN: one Q-network and no uncertainty. The baseline that rejects at random."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from uvax.data.transition import Spec, Transition
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.learning import Hyperparameters


@dataclass(frozen=True, kw_only=True)
class DQN(Hyperparameters):
    """Double DQN with a task-conditioned network (Appendix B, Eq. lossimp).

    `uncertainty` is zero everywhere; a protocol that ranks by it must break ties at random.
    """

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        return self.init_state(self.build_network(spec, 1, key=key), None, self.build_optimiser())

    def update(self, state: TrainState, batch: Transition, *, key: Array) -> tuple[TrainState, Metrics]:
        state, _handed, metrics = self.learn_q(state, batch, key)
        return state, metrics

    def value(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return state.params(obs, task)[..., 0]

    def uncertainty(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return jnp.zeros_like(self.value(state, obs, task))
