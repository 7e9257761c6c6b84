"""What the methods share: hyperparameters with the paper's defaults, the loss, and one gradient step."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from uvax.data.transition import Spec, Transition
from uvax.errors import InvalidInput
from uvax.estimators.adam import adam
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.bootstrap import Bootstrap, Greedy, Policy, Sampler, next_weights
from uvax.estimators.checks import (
    number,
    require,
    require_flag,
    require_nonnegative,
    require_one_of,
    require_positive,
    require_whole,
)
from uvax.nets import MIN_HEADS, ActionMLP, Activation, Conditioned, Network, Parametrisation, select

Handed = dict[str, Array]  # what a network hands on to those that learn after it in the same step
NetworkFactory = Callable[..., Network]
"""`factory(spec, heads, key=key) -> Network`, for networks of your own."""


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Hyperparameters of every method; defaults are the paper's (Table "hpsettings").

    The setting of Theorem 1 is `network="mlp"`, `optimiser="sgd"`, `batch_size=None`, `target_period=0` and a given
    policy as `bootstrap`. Losses are means over the batch, so a learning rate here is Theorem 1's alpha times N.
    """

    width: int = 512
    depth: int = 3
    network: str | NetworkFactory = "conditioned"  # "conditioned" (Figure "arc"), "mlp" (f(s, a, z)), or a factory
    normalise: bool = True  # the two l2 normalisations of "conditioned"
    parametrisation: str = "ntk"  # of "mlp": "ntk" or "he_uniform"
    sigma_w: float = math.sqrt(2.0)  # of "mlp" in NTK parametrisation
    sigma_b: float = 0.1
    activation: str = "relu"  # of "mlp": relu, erf, gelu

    gamma: float = 0.9
    batch_size: int | None = 512  # None: the whole dataset in every step
    learning_rate: float = 3e-4
    optimiser: str = "adam"  # "adam" or "sgd"
    adam_epsilon: float = 0.005  # divided by the batch size, as in the paper
    target_period: int = 256  # steps between target updates; 0: no target network, stop-gradient only
    target_lambda: float = 1.0  # target <- lambda * online + (1 - lambda) * target
    bootstrap: Bootstrap = field(default_factory=Greedy)

    def __post_init__(self) -> None:
        for name in ("width", "depth"):
            require_whole(name, getattr(self, name), 1)
        require_whole("batch_size", self.batch_size, 1, optional=True)
        require_whole("target_period", self.target_period, 0)
        for name in ("learning_rate", "adam_epsilon", "sigma_w"):
            require_positive(name, getattr(self, name))
        require_nonnegative("sigma_b", self.sigma_b)
        require(0.0 <= number(self.gamma) < 1.0, "gamma", self.gamma, "a number in [0, 1)")
        require(0.0 < number(self.target_lambda) <= 1.0, "target_lambda", self.target_lambda, "a number in (0, 1]")
        require_flag("normalise", self.normalise)
        require_one_of("optimiser", self.optimiser, ("adam", "sgd"))
        require_one_of("parametrisation", self.parametrisation, get_args(Parametrisation))
        require_one_of("activation", self.activation, get_args(Activation))
        if not callable(self.network):
            require_one_of("network", self.network, ("conditioned", "mlp"))
        if not isinstance(self.bootstrap, Greedy | Policy | Sampler):
            raise InvalidInput(
                f"bootstrap is {self.bootstrap!r}; expected Greedy(), Policy(probs) or Sampler(sample) "
                "from uvax.estimators"
            )

    def build_network(
        self, spec: Spec, heads: int, *, key: Array, width: int | None = None, depth: int | None = None
    ) -> Network:
        """A network with `heads` outputs for each action."""
        width, depth = width or self.width, depth or self.depth
        if callable(self.network):
            return self.network(spec, heads, key=key)
        if self.network == "mlp":
            return ActionMLP(
                spec,
                heads,
                width=width,
                depth=depth,
                parametrisation=self.parametrisation,  # type: ignore[arg-type]  # checked in __post_init__
                sigma_w=self.sigma_w,
                sigma_b=self.sigma_b,
                activation=self.activation,  # type: ignore[arg-type]  # checked by the network
                key=key,
            )
        return Conditioned(spec, heads, width=width, depth=depth, normalise=self.normalise, key=key)

    def gains_by_order(self, heads: int) -> bool:
        """Whether a network with so many heads gains by rows in order of their actions (`by_action`)."""
        return self.network == "conditioned" and heads >= MIN_HEADS

    def build_optimiser(self, rate: float | None = None) -> optax.GradientTransformation:
        """The optimiser; `rate` is another learning rate than `learning_rate`."""
        rate = self.learning_rate if rate is None else rate
        if self.optimiser == "sgd":
            return optax.sgd(rate)
        # A full batch has no stated size; the paper's is then the divisor.
        return adam(rate, self.adam_epsilon / (self.batch_size or 512))

    def init_state(self, params: PyTree, frozen: PyTree, optimiser: optax.GradientTransformation) -> TrainState:
        """A state at step 0 whose target network equals the online one."""
        target = jax.tree.map(jnp.copy, params) if self.target_period else None
        return TrainState(params, target, frozen, optimiser.init(params), jnp.zeros((), jnp.int32))

    def gradient_step(
        self,
        state: TrainState,
        loss: Callable[[Any], tuple[Float[Array, ""], Metrics]],
        optimiser: optax.GradientTransformation,
    ) -> tuple[TrainState, Metrics]:
        """One step on `loss(params) -> (loss, metrics)`, and the target update when it is due.

        `loss` sees the parameters only; whatever must not be differentiated was computed before it was made.
        """
        (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        step = state.step + 1
        target = state.target
        if target is not None:
            due = step % self.target_period == 0
            # A loop of one turn or none updates the target in place; a select or a conditional would write all of
            # it in every step.
            target = jax.lax.fori_loop(
                0, due.astype(jnp.int32), lambda _, old: jax.tree.map(self._blend, params, old), target
            )
        return TrainState(params, target, state.frozen, opt_state, step), {"loss": value, **metrics}

    def learn_q(self, state: TrainState, batch: Transition, key: Array) -> tuple[TrainState, Handed, Metrics]:
        """One step of a Double-DQN Q-network (Eq. lossimp), and what it bootstrapped at, for networks that follow it.

        `weights` [B, A, 1] are those of the actions at s', `scores` the online values that a greedy policy goes by.
        """
        online, target = state.params, state.params if state.target is None else state.target
        next_q = target(batch.next_obs, batch.task)
        handed: Handed = {}
        if isinstance(self.bootstrap, Greedy):  # a given policy needs none
            handed["scores"] = online(batch.next_obs, batch.task)
        weights = handed["weights"] = next_weights(
            self.bootstrap, lambda: handed["scores"], batch, num_actions=next_q.shape[-2], key=key
        )
        y = td_target(batch.reward[:, None], batch.discount, select(weights, next_q))

        def loss(q):
            q_sa = q.at(batch.obs, batch.task, batch.action)
            return half_square(q_sa - y), {"q": jnp.mean(q_sa)}

        state, metrics = self.gradient_step(state, loss, self.build_optimiser())
        return state, handed, metrics

    def _blend(self, new: Array, old: Array) -> Array:
        return new if self.target_lambda == 1.0 else self.target_lambda * new + (1.0 - self.target_lambda) * old


def half_square(error: Float[Array, "B H"]) -> Float[Array, ""]:
    """1/2 error^2: summed over heads or members, averaged over the batch."""
    return 0.5 * jnp.sum(error * error) / error.shape[0]


def td_target(
    reward: Float[Array, "B _"], discount: Float[Array, " B"], next_value: Float[Array, "B H"]
) -> Float[Array, "B H"]:
    """r + discount * v(s'), for each head or member (Eq. tdloss); rewards [B, 1] are the same for all of them."""
    return reward + discount[:, None] * next_value
