"""Heads of the action taken, and of no other: a linear layer whose columns depend on the row.

Multiplying every row with the heads of all A actions and keeping one of them is A times the arithmetic needed. Here
the rows are put in order of their actions, each action's rows padded to whole blocks, and each block is multiplied
with the columns of its own action. The number of blocks of an action is a bound of a loop, so no capacity has to be
chosen and no distribution of actions overflows one. The result equals the plain version to rounding.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from uvax.nets.layers import weight_gradient

# With fewer outputs per action, moving the rows costs more than the product saves.
MIN_HEADS = 16


def linear_at(
    x: Float[Array, "B W"],
    weight: Float[Array, "W AM"],
    bias: Float[Array, " AM"],
    action: Int[Array, " B"],
    num_actions: int,
) -> Float[Array, "B M"]:
    """Row b of x times the columns [action_b M, (action_b + 1) M) of `weight`, plus that part of `bias`.

    Costs about 2.5 B W M FLOP forward and twice that backward on a CPU with B = 512, where dense it would be 2 A B W M.
    Other platforms, which would wait for the host in a loop of unknown length, and batches of parameters (vmap over
    seeds) take the dense form.
    """
    bias_at = bias.reshape(num_actions, -1).at[action].get(mode="clip")
    return _product(num_actions, x, weight, action) + bias_at


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(num_actions: int, x: Array, weight: Array, action: Array) -> Array:
    return _forward(num_actions)(x, weight, action)


def _product_forward(num_actions: int, x: Array, weight: Array, action: Array):
    return _forward(num_actions)(x, weight, action), (x, weight, action)


def _product_backward(num_actions: int, residuals: tuple[Array, Array, Array], cotangent: Array):
    return *_backward(num_actions)(*residuals, cotangent), None


_product.defvjp(_product_forward, _product_backward)


class _Blocks(NamedTuple):
    """Where the rows of a batch go: padded, in order of their actions, in blocks of equal size."""

    rows: Int[Array, " P"]  # the row in each place; B in a padding place
    places: Int[Array, " B"]  # the place of each row
    first: Int[Array, " A+1"]  # the first block of each action, and the end of the last
    size: int

    @classmethod
    def plan(cls, action: Int[Array, " B"], num_actions: int) -> "_Blocks":
        batch = action.shape[0]
        # Small blocks waste fewer padding rows, large ones keep the products efficient.
        size = min(64, max(8, batch // 4))
        chosen = (action[:, None] == jnp.arange(num_actions, dtype=action.dtype)).astype(jnp.int32)
        earlier = jnp.cumsum(chosen, axis=0)  # rows of the same action up to this one
        blocks = (earlier[-1] + size - 1) // size
        first = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(blocks)])
        places = jnp.sum(chosen * (first[:-1] * size + earlier - 1), axis=1)
        length = (batch // size + num_actions) * size
        rows = jnp.full(length, batch, jnp.int32).at[places].set(jnp.arange(batch, dtype=jnp.int32))
        return cls(rows, places, first, size)

    def spread(self, x: Float[Array, "B n"]) -> Float[Array, "P n"]:
        return x.at[self.rows].get(mode="fill", fill_value=0.0)

    def collect(self, x: Float[Array, "P n"]) -> Float[Array, "B n"]:
        return x.at[self.places].get(mode="promise_in_bounds")

    def read(self, x: Float[Array, "P n"], block: Array) -> Float[Array, "size n"]:
        return lax.dynamic_slice_in_dim(x, block * self.size, self.size)

    def write(self, x: Float[Array, "P n"], part: Float[Array, "size n"], block: Array) -> Float[Array, "P n"]:
        return lax.dynamic_update_slice_in_dim(x, part, block * self.size, 0)


def _columns(weight: Float[Array, "W AM"], num_actions: int) -> list[Float[Array, "W M"]]:
    return jnp.split(weight, num_actions, axis=1)


def _grouped_forward(num_actions: int, x: Array, weight: Array, action: Array) -> Array:
    blocks = _Blocks.plan(action, num_actions)
    x = blocks.spread(x)
    out = jnp.zeros((x.shape[0], weight.shape[1] // num_actions), x.dtype)
    for a, columns in enumerate(_columns(weight, num_actions)):
        # Each loop has its own columns, passed by reference: indexing them by block would copy them.
        def body(i, out, columns=columns):
            return blocks.write(out, blocks.read(x, i) @ columns, i)

        out = lax.fori_loop(blocks.first[a], blocks.first[a + 1], body, out)
    return blocks.collect(out)


def _grouped_backward(num_actions: int, x: Array, weight: Array, action: Array, cotangent: Array):
    blocks = _Blocks.plan(action, num_actions)
    x, cotangent = blocks.spread(x), blocks.spread(cotangent)
    dx, dweight = jnp.zeros_like(x), []
    for a, columns in enumerate(_columns(weight, num_actions)):

        def body(i, carry, columns=columns):
            dx, dcolumns = carry
            part = blocks.read(cotangent, i)
            return blocks.write(dx, part @ columns.T, i), dcolumns + weight_gradient(blocks.read(x, i), part)

        start = (dx, jnp.zeros_like(columns))
        dx, dcolumns = lax.fori_loop(blocks.first[a], blocks.first[a + 1], body, start)
        dweight.append(dcolumns)
    return blocks.collect(dx), jnp.concatenate(dweight, axis=1)


def _dense_forward(num_actions: int, x: Array, weight: Array, action: Array) -> Array:
    out = (x @ weight).reshape(x.shape[0], num_actions, -1)
    return jnp.take_along_axis(out, action[:, None, None], axis=1, mode="promise_in_bounds")[:, 0]


def _dense_backward(num_actions: int, x: Array, weight: Array, action: Array, cotangent: Array):
    _, pull = jax.vjp(lambda x, weight: _dense_forward(num_actions, x, weight, action), x, weight)
    return pull(cotangent)


def _forward(num_actions: int):
    return _chosen(partial(_grouped_forward, num_actions), partial(_dense_forward, num_actions))


def _backward(num_actions: int):
    return _chosen(partial(_grouped_backward, num_actions), partial(_dense_backward, num_actions))


def _chosen(grouped, dense):
    """`grouped` on a CPU and for one set of arrays, else `dense`."""
    function = custom_vmap(lambda *args: lax.platform_dependent(*args, cpu=grouped, default=dense))

    @function.def_vmap
    def _(axis_size, in_batched, *args):
        out = jax.vmap(dense, [0 if batched else None for batched in in_batched])(*args)
        return out, jax.tree.map(lambda _: True, out)

    return function
