"""Where next actions come from.

An estimator is told, not hard-wired: `Greedy` for control, or a given policy pi(a | s', z) for its evaluation, as
probabilities (`Policy`, expected TD) or as a sampler (`Sampler`, the paper's a' ~ pi). All three become weights over
the next actions, so that every method bootstraps through the same weighted sum (`nets.select`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from uvax.data.transition import Transition
from uvax.errors import InvalidInput
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
    shape, dtype = batch.discount.shape, batch.discount.dtype
    if isinstance(bootstrap, Policy):
        probs = bootstrap.probs(batch.next_obs, batch.task)
        _check_shape("Policy.probs", probs, (*shape, num_actions), "a row of probabilities over the actions")
        return probs.astype(dtype)[..., None]
    if isinstance(bootstrap, Sampler):
        action = bootstrap.sample(key, batch.next_obs, batch.task)
        _check_shape("Sampler.sample", action, shape, "one action")
        return one_hot(action, num_actions, dtype)[..., None]
    return greedy(scores())


def _check_shape(name: str, got: Array, expected: tuple[int, ...], what: str) -> None:
    # Another shape would broadcast against the values without a word.
    if got.shape != expected:
        raise InvalidInput(
            f"{name} returned shape {list(got.shape)}; expected {list(expected)}, {what} for each transition"
        )


def greedy(scores: Float[Array, "*batch A H"]) -> Float[Array, "*batch A H"]:
    """One-hot of the argmax over actions, the first one in a tie."""
    best = jnp.argmax(scores, axis=-2, keepdims=True)
    return (best == jnp.arange(scores.shape[-2], dtype=best.dtype)[:, None]).astype(scores.dtype)


def greedy_value(scores: Sequence[Float[Array, "*batch H"]], values: Sequence[Float[Array, "*batch H"]]) -> Array:
    """The value of the action with the highest score, for each head; lists over actions, the first one in a tie.

    What `select(greedy(scores), values)` is, in one pass: XLA's CPU backend makes its argmax a loop of its own.
    """
    best, found = scores[0], values[0]
    for score, value in zip(scores[1:], values[1:], strict=True):
        better = score > best
        best, found = jnp.where(better, score, best), jnp.where(better, value, found)
    return found
