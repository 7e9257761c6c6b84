"""Heads of the action taken, and of no other: a linear layer whose columns depend on the row.

Multiplying every row with the heads of all A actions and keeping one of them is A times the arithmetic needed. Here
each action's rows are gathered and multiplied with its own columns. A compiled product has a fixed number of rows, so
there are a few sets of products, with enough rows for the most frequent action, the next and so on; how many rows the
most frequent one has decides which set runs. So no distribution of actions is too uneven, and nothing has to be known
about the data. The result equals the plain version to rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from uvax.nets.layers import weight_gradient

# With fewer outputs per action, moving the rows costs more than the product saves.
MIN_HEADS = 16

# At most so many sets, and about so many products in all of them: more multiply fewer rows for nothing and take longer
# to compile.
_SETS, _PRODUCTS = 8, 32


def linear_at(
    x: Float[Array, "B W"],
    weight: Float[Array, "W AM"],
    bias: Float[Array, " AM"],
    action: Int[Array, " B"],
    num_actions: int,
) -> Float[Array, "B M"]:
    """Row b of x times the columns [action_b M, (action_b + 1) M) of `weight`, plus that part of `bias`.

    Costs 2.5 to 3 B W M FLOP forward and twice that backward on a CPU with A = 4, where dense it would be 2 A B W M.
    Other platforms, which would wait for the host to choose, and batches of parameters (vmap over seeds) take the dense
    form.
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


def _sizes(batch: int, num_actions: int) -> list[tuple[int, ...]]:
    """For each set of products: rows that suffice for the most frequent action, the next and so on.

    If the most frequent action has between `low` and `high` rows, the k-th after it has at most `high`, and as those
    before it have no fewer, at most (batch - low) / k.
    """
    found = []
    step = num_actions ** (1 / min(_SETS, max(2, _PRODUCTS // num_actions)))
    low = -(-batch // num_actions)
    while low <= batch:
        high = min(batch, -(-int(step * low) // 8) * 8)
        found.append((high, *(min(high, (batch - low) // k) for k in range(1, num_actions))))
        low = high + 1
    return found


class _Order(NamedTuple):
    """The actions of a batch by how many rows have them, and these rows."""

    actions: Int[Array, " A"]  # the most frequent first
    counts: Int[Array, " A"]  # of rows, in that order
    first: Int[Array, " A"]  # where in `rows` theirs begin
    rows: Int[Array, " 2B"]  # those of the first action, of the second and so on; then any
    rank: Int[Array, " B"]  # of the action of each row
    within: Int[Array, " B"]  # how many rows before it have the same

    @classmethod
    def of(cls, action: Int[Array, " B"], num_actions: int) -> "_Order":
        batch = action.shape[0]
        every = jnp.arange(num_actions, dtype=jnp.int32)
        chosen = (action[:, None] == every.astype(action.dtype)).astype(jnp.int32)
        earlier = jnp.cumsum(chosen, axis=0, dtype=jnp.int32)  # rows of the same action up to this one
        actions = jnp.argsort(-earlier[-1]).astype(jnp.int32)
        counts = earlier[-1][actions]
        first = jnp.cumsum(counts, dtype=jnp.int32) - counts
        rank = jnp.sum(chosen * jnp.zeros_like(every).at[actions].set(every), axis=1, dtype=jnp.int32)
        within = jnp.sum(chosen * earlier, axis=1, dtype=jnp.int32) - 1
        rows = jnp.zeros(2 * batch, jnp.int32).at[first[rank] + within].set(jnp.arange(batch, dtype=jnp.int32))
        return cls(actions, counts, first, rows, rank, within)

    def columns(self, weight: Float[Array, "W AM"]) -> list[Float[Array, "W M"]]:
        """Those of every action."""
        heads = weight.shape[1] // len(self.actions)
        return [lax.dynamic_slice_in_dim(weight, a * heads, heads, axis=1) for a in self.actions]

    def together(self, columns: list[Float[Array, "W M"]]) -> Float[Array, "W AM"]:
        """The inverse of `columns`."""
        width, heads = columns[0].shape
        weight = jnp.zeros((width, heads * len(columns)), columns[0].dtype)
        for a, part in zip(self.actions, columns, strict=True):
            weight = lax.dynamic_update_slice_in_dim(weight, part, a * heads, 1)
        return weight

    def apart(self, sizes: tuple[int, ...], x: Float[Array, "B n"]) -> list[Float[Array, "_ n"]]:
        """The rows of every action, and behind them some of others, up to these sizes."""
        rows = [lax.dynamic_slice_in_dim(self.rows, start, n) for start, n in zip(self.first, sizes, strict=True)]
        return [x.at[some].get(mode="promise_in_bounds") for some in rows]

    def restored(self, sizes: tuple[int, ...], parts: list[Float[Array, "_ n"]]) -> Float[Array, "B n"]:
        """The inverse of `apart`."""
        before = jnp.asarray([sum(sizes[:k]) for k in range(len(sizes))], jnp.int32)
        return jnp.concatenate(parts).at[before[self.rank] + self.within].get(mode="promise_in_bounds")

    def compute(self, with_sizes: Callable[..., Any], *operands: Any) -> Any:
        """`with_sizes(sizes, *operands)` with the first sizes that suffice."""
        sets = _sizes(len(self.rank), len(self.actions))
        too_small = jnp.asarray([sizes[0] for sizes in sets[:-1]], jnp.int32) < self.counts[0]
        return lax.switch(jnp.sum(too_small, dtype=jnp.int32), [partial(with_sizes, s) for s in sets], *operands)


def _grouped_forward(num_actions: int, x: Array, weight: Array, action: Array) -> Array:
    order = _Order.of(action, num_actions)

    def with_sizes(sizes: tuple[int, ...], x: Array, columns: list[Array]) -> Array:
        return order.restored(sizes, [part @ c for part, c in zip(order.apart(sizes, x), columns, strict=True)])

    return order.compute(with_sizes, x, order.columns(weight))


def _grouped_backward(num_actions: int, x: Array, weight: Array, action: Array, cotangent: Array):
    order = _Order.of(action, num_actions)

    def with_sizes(sizes: tuple[int, ...], x: Array, columns: list[Array], cotangent: Array):
        cotangents = order.apart(sizes, cotangent)
        dx = order.restored(sizes, [c @ w.T for c, w in zip(cotangents, columns, strict=True)])
        # Rows of other actions are in the sum as well, so they have to be zero.
        own = [jnp.arange(size, dtype=jnp.int32)[:, None] < n for size, n in zip(sizes, order.counts, strict=True)]
        cotangents = [jnp.where(mine, c, 0.0) for mine, c in zip(own, cotangents, strict=True)]
        return dx, [weight_gradient(part, c) for part, c in zip(order.apart(sizes, x), cotangents, strict=True)]

    dx, parts = order.compute(with_sizes, x, order.columns(weight), cotangent)
    return dx, order.together(parts)


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
