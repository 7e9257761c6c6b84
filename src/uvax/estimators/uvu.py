"""UVU: value uncertainty as the error between a TD learner and the random value function it is given to learn."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from uvax.data.transition import Spec, Transition
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.bootstrap import Greedy, greedy_value
from uvax.estimators.cached import Features, Outputs
from uvax.estimators.checks import require_flag, require_nonnegative, require_positive, require_whole
from uvax.estimators.learning import Handed, half_square, td_target
from uvax.estimators.staged import Stage, Staged
from uvax.nets import Network, select


@dataclass(frozen=True, kw_only=True)
class UVU(Staged):
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

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        key_q, key_u, key_g = jax.random.split(key, 3)
        networks = {
            "q": self.build_network(spec, 1, key=key_q, width=self.q_width, depth=self.q_depth),
            "u": self.build_network(spec, self.heads, key=key_u),
        }
        return self.init_networks(networks, {"g": self.build_network(spec, self.heads, key=key_g)})

    @property
    def by_action(self) -> bool:
        return self.gains_by_order(self.heads)

    def stages(self) -> dict[str, Stage]:
        return {"q": lambda state, batch, key, _: self.learn_q(state, batch, key), "u": self._learn_u}

    def cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Outputs:
        g = state.frozen["g"]
        return Outputs(g.at(obs, task, action), g(next_obs, task))

    def compact_cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Features:
        g = state.frozen["g"]
        return Features(g.at(obs, task, action), g.features(next_obs, task))

    def _learn_u(
        self, state: TrainState, batch: Transition, key: Array, handed: Handed
    ) -> tuple[TrainState, Handed, Metrics]:
        online, target = state.params, state.params if state.target is None else state.target
        g, scale = state.frozen["g"], self.prior_scale
        known = batch.cache or self.compact_cache(state, batch.obs, batch.task, batch.action, batch.next_obs)
        g_sa, next_g = scale * known.taken, known.next_apart(g)

        def errors(u: Network) -> list[Float[Array, "B M"]]:
            """u - g at s', for one action after the other."""
            following = u.heads_apart(u.features(batch.next_obs, batch.task))
            return [scale * (u_a - g_a) for u_a, g_a in zip(following, next_g, strict=True)]

        if isinstance(self.bootstrap, Greedy) and not self.shared_bootstrap:
            scores = [handed["scores"][:, a] + self.error_scale * error for a, error in enumerate(errors(online))]
            following = greedy_value(scores, errors(target))
        else:
            following = select(handed["weights"], errors(target))
        # r_g + discount * u(s', a') with r_g = g(s, a) - discount * g(s', a'), both at head k's own a'.
        y = td_target(g_sa, batch.discount, following)

        def loss(u):
            u_sa = scale * u.at(batch.obs, batch.task, batch.action, batch.groups)
            return half_square(u_sa - y), {"uncertainty": 0.5 * jnp.mean(jnp.square(u_sa - g_sa))}

        state, metrics = self.gradient_step(state, loss, self.build_optimiser(self.uvu_learning_rate))
        return state, {}, metrics

    def value(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return state.params["q"](obs, task)[..., 0]

    def uncertainty(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return 0.5 * jnp.mean(jnp.square(self.errors(state, obs, task)), axis=-1)

    def errors(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A M"]:
        """The signed errors u_k - g_k of every head."""
        return self.prior_scale * (state.params["u"](obs, task) - state.frozen["g"](obs, task))
