"""Where next actions come from.

An estimator is told, not hard-wired: `Greedy` for control, or a given policy pi(a | s', z) for its evaluation, as
probabilities (`Policy`, expected TD) or as a sampler (`Sampler`, the paper's a' ~ pi). All three become weights over
the next actions, so that every method bootstraps through the same weighted sum (`nets.select`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from uvax.data.transition import Transition
from uvax.nets import one_hot


@dataclass(frozen=True)
class Greedy:
    """a' = argmax_a of the estimator's own online estimate: Double DQN, per head or member."""

    name: str = "greedy"


@dataclass(frozen=True)
class Policy:
    """Expected TD: `probs(obs [B, D], task [B, Z]) -> [B, A]`, rows that sum to one."""

    probs: Callable[[Array, Array], Float[Array, "B A"]]
    name: str = "policy"


@dataclass(frozen=True)
class Sampler:
    """Sampled TD: `sample(key, obs [B, D], task [B, Z]) -> [B]`, one next action for each transition and step."""

    sample: Callable[[Array, Array, Array], Array]
    name: str = "sampler"


Bootstrap = Greedy | Policy | Sampler


def next_weights(
    bootstrap: Bootstrap,
    scores: Callable[[], Float[Array, "B A H"]],
    batch: Transition,
    *,
    num_actions: int,
    key: Array,
) -> Float[Array, "B A _"]:
    """Weights over next actions: [B, A, H] when greedy, one row of actions for each head, else [B, A, 1].

    `scores` is called only when greedy: evaluating a given policy does not need the online networks at s'.
    """
    if isinstance(bootstrap, Policy):
        return bootstrap.probs(batch.next_obs, batch.task)[..., None]
    if isinstance(bootstrap, Sampler):
        return one_hot(bootstrap.sample(key, batch.next_obs, batch.task), num_actions)[..., None]
    return greedy(scores())


def greedy(scores: Float[Array, "*batch A H"]) -> Float[Array, "*batch A H"]:
    """One-hot of the argmax over actions, the first one in a tie."""
    best = jnp.argmax(scores, axis=-2, keepdims=True)
    return (best == jnp.arange(scores.shape[-2], dtype=best.dtype)[:, None]).astype(scores.dtype)
