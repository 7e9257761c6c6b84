"""Heads of the action taken, and of no other: a linear layer whose weights depend on the row.

Multiplying every row with the heads of all A actions and keeping one of them is A times the arithmetic needed. Here
rows are in order of their actions, and those of each action are multiplied with its own heads. A compiled product has a
fixed number of rows, so each action has a few of them and takes the smallest with enough rows. Which numbers of rows
are compiled depends on how frequent an action is (`sizes_for`), or where that is not known, on nothing. The result
equals the plain version to rounding.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from uvax.nets.layers import weight_gradient

Sizes = tuple[tuple[int, ...], ...]
"""For each action the numbers of rows that products are compiled for, in ascending order."""

# With fewer outputs per action, moving the rows costs more than the product saves.
MIN_HEADS = 16

# About so many products for all actions together: more multiply fewer rows for nothing and take longer to compile.
_PRODUCTS = 32

# Where the frequencies are known: numbers of rows by how many standard deviations they are above the mean. More than
# the last is rare (one step in ten thousand), and then all heads are computed.
_DEVIATIONS = (-0.3, 0.5, 1.5, 4.0)


class Groups(eqx.Module):
    """What is known of a batch whose rows are in order of their actions."""

    counts: Int[Array, " A"]
    sizes: Sizes = eqx.field(static=True)


def sizes_for(shares: Sequence[float], batch: int) -> Sizes:
    """For batches of so many rows drawn at random where action a has a share of `shares[a]`."""
    most = max(2, min(len(_DEVIATIONS), _PRODUCTS // len(shares)))
    found = []
    for share in shares:
        spread = math.sqrt(batch * share * (1.0 - share))
        found.append(_rounded([share * batch + t * spread for t in _DEVIATIONS[-most:]], batch))
    return tuple(found)


def any_sizes(batch: int, num_actions: int) -> Sizes:
    """For actions that may be as frequent as they like."""
    most = max(2, min(8, _PRODUCTS // num_actions))
    return (
        _rounded([batch * (2.0 * num_actions) ** (k / (most - 1) - 1.0) for k in range(most)], batch),
    ) * num_actions


def _rounded(rows: Sequence[float], batch: int) -> tuple[int, ...]:
    return tuple(sorted({min(batch, max(1, math.ceil(n / 8)) * 8) for n in rows}))


def linear_at(
    x: Float[Array, "B W"],
    weights: Sequence[Float[Array, "W M"]],
    biases: Sequence[Float[Array, " M"]],
    action: Int[Array, " B"],
    groups: Groups | None = None,
    scale: Float[Array, "B 1"] | None = None,
) -> Float[Array, "B M"]:
    """Row b of x times `weights[action_b]` (and times `scale_b`), plus `biases[action_b]`.

    Costs 2.1 B W M FLOP forward and twice that backward on a CPU if `groups` is known, 2.3 if not and rows have to be
    put in order and back; dense it would be 2 A B W M. Other platforms, which would wait for the host to choose, and
    batches of parameters (vmap over seeds) take the dense form.
    """
    counts, sizes = (None, None) if groups is None else (groups.counts, groups.sizes)
    out = _products(sizes, x, tuple(weights), action, counts)
    return (out if scale is None else out * scale) + _bias_of(jnp.stack(biases), action)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(sizes: Sizes | None, x: Array, weights: tuple[Array, ...], action: Array, counts: Any) -> Array:
    return _chosen(partial(_grouped, sizes), _dense)(x, weights, action, counts)


def _products_forward(sizes: Sizes | None, x: Array, weights: tuple[Array, ...], action: Array, counts: Any):
    return _products(sizes, x, weights, action, counts), (x, weights, action, counts)


def _products_backward(sizes: Sizes | None, residuals: Any, cotangent: Array):
    dx, dweights = _chosen(partial(_grouped_gradient, sizes), _dense_gradient)(*residuals, cotangent)
    return dx, dweights, None, None


_products.defvjp(_products_forward, _products_backward)


@jax.custom_vjp
def _bias_of(bias: Float[Array, "A M"], action: Int[Array, " B"]) -> Float[Array, "B M"]:
    return bias.at[action].get(mode="clip")


def _bias_forward(bias: Array, action: Array) -> tuple[Array, Any]:
    return _bias_of(bias, action), jnp.arange(len(bias), dtype=action.dtype)[:, None] == action


def _bias_backward(taken: Array, cotangent: Array) -> tuple[Array, None]:
    return taken.astype(cotangent.dtype) @ cotangent, None


_bias_of.defvjp(_bias_forward, _bias_backward)


def _grouped(sizes: Sizes | None, x: Array, weights: tuple[Array, ...], action: Array, counts: Any) -> Array:
    def products(windows: _Windows, rows: Array, weights: tuple[Array, ...]) -> Array:
        def one(a: int, size: int, rows: Array, weight: Array) -> Array:
            return windows.padded(a, windows.of(a, size, rows) @ weight)

        return windows.together([windows.compute(a, one, rows, weight) for a, weight in enumerate(weights)])

    def otherwise(windows: _Windows, rows: Array, weights: tuple[Array, ...]) -> Array:
        return windows.extended(_dense(windows.inner(rows), weights, action, counts))

    order = _Order.of(sizes, action, counts, len(weights))
    windows = order.windows
    out = windows.if_enough(products, otherwise, windows.extended(order.sorted(x)), weights)
    return order.restored(windows.inner(out))


def _grouped_gradient(
    sizes: Sizes | None, x: Array, weights: tuple[Array, ...], action: Array, counts: Any, cotangent: Array
) -> tuple[Array, tuple[Array, ...]]:
    def products(windows: _Windows, rows: Array, weights: tuple[Array, ...], cotangents: Array):
        def one(a: int, size: int, rows: Array, cotangents: Array, weight: Array) -> tuple[Array, Array]:
            mine = windows.of(a, size, cotangents)
            # Rows of the next action are in the sum as well, so they have to be zero.
            alone = jnp.where(jnp.arange(size, dtype=jnp.int32)[:, None] < windows.counts[a], mine, 0.0)
            return windows.padded(a, mine @ weight.T), weight_gradient(windows.of(a, size, rows), alone)

        parts = [windows.compute(a, one, rows, cotangents, weight) for a, weight in enumerate(weights)]
        return windows.together([dx for dx, _ in parts]), tuple(dweight for _, dweight in parts)

    def otherwise(windows: _Windows, rows: Array, weights: tuple[Array, ...], cotangents: Array):
        dx, dweights = _dense_gradient(windows.inner(rows), weights, action, counts, windows.inner(cotangents))
        return windows.extended(dx), dweights

    order = _Order.of(sizes, action, counts, len(weights))
    windows = order.windows
    rows, cotangents = windows.extended(order.sorted(x)), windows.extended(order.sorted(cotangent))
    dx, dweights = windows.if_enough(products, otherwise, rows, weights, cotangents)
    return order.restored(windows.inner(dx)), dweights


class _Windows:
    """The rows of every action, one after the other in a batch in order of its actions.

    A window begins with the first row of an action and may reach into the rows of the next, or beyond the batch.
    """

    def __init__(self, sizes: Sizes, counts: Int[Array, " A"], batch: int):
        self.sizes, self.counts, self.batch = sizes, counts, batch
        self.first = jnp.cumsum(counts, dtype=jnp.int32) - counts
        self.beyond = max(some[-1] for some in sizes)

    def if_enough(self, products: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
        """`products(self, *operands)` if no action has more rows than its largest product, else `otherwise(...)`."""
        if all(some[-1] == self.batch for some in self.sizes):
            return products(self, *operands)
        most = jnp.asarray([some[-1] for some in self.sizes], jnp.int32)
        return lax.cond(jnp.all(self.counts <= most), partial(products, self), partial(otherwise, self), *operands)

    def compute(self, a: int, of_size: Callable[..., Any], *operands: Any) -> Any:
        """`of_size(a, size, *operands)` with the smallest size that suffices for action a."""
        too_small = jnp.asarray(self.sizes[a][:-1], jnp.int32) < self.counts[a]
        branches = [partial(of_size, a, size) for size in self.sizes[a]]
        return lax.switch(jnp.sum(too_small, dtype=jnp.int32), branches, *operands)

    def extended(self, x: Float[Array, "B n"]) -> Float[Array, "_ n"]:
        """With rows behind the last, so that no window is moved to end with it."""
        return jnp.pad(x, ((0, self.beyond), (0, 0)))

    def inner(self, extended: Float[Array, "_ n"]) -> Float[Array, "B n"]:
        return extended[: self.batch]

    def of(self, a: int, size: int, extended: Float[Array, "_ n"]) -> Float[Array, "size n"]:
        return lax.dynamic_slice_in_dim(extended, self.first[a], size)

    def padded(self, a: int, part: Float[Array, "size n"]) -> Float[Array, "_ n"]:
        """The result of a window with as many rows as the largest one has."""
        return jnp.pad(part, ((0, self.sizes[a][-1] - len(part)), (0, 0)))

    def together(self, parts: list[Float[Array, "_ n"]]) -> Float[Array, "_ n"]:
        """The rows of every action, extended; each part overwrites what the one before it has behind its own rows."""
        out = jnp.pad(parts[0], ((0, self.batch + self.beyond - len(parts[0])), (0, 0)))
        for part, first in zip(parts[1:], self.first[1:], strict=True):
            out = lax.dynamic_update_slice_in_dim(out, part, first, 0)
        return out


class _Order(NamedTuple):
    """How to put rows in order of their actions, and back; None: they are."""

    windows: _Windows
    rows: Int[Array, " B"] | None = None
    back: Int[Array, " B"] | None = None

    @classmethod
    def of(cls, sizes: Sizes | None, action: Int[Array, " B"], counts: Any, num_actions: int) -> "_Order":
        batch = len(action)
        if sizes is not None:
            return cls(_Windows(sizes, counts, batch))
        rows, counts = in_order(action, num_actions)
        back = jnp.zeros(batch, jnp.int32).at[rows].set(jnp.arange(batch, dtype=jnp.int32), unique_indices=True)
        return cls(_Windows(any_sizes(batch, num_actions), counts, batch), rows, back)

    def sorted(self, x: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return x if self.rows is None else x.at[self.rows].get(mode="promise_in_bounds")

    def restored(self, x: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return x if self.back is None else x.at[self.back].get(mode="promise_in_bounds")


def in_order(action: Int[Array, " B"], num_actions: int) -> tuple[Int[Array, " B"], Int[Array, " A"]]:
    """Which rows to take for an order of the actions, those of one action as they were, and how many have each."""
    batch = len(action)
    # Sorting single numbers takes a fifth to a seventh of the time of sorting pairs.
    keys = jnp.sort(action.astype(jnp.int32) * batch + jnp.arange(batch, dtype=jnp.int32))
    chosen = action[:, None] == jnp.arange(num_actions, dtype=action.dtype)
    return keys % batch, jnp.sum(chosen, axis=0, dtype=jnp.int32)


def _dense(x: Array, weights: tuple[Array, ...], action: Array, counts: Any) -> Array:
    out = jnp.zeros((len(x), weights[0].shape[1]), x.dtype)
    for a, weight in enumerate(weights):
        out = jnp.where((action == a)[:, None], x @ weight, out)
    return out


def _dense_gradient(x: Array, weights: tuple[Array, ...], action: Array, counts: Any, cotangent: Array):
    _, pull = jax.vjp(lambda x, weights: _dense(x, weights, action, counts), x, weights)
    return pull(cotangent)


def _chosen(grouped: Callable[..., Any], dense: Callable[..., Any]) -> Callable[..., Any]:
    """`grouped` on a CPU and for one set of arrays, else `dense`."""
    function = custom_vmap(lambda *args: lax.platform_dependent(*args, cpu=grouped, default=dense))

    @function.def_vmap
    def _(axis_size, in_batched, *args):
        out = jax.vmap(dense, jax.tree.map(lambda batched: 0 if batched else None, in_batched))(*args)
        return out, jax.tree.map(lambda _: True, out)

    return function
