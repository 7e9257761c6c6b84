"""What a trainer may keep of a frozen network for every transition: outputs, or where they are too many, features."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from uvax.nets import Network


class Outputs(NamedTuple):
    """Everything that is asked of it: nothing is left to compute. M (A + 1) numbers for each transition."""

    taken: Float[Array, "B M"]  # at (s, a)
    next: Any  # [B, A, M] at s', every action; None for a method that never asks

    def next_outputs(self, net: Network) -> Float[Array, "B A M"]:
        return self.next

    def next_apart(self, net: Network) -> list[Float[Array, "B M"]]:
        return [self.next[:, a] for a in range(self.next.shape[1])]

    def next_chosen(self, net: Network, action: Int[Array, " B"]) -> Float[Array, "B M"]:
        return jnp.take_along_axis(self.next, action[:, None, None], axis=1, mode="promise_in_bounds")[:, 0]


class Features(NamedTuple):
    """Its trunk: the heads are left to compute at s'. M numbers and one trunk for each transition."""

    taken: Float[Array, "B M"]
    next: Any  # the features at s', of the shape that the network gives them; or None

    def next_outputs(self, net: Network) -> Float[Array, "B A M"]:
        return net.heads(self.next)

    def next_apart(self, net: Network) -> list[Float[Array, "B M"]]:
        return net.heads_apart(self.next)

    def next_chosen(self, net: Network, action: Int[Array, " B"]) -> Float[Array, "B M"]:
        return net.heads_chosen(self.next, action)
