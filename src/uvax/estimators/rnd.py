"""DQN-RND and DQN-RND-P: myopic prediction errors, propagated by an intrinsic Q-function."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from uvax.data.transition import Spec, Transition
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.bootstrap import Policy, next_weights
from uvax.estimators.cached import Features, Outputs
from uvax.estimators.checks import require_flag, require_positive, require_whole
from uvax.estimators.learning import Hyperparameters, half_square, td_target
from uvax.nets import select, sum_last


@dataclass(frozen=True, kw_only=True)
class RND(Hyperparameters):
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

    def _optimiser(self):
        rates = {"q": self.learning_rate, "intrinsic": self.learning_rate, "u": self.rnd_learning_rate}
        return self.build_optimiser(rates)

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        key_q, key_intrinsic, key_u, key_g = jax.random.split(key, 4)
        params = {
            "q": self.build_network(spec, 1, key=key_q),
            "intrinsic": self.build_network(spec, 1, key=key_intrinsic),
            "u": self.build_network(spec, self.heads, key=key_u),
        }
        state = self.init_state(params, {"g": self.build_network(spec, self.heads, key=key_g)}, self._optimiser())
        if state.target is not None:  # u regresses and never bootstraps
            state = state._replace(target={name: state.target[name] for name in ("q", "intrinsic")})
        return state

    def cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Outputs:
        g = state.frozen["g"]
        return Outputs(g.at(obs, task, action), g(next_obs, task) if self.prior else None)

    def compact_cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Features:
        g = state.frozen["g"]
        return Features(g.at(obs, task, action), g.features(next_obs, task) if self.prior else None)

    def update(self, state: TrainState, batch: Transition, *, key: Array) -> tuple[TrainState, Metrics]:
        online, target = state.params, state.params if state.target is None else state.target
        next_q = target["q"](batch.next_obs, batch.task)
        weights = next_weights(
            self.bootstrap,
            lambda: online["q"](batch.next_obs, batch.task),
            batch,
            num_actions=next_q.shape[-2],
            key=key,
        )
        y = td_target(batch.reward[:, None], batch.discount, select(weights, next_q))

        known = batch.cache or self.compact_cache(state, batch.obs, batch.task, batch.action, batch.next_obs)
        next_intrinsic = select(weights, target["intrinsic"](batch.next_obs, batch.task))
        if self.prior:
            next_intrinsic = next_intrinsic + self._next_error(state, weights, known, batch)

        def loss(params):
            q_sa = params["q"].at(batch.obs, batch.task, batch.action)
            distillation = params["u"].at(batch.obs, batch.task, batch.action) - known.taken
            # The reward of Q_intr; taken here because u(s, a) is needed for its own loss anyway.
            error = jax.lax.stop_gradient(self._scaled_error(distillation))
            y_intrinsic = td_target(error, batch.discount, next_intrinsic)
            intrinsic = params["intrinsic"].at(batch.obs, batch.task, batch.action)
            intrinsic = intrinsic + error if self.prior else intrinsic
            losses = {
                "loss_q": half_square(q_sa - y),
                "loss_intrinsic": half_square(intrinsic - y_intrinsic),
                "loss_rnd": half_square(distillation),
            }
            metrics = {"q": jnp.mean(q_sa), "uncertainty": jnp.mean(intrinsic), "error": jnp.mean(error)}
            return sum(losses.values()), {**losses, **metrics}

        return self.gradient_step(state, loss, self._optimiser())

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
        u, g = state.params["u"], state.frozen["g"]
        u_features = u.features(batch.next_obs, batch.task)
        if isinstance(self.bootstrap, Policy):
            return select(weights, self._scaled_error(u.heads(u_features) - known.next_outputs(g)))
        action = jnp.argmax(weights[..., 0], axis=-1)
        return self._scaled_error(u.heads_chosen(u_features, action) - known.next_chosen(g, action))

    def _scaled_error(self, difference: Float[Array, "*batch M"]) -> Float[Array, "*batch 1"]:
        return self.intrinsic_scale * 0.5 / difference.shape[-1] * sum_last(difference * difference)
