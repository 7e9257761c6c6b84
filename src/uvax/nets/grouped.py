"""Heads of the action taken, and of no other: a linear layer whose columns depend on the row.

Multiplying every row with the heads of all A actions and keeping one of them is A times the arithmetic needed. Here
the rows are put in order of their actions, and each action's rows are multiplied with its own columns: in blocks, whose
number is a bound of a loop, so no capacity has to be chosen and no distribution of actions overflows one. The last
block of an action may reach into the rows of the next, which overwrites what was written there. The result equals the
plain version to rounding.
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

# Rows of a block: as many as fit of the first, then of the second. Large ones run faster, small ones overlap less.
_BLOCKS = (128, 16)

# Weight gradients sum over an action's rows, in one product compiled for each of so many numbers of rows: with those of
# blocks of 64 added up they took a third longer.
_WINDOWS = 16


def linear_at(
    x: Float[Array, "B W"],
    weight: Float[Array, "W AM"],
    bias: Float[Array, " AM"],
    action: Int[Array, " B"],
    num_actions: int,
) -> Float[Array, "B M"]:
    """Row b of x times the columns [action_b M, (action_b + 1) M) of `weight`, plus that part of `bias`.

    Costs about 2.2 B W M FLOP forward and twice that backward on a CPU with B = 512, where dense it would be 2 A B W M.
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


class _Order(NamedTuple):
    """The rows of a batch in order of their actions, and `spare` rows of zeros behind them."""

    rows: Int[Array, " B+spare"]  # the row in each place; B in a spare one
    places: Int[Array, " B"]  # the place of each row
    first: Int[Array, " A+1"]  # the first place of each action, and the end of the last
    window: int  # the numbers of rows that weight gradients are compiled for are multiples of this

    @classmethod
    def of(cls, action: Int[Array, " B"], num_actions: int) -> "_Order":
        batch = action.shape[0]
        window = max(8, -(-batch // _WINDOWS))
        chosen = (action[:, None] == jnp.arange(num_actions, dtype=action.dtype)).astype(jnp.int32)
        earlier = jnp.cumsum(chosen, axis=0)  # rows of the same action up to this one
        first = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(earlier[-1])])
        places = jnp.sum(chosen * (first[:-1] + earlier - 1), axis=1)
        spare = max(window, _BLOCKS[-1])
        rows = jnp.full(batch + spare, batch, jnp.int32).at[places].set(jnp.arange(batch, dtype=jnp.int32))
        return cls(rows, places, first, window)

    def sort(self, x: Float[Array, "B n"]) -> Float[Array, "P n"]:
        return x.at[self.rows].get(mode="fill", fill_value=0.0)

    def restore(self, x: Float[Array, "P n"]) -> Float[Array, "B n"]:
        return x.at[self.places].get(mode="promise_in_bounds")


def _columns(weight: Float[Array, "W AM"], num_actions: int) -> list[Float[Array, "W M"]]:
    return jnp.split(weight, num_actions, axis=1)


def _by_blocks(order: _Order, x: Float[Array, "P n"], matrices: list[Array], *, transposed: bool) -> Array:
    """Each action's rows of x times its matrix."""
    out = jnp.zeros((x.shape[0], matrices[0].shape[0 if transposed else 1]), x.dtype)
    for a, matrix in enumerate(matrices):
        place, end = order.first[a], order.first[a + 1]
        for size in (size for size in _BLOCKS if size <= x.shape[0]):
            left = end - place
            turns = left // size if size != _BLOCKS[-1] else (left + size - 1) // size

            # Each loop has its own matrix, passed by reference: indexing them by action would copy them.
            def body(i, out, size=size, matrix=matrix, place=place):
                at = place + i * size
                rows = lax.dynamic_slice_in_dim(x, at, size)
                return lax.dynamic_update_slice_in_dim(out, rows @ (matrix.T if transposed else matrix), at, 0)

            out = lax.fori_loop(0, turns, body, out)
            place = place + turns * size
    return out


def _weight_gradients(order: _Order, x: Float[Array, "P W"], cotangent: Float[Array, "P M"]) -> Float[Array, "W AM"]:
    """x^T c over each action's rows, the actions side by side."""
    size = order.window

    def over(windows: int):
        def product(start: Array, count: Array) -> Array:
            if windows == 0:
                return jnp.zeros((x.shape[1], cotangent.shape[1]), x.dtype)
            rows, c = (lax.dynamic_slice_in_dim(part, start, windows * size) for part in (x, cotangent))
            own = jnp.arange(windows * size, dtype=jnp.int32)[:, None] < count
            return weight_gradient(rows, jnp.where(own, c, 0.0))

        return product

    batch = order.places.shape[0]
    products = [over(windows) for windows in range(-(-batch // size) + 1)]
    first, counts = order.first[:-1], jnp.diff(order.first)
    parts = [lax.switch((counts[a] + size - 1) // size, products, first[a], counts[a]) for a in range(first.shape[0])]
    return jnp.concatenate(parts, axis=1)


def _grouped_forward(num_actions: int, x: Array, weight: Array, action: Array) -> Array:
    order = _Order.of(action, num_actions)
    return order.restore(_by_blocks(order, order.sort(x), _columns(weight, num_actions), transposed=False))


def _grouped_backward(num_actions: int, x: Array, weight: Array, action: Array, cotangent: Array):
    order = _Order.of(action, num_actions)
    x, cotangent = order.sort(x), order.sort(cotangent)
    dx = _by_blocks(order, cotangent, _columns(weight, num_actions), transposed=True)
    return order.restore(dx), _weight_gradients(order, x, cotangent)


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
