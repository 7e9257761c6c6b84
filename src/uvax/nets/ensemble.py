"""Independent networks evaluated together."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from uvax.nets.networks import Network

# Why members are unrolled: the compiled program of a vmapped ensemble has batched products for the weight gradients and
# copies of the activations between [B, K, W] and [K, B, W], where the unrolled one has plain products and no copies.
# How much of the measured difference in a training loop each accounts for is not established.
# Beyond this many members the unrolled program takes longer to compile than it saves.
MAX_UNROLLED = 40


class Ensemble(eqx.Module):
    """K networks with one head each; outputs carry the members where a multi-headed network carries its heads.

    Up to `MAX_UNROLLED` members are separate leaves evaluated one after the other, which is the fast form for wide
    networks; more are stacked in one network whose leaves have a leading axis K, and vmapped.
    """

    members: tuple[Network, ...] | Network

    @classmethod
    def init(cls, build: Callable[[Array], Network], keys: Array) -> "Ensemble":
        """K members, one for each of the K keys."""
        if keys.shape[0] > MAX_UNROLLED:
            return cls(jax.vmap(build)(keys))
        return cls(tuple(build(keys[k]) for k in range(keys.shape[0])))

    def _concatenate(self, evaluate: Callable[[Network], Array]) -> Array:
        if isinstance(self.members, tuple):
            return jnp.concatenate([evaluate(net) for net in self.members], axis=-1)
        return jnp.squeeze(jax.vmap(evaluate, out_axes=-1)(self.members), axis=-2)

    def __call__(self, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A K"]:
        return self._concatenate(lambda net: net(obs, task))

    def at(self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        return self._concatenate(lambda net: net.at(obs, task, action))
