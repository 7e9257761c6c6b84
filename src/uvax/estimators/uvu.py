"""UVU: value uncertainty as the error between a TD learner and the random value function it is given to learn."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from uvax.data.transition import Spec, Transition
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.bootstrap import Greedy, greedy, next_weights
from uvax.estimators.cached import Features, Outputs
from uvax.estimators.checks import require_flag, require_nonnegative, require_positive, require_whole
from uvax.estimators.learning import Hyperparameters, half_square, td_target
from uvax.nets import select


@dataclass(frozen=True, kw_only=True)
class UVU(Hyperparameters):
    """Universal value-function uncertainties (Section 3).

    A frozen random network g with M heads is the value function of the synthetic reward
    r_g = g(s, a, z) - discount * g(s', a', z) (Eq. synthetic_rewards). The online network u learns it by TD
    (Eq. uvu_td_loss) and recovers g where the data determine the value of the policy. `uncertainty` is
    1/2 mean_k (u_k - g_k)^2: by Corollary 1 the variance of an ensemble, by Corollary 2 with M degrees of freedom.

    In control, head k bootstraps at its own a'_k = argmax_a Q(s', a, z) + c eps_k(s', a, z) with the signed error
    eps_k = u_k - g_k under the online parameters (Appendix B, independent bootstrapping). `value` is a plain
    Double-DQN Q of its own.
    """

    heads: int = 512
    uvu_learning_rate: float = 3e-4  # the paper searches it and does not print the result
    prior_scale: float = 1.0  # multiplies u and g alike
    error_scale: float = 1.0  # c
    shared_bootstrap: bool = False  # ablation: all heads bootstrap at Q's own argmax
    q_width: int | None = None  # width of the Q-network, if not `width`
    q_depth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("heads", self.heads, 1)
        require_positive("uvu_learning_rate", self.uvu_learning_rate)
        require_positive("prior_scale", self.prior_scale)
        require_nonnegative("error_scale", self.error_scale)
        require_flag("shared_bootstrap", self.shared_bootstrap)
        require_whole("q_width", self.q_width, 1, optional=True)
        require_whole("q_depth", self.q_depth, 1, optional=True)

    def _optimiser(self):
        return self.build_optimiser({"q": self.learning_rate, "u": self.uvu_learning_rate})

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        key_q, key_u, key_g = jax.random.split(key, 3)
        params = {
            "q": self.build_network(spec, 1, key=key_q, width=self.q_width, depth=self.q_depth),
            "u": self.build_network(spec, self.heads, key=key_u),
        }
        return self.init_state(params, {"g": self.build_network(spec, self.heads, key=key_g)}, self._optimiser())

    def cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Outputs:
        g = state.frozen["g"]
        return Outputs(g.at(obs, task, action), g(next_obs, task))

    def compact_cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Features:
        g = state.frozen["g"]
        return Features(g.at(obs, task, action), g.features(next_obs, task))

    def update(self, state: TrainState, batch: Transition, *, key: Array) -> tuple[TrainState, Metrics]:
        online, target = state.params, state.params if state.target is None else state.target
        g, scale = state.frozen["g"], self.prior_scale
        known = batch.cache or self.compact_cache(state, batch.obs, batch.task, batch.action, batch.next_obs)
        g_sa, next_g = scale * known.taken, scale * known.next_outputs(g)
        next_u = scale * target["u"](batch.next_obs, batch.task)
        next_q = target["q"](batch.next_obs, batch.task)

        if isinstance(self.bootstrap, Greedy):
            scores = online["q"](batch.next_obs, batch.task)
            q_weights = weights = greedy(scores)
            if not self.shared_bootstrap:
                error = scale * online["u"](batch.next_obs, batch.task) - next_g
                weights = greedy(scores + self.error_scale * error)
        else:
            q_weights = weights = next_weights(
                self.bootstrap, lambda: next_q, batch, num_actions=next_q.shape[-2], key=key
            )
        y_q = td_target(batch.reward[:, None], batch.discount, select(q_weights, next_q))
        # r_g + discount * u(s', a') with r_g = g(s, a) - discount * g(s', a'), both at head k's own a'.
        y_u = td_target(g_sa, batch.discount, select(weights, next_u - next_g))

        def loss(params):
            q_sa = params["q"].at(batch.obs, batch.task, batch.action)
            u_sa = scale * params["u"].at(batch.obs, batch.task, batch.action)
            losses = {"loss_q": half_square(q_sa - y_q), "loss_u": half_square(u_sa - y_u)}
            metrics = {"q": jnp.mean(q_sa), "uncertainty": 0.5 * jnp.mean(jnp.square(u_sa - g_sa))}
            return losses["loss_q"] + losses["loss_u"], {**losses, **metrics}

        return self.gradient_step(state, loss, self._optimiser())

    def value(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return state.params["q"](obs, task)[..., 0]

    def uncertainty(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return 0.5 * jnp.mean(jnp.square(self.errors(state, obs, task)), axis=-1)

    def errors(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A M"]:
        """The signed errors u_k - g_k of every head."""
        return self.prior_scale * (state.params["u"](obs, task) - state.frozen["g"](obs, task))
