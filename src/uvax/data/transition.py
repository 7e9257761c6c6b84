"""The shapes that datasets, estimators and trainers agree on."""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int, PyTree


class Transition(NamedTuple):
    """A batch of transitions, as an estimator's `update` sees it.

    `discount` is gamma * (1 - terminated): the synthetic reward and the bootstrap both use this array, and
    no code below the trainer ever sees `done`. Reaching a time limit is not termination. Without tasks Z = 0.

    `cache` holds values per transition that never change during training, such as the outputs of a frozen
    network (see `estimators.base.Estimator`); None when there are none. `groups` says that rows are in order of their
    actions (`uvax.nets.Groups`); None when they may be in any.
    """

    obs: PyTree[Any]  # leaves [B, ...]; an array [B, D] for every network in uvax
    task: Float[Array, "B Z"]
    action: Int[Array, " B"]
    reward: Float[Array, " B"]
    discount: Float[Array, " B"]
    next_obs: PyTree[Any]
    cache: PyTree[Any] = None
    groups: Any = None


class Spec(NamedTuple):
    """What a network has to know about a problem: shapes without the batch axis, the number of actions."""

    obs: PyTree[jax.ShapeDtypeStruct]
    task_dim: int
    num_actions: int

    @property
    def obs_dim(self) -> int:
        """Length of a flat observation; an error for pytree observations, which need their own network."""
        if not isinstance(self.obs, jax.ShapeDtypeStruct) or len(self.obs.shape) != 1:
            raise TypeError(f"this network takes flat observations [D], got {self.obs}; pass a network of your own")
        return self.obs.shape[0]
