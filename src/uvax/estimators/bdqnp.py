"""BDQNP(K): an ensemble of K Q-networks with randomised priors."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from uvax.data.transition import Spec, Transition
from uvax.estimators.base import Metrics, MetricsOfSteps, TrainState
from uvax.estimators.bootstrap import next_weights
from uvax.estimators.checks import require, require_flag, require_nonnegative, require_whole
from uvax.estimators.learning import Hyperparameters, half_square, td_target
from uvax.nets import Ensemble, select


class _Seen(NamedTuple):
    """The losses of the members so far, and mean and squared deviations of their values, for every step and row."""

    loss: Float[Array, " length"]
    mean: Float[Array, "length B"]
    squares: Float[Array, "length B"]

    @classmethod
    def nothing(cls, length: int, rows: int) -> "_Seen":
        return cls(jnp.zeros(length), jnp.zeros((length, rows)), jnp.zeros((length, rows)))

    def add(self, k: Int[Array, ""], loss: Float[Array, " length"], value: Float[Array, "length B"]) -> "_Seen":
        """And member k's, by Welford's recursion: a difference of two large sums would lose a small variance."""
        off = value - self.mean
        mean = self.mean + off / (k + 1).astype(off.dtype)
        return _Seen(self.loss + loss, mean, self.squares + off * (value - mean))

    def metrics(self, members: int) -> MetricsOfSteps:
        """Those of `update`, for every step."""
        uncertainty = jnp.mean(self.squares, axis=-1) / (members - 1)
        return {"loss": self.loss, "q": jnp.mean(self.mean, axis=-1), "uncertainty": uncertainty}


@dataclass(frozen=True, kw_only=True)
class BDQNP(Hyperparameters):
    """Bootstrapped DQN with randomised priors: Q_k = f_k + beta p_k, with p_k drawn once and never trained.

    Members see the same minibatch, without data masks, and are independent otherwise: each has its own argmax and its
    own target, prior included (Eq. bootstrap). `value` is their mean, and the agent is greedy in it; `uncertainty` is
    their unbiased sample variance. With `prior_scale=0` it is the plain deep ensemble of Theorem 1.
    """

    members: int = 15
    prior_scale: float = 1.0
    shared_bootstrap: bool = False  # ablation: all members bootstrap at the argmax of their mean

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("members", self.members, 1)
        require(self.members >= 2, "members", self.members, "at least 2: one has no variance (use DQN)")
        require_nonnegative("prior_scale", self.prior_scale)
        require_flag("shared_bootstrap", self.shared_bootstrap)

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        # Member k's own keys, whatever K is: the first members of a larger ensemble are the smaller one.
        of_member = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(key, k)))(jnp.arange(self.members))
        params, prior = (Ensemble.init(lambda k: self.build_network(spec, 1, key=k), keys) for keys in of_member.T)
        # A prior of scale 0 would only cost time.
        return self.init_state(params, prior if self.prior_scale else None, self.build_optimiser())

    def cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> PyTree:
        """The priors' outputs: [N, K] at (s, a), [N, A, K] at s'."""
        if state.frozen is None:
            return None
        return self.prior_scale * state.frozen.at(obs, task, action), self.prior_scale * state.frozen(next_obs, task)

    def update(self, state: TrainState, batch: Transition, *, key: Array) -> tuple[TrainState, Metrics]:
        state, loss, q_sa = self._learn(state, batch, key)
        metrics = {"q": jnp.mean(q_sa), "uncertainty": jnp.mean(jnp.var(q_sa, axis=-1, ddof=1))}
        return state, {"loss": loss, **metrics}

    def update_many(
        self, state: TrainState, steps: PyTree, batch_at: Callable[[PyTree], tuple[Transition, Array]]
    ) -> tuple[TrainState, MetricsOfSteps] | None:
        """`update` for one step after the other, member by member: all steps of one, then all steps of the next.

        Members do not depend on each other, so only the order of the work is another. What one member needs stays in
        the processor's cache for all its steps, where 35 members (38 MB at width 128) come from main memory in every
        step; and one member is compiled, not 35.
        """
        if self.shared_bootstrap:  # these depend on each other
            return None

        def train(seen: _Seen, member: tuple[Array, TrainState]) -> tuple[_Seen, TrainState]:
            k, state = member

            def step(state: TrainState, at: PyTree) -> tuple[TrainState, tuple[Array, Array]]:
                batch, key = batch_at(at)
                own = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, k, 1, axis=-1), batch.cache)
                trained, loss, q_sa = self._learn(state, batch._replace(cache=own), key)
                return trained, (loss, q_sa[:, 0])

            trained, (loss, q_sa) = jax.lax.scan(step, state, steps)
            return seen.add(k, loss, q_sa), trained._replace(frozen=None)

        rows = jax.eval_shape(lambda: batch_at(jax.tree.map(lambda x: x[0], steps))[0].discount)
        seen = _Seen.nothing(len(jax.tree.leaves(steps)[0]), *rows.shape)
        seen, trained = jax.lax.scan(train, seen, (jnp.arange(self.members), self._apart(state)))
        return self._together(trained, state), seen.metrics(self.members)

    def _apart(self, state: TrainState) -> TrainState:
        """The states of single members, stacked: a network with one head stands for an ensemble of one."""
        return jax.tree.map(
            lambda x: x.networks if isinstance(x, Ensemble) else jnp.broadcast_to(x, (self.members, *x.shape)),
            state,
            is_leaf=lambda x: isinstance(x, Ensemble),
        )

    def _together(self, members: TrainState, like: TrainState) -> TrainState:
        return jax.tree.map(
            lambda old, new: Ensemble(new) if isinstance(old, Ensemble) else new[0],
            like._replace(frozen=None),
            members,
            is_leaf=lambda x: isinstance(x, Ensemble),
        )._replace(frozen=like.frozen)

    def _learn(self, state: TrainState, batch: Transition, key: Array) -> tuple[TrainState, Array, Float[Array, "B K"]]:
        """One step of the members in `state`, their loss, and Q_k(s, a) before it."""
        online, target = state.params, state.params if state.target is None else state.target
        cache = batch.cache or self.cache(state, batch.obs, batch.task, batch.action, batch.next_obs)
        prior_sa, next_prior = cache or (0.0, 0.0)
        next_q = target(batch.next_obs, batch.task) + next_prior

        def scores():
            q = online(batch.next_obs, batch.task) + next_prior
            return jnp.mean(q, axis=-1, keepdims=True) if self.shared_bootstrap else q

        weights = next_weights(self.bootstrap, scores, batch, num_actions=next_q.shape[-2], key=key)
        y = td_target(batch.reward[:, None], batch.discount, select(weights, next_q))

        def loss(ensemble):
            q_sa = ensemble.at(batch.obs, batch.task, batch.action) + prior_sa
            return half_square(q_sa - y), {"q_sa": q_sa}

        state, found = self.gradient_step(state, loss, self.build_optimiser())
        return state, found["loss"], found["q_sa"]

    def first(self, state: TrainState, members: int) -> tuple["BDQNP", TrainState]:
        """The ensemble of the first so many members, for inference: it is what training it alone would have made.

        Members learn independently of each other (not with `shared_bootstrap`), and member k starts from keys of its
        own, so one training of 35 members holds those of 15 and of 3 with the same seed, to rounding.
        """
        require(not self.shared_bootstrap, "shared_bootstrap", True, "False: these members depend on each other")
        require(members <= self.members, "members", members, f"at most {self.members}, the members there are")
        prior = None if state.frozen is None else state.frozen.first(members)
        state = state._replace(params=state.params.first(members), frozen=prior, target=None, opt_state=None)
        return replace(self, members=members), state

    def value(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return jnp.mean(self.member_values(state, obs, task), axis=-1)

    def uncertainty(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return jnp.var(self.member_values(state, obs, task), axis=-1, ddof=1)

    def member_values(
        self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]
    ) -> Float[Array, "*batch A K"]:
        """Q_k(s, a, z) of every member."""
        q = state.params(obs, task)
        return q if state.frozen is None else q + self.prior_scale * state.frozen(obs, task)
