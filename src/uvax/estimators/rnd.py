"""DQN-RND and DQN-RND-P: myopic prediction errors, propagated by an intrinsic Q-function."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from uvax.data.transition import Spec, Transition
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.bootstrap import Policy
from uvax.estimators.cached import Features, Outputs
from uvax.estimators.checks import require_flag, require_positive, require_whole
from uvax.estimators.learning import Handed, half_square, td_target
from uvax.estimators.staged import Stage, Staged
from uvax.nets import select, sum_last


@dataclass(frozen=True, kw_only=True)
class RND(Staged):
    """Random network distillation with an intrinsic Q-function, with (`prior=True`, DQN-RND-P) or without the prior.

    The local error is e(s, a, z) = 1/2 mean_k (u_k - g_k)^2 (Eq. rnd_loss), u being regressed on the frozen g at the
    data. The intrinsic Q learns the discounted sum of `intrinsic_scale` * e under the extrinsic Q's greedy policy
    (or the given one). With the prior its output is Q_intr + `intrinsic_scale` * e, everywhere and without a gradient
    through e, so that errors at actions outside the data count too.

    `uncertainty` is that intrinsic value. It is **not a variance**: it can be negative and is not clipped. The scale
    matters because e starts near 2 / width and falls to a hundredth of that, while an untrained Q_intr starts with
    standard deviation sqrt(2 / width): unscaled, tasks would be ranked by the initialisation of Q_intr.
    """

    heads: int = 512
    prior: bool = True
    rnd_learning_rate: float = 3e-4  # the paper searches it and does not print the result
    intrinsic_scale: float = 1e5  # ours: the paper does not mention one; docs/methods.md has the search

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("heads", self.heads, 1)
        require_flag("prior", self.prior)
        require_positive("rnd_learning_rate", self.rnd_learning_rate)
        require_positive("intrinsic_scale", self.intrinsic_scale)

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        key_q, key_intrinsic, key_u, key_g = jax.random.split(key, 4)
        networks = {
            "q": self.build_network(spec, 1, key=key_q),
            "u": self.build_network(spec, self.heads, key=key_u),
            "intrinsic": self.build_network(spec, 1, key=key_intrinsic),
        }
        g = self.build_network(spec, self.heads, key=key_g)
        return self.init_networks(networks, {"g": g}, no_target=("u",))  # u regresses and never bootstraps

    @property
    def by_action(self) -> bool:
        return self.gains_by_order(self.heads)

    def stages(self) -> dict[str, Stage]:
        return {
            "q": lambda state, batch, key, _: self.learn_q(state, batch, key),
            "u": self._learn_u,
            "intrinsic": self._learn_intrinsic,
        }

    def cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Outputs:
        g = state.frozen["g"]
        return Outputs(g.at(obs, task, action), g(next_obs, task) if self.prior else None)

    def compact_cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Features:
        g = state.frozen["g"]
        return Features(g.at(obs, task, action), g.features(next_obs, task) if self.prior else None)

    def _learn_u(
        self, state: TrainState, batch: Transition, key: Array, handed: Handed
    ) -> tuple[TrainState, Handed, Metrics]:
        """The regression, and the errors before it: at (s, a), and with the prior at s'."""
        known = batch.cache or self.compact_cache(state, batch.obs, batch.task, batch.action, batch.next_obs)
        errors = {"next_error": self._next_error(state, handed["weights"], known, batch)} if self.prior else {}

        def loss(u):
            difference = u.at(batch.obs, batch.task, batch.action, batch.groups) - known.taken
            # The reward of Q_intr; taken here because u(s, a) is needed for its own loss anyway.
            return half_square(difference), {"error": self._scaled_error(difference)}

        state, found = self.gradient_step(state, loss, self.build_optimiser(self.rnd_learning_rate))
        error = found.pop("error")
        return state, {**errors, "error": error}, {**found, "error": jnp.mean(error)}

    def _learn_intrinsic(
        self, state: TrainState, batch: Transition, key: Array, handed: Handed
    ) -> tuple[TrainState, Handed, Metrics]:
        target, error = state.params if state.target is None else state.target, handed["error"]
        next_intrinsic = select(handed["weights"], target(batch.next_obs, batch.task))
        if self.prior:
            next_intrinsic = next_intrinsic + handed["next_error"]
        y = td_target(error, batch.discount, next_intrinsic)

        def loss(q):
            intrinsic = q.at(batch.obs, batch.task, batch.action)
            intrinsic = intrinsic + error if self.prior else intrinsic
            return half_square(intrinsic - y), {"uncertainty": jnp.mean(intrinsic)}

        state, metrics = self.gradient_step(state, loss, self.build_optimiser())
        return state, {}, metrics

    def value(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return state.params["q"](obs, task)[..., 0]

    def uncertainty(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        intrinsic = state.params["intrinsic"](obs, task)
        if self.prior:
            intrinsic = intrinsic + self._scaled_error(state.params["u"](obs, task) - state.frozen["g"](obs, task))
        return intrinsic[..., 0]

    def error(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        """The myopic error 1/2 mean_k (u_k - g_k)^2, unscaled: RND's own uncertainty."""
        difference = state.params["u"](obs, task) - state.frozen["g"](obs, task)
        return 0.5 * jnp.mean(difference * difference, axis=-1)

    def _next_error(
        self, state: TrainState, weights: Float[Array, "B A 1"], known: Outputs | Features, batch: Transition
    ) -> Float[Array, "B 1"]:
        """sum_a w_a e(s', a, z), scaled. Where w is the one-hot of a single a', only the heads of a' are computed."""
        u, g = state.params, state.frozen["g"]
        u_features = u.features(batch.next_obs, batch.task)
        if isinstance(self.bootstrap, Policy):
            return select(weights, self._scaled_error(u.heads(u_features) - known.next_outputs(g)))
        action = jnp.argmax(weights[..., 0], axis=-1)
        return self._scaled_error(u.heads_chosen(u_features, action) - known.next_chosen(g, action))

    def _scaled_error(self, difference: Float[Array, "*batch M"]) -> Float[Array, "*batch 1"]:
        return self.intrinsic_scale * 0.5 / difference.shape[-1] * sum_last(difference * difference)
