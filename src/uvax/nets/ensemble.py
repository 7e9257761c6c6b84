"""Independent networks evaluated together."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from uvax.nets.networks import Network

# Why members are evaluated one after the other. Measured with 8 members, width and batch 512, against the arithmetic
# needed at the machine's best rate: a step takes 1.3 times that unrolled and 1.7 times vmapped, with one thread and
# with two. The loop is not the cause: the products alone take the same time inside lax.scan and outside. The stacking
# is. A product of stacks [8, 512, 512] runs at 0.7 to 0.8 of the rate, one of [512, 512] at 0.9 to 0.95; with the left
# side transposed in place (a weight gradient as XLA writes it, see `layers.weight_gradient`) the stack falls to 0.55.
# Every pass over a stack goes through main memory, where one member's activations stay in the cache from one product to
# the next. For the same reason `BDQNP.update_many` trains one member after the other, not one step after the other.
# Frozen members are part of the state, an argument of the compiled function. Closed over they would be constants: 4
# members took 56 s to compile instead of 2 s on a fixed batch, XLA's compiler multiplying what it can itself.
# Beyond this many members the unrolled program takes longer to compile than it saves.
MAX_UNROLLED = 40


class Ensemble(eqx.Module):
    """K networks with one head each; outputs carry the members where a multi-headed network carries its heads.

    They are kept as one network whose leaves have a leading axis K. Up to `MAX_UNROLLED` members are evaluated one
    after the other, which is the fast form for wide networks; more are vmapped.
    """

    networks: Network

    @classmethod
    def init(cls, build: Callable[[Array], Network], keys: Array) -> "Ensemble":
        """K members, one for each of the K keys; drawn together, which compiles once for all of them."""
        return cls(jax.vmap(build)(keys))

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.networks)[0])

    def first(self, members: int) -> "Ensemble":
        """The ensemble of the first so many members."""
        return Ensemble(jax.tree.map(lambda x: x[:members], self.networks))

    def apart(self) -> list[Network]:
        """The members one by one."""
        leaves, structure = jax.tree.flatten(self.networks)
        # Split, not indexed: the gradient of splitting is one concatenation, that of K indices are K sums.
        parts = [[part[0] for part in jnp.split(leaf, len(self))] for leaf in leaves]
        return [jax.tree.unflatten(structure, member) for member in zip(*parts, strict=True)]

    def _concatenate(self, evaluate: Callable[[Network], Array]) -> Array:
        if len(self) <= MAX_UNROLLED:
            return jnp.concatenate([evaluate(net) for net in self.apart()], axis=-1)
        return jnp.squeeze(jax.vmap(evaluate, out_axes=-1)(self.networks), axis=-2)

    def __call__(self, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A K"]:
        return self._concatenate(lambda net: net(obs, task))

    def at(self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        return self._concatenate(lambda net: net.at(obs, task, action))
