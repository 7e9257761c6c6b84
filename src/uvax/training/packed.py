"""Values per transition whose rows are drawn at random, as a table with one row of 32-bit words for each transition.

Drawing a row from every array of a dataset misses the processor's cache once for each array, and XLA's CPU backend
gathers element by element, 35 for an observation of 35 bytes. Here a transition is in one place and has a quarter of
the elements. Columns of many 32-bit numbers (the outputs of a network with many heads) are in a table of their own,
whose rows are fetched by a pass that does nothing else: within one that computes with them, the CPU would read them one
number at a time.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt32

from uvax.nets.layers import by_itself

_WORD = 4  # bytes
_WIDE = 64  # words from which on a column is in the table of wide ones


class _Column(NamedTuple):
    """Where a row of its table has the numbers of one array."""

    first: int
    words: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def stored(self) -> np.dtype:
        return np.dtype(np.uint8) if self.dtype == bool else self.dtype

    @property
    def wide(self) -> bool:
        return self.dtype.itemsize == _WORD and self.words >= _WIDE


class Layout(NamedTuple):
    """How the rows of a tree of arrays [N, ...] become rows of words and back, bit for bit."""

    columns: tuple[_Column, ...]
    structure: Any
    words: int  # of a row of either table
    wide: int

    @classmethod
    def of(cls, tree: PyTree) -> "Layout":
        """For a tree of arrays or of their shapes and dtypes."""
        leaves, structure = jax.tree.flatten(tree)
        columns: list[_Column] = []
        width = {False: 0, True: 0}
        for leaf in leaves:
            # What a device would make of it: without 64-bit mode, doubles become floats.
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
            words = -(-math.prod(leaf.shape[1:]) * dtype.itemsize // _WORD)
            column = _Column(0, words, tuple(leaf.shape[1:]), dtype)
            columns.append(column._replace(first=width[column.wide]))
            width[column.wide] += words
        return cls(tuple(columns), structure, width[False], width[True])


class Packed(eqx.Module):
    """A table of rows; `take` and `slice` give some of them back as a tree of arrays."""

    words: UInt32[Array, "N W"]
    wide: UInt32[Array, "N V"]  # the columns of many numbers
    layout: Layout = eqx.field(static=True)

    @classmethod
    def from_host(cls, tree: PyTree[np.ndarray]) -> "Packed":
        layout, leaves = Layout.of(tree), jax.tree.leaves(tree)
        rows = len(leaves[0])
        words, wide = (np.zeros((rows, n * _WORD), np.uint8) for n in (layout.words, layout.wide))
        for leaf, column in zip(leaves, layout.columns, strict=True):
            if leaf.size:
                content = np.ascontiguousarray(leaf, column.stored).reshape(rows, -1).view(np.uint8)
                first = column.first * _WORD
                (wide if column.wide else words)[:, first : first + content.shape[1]] = content
        return cls(jnp.asarray(words.view(np.uint32)), jnp.asarray(wide.view(np.uint32)), layout)

    @classmethod
    def of(cls, tree: PyTree[Array], rows: int) -> "Packed":
        """For arrays on the device, of so many rows each; the tree may have none."""
        layout, leaves = Layout.of(tree), jax.tree.leaves(tree)

        def table(wide: bool) -> UInt32[Array, "N _"]:
            columns = [
                (leaf, column) for leaf, column in zip(leaves, layout.columns, strict=True) if column.wide == wide
            ]
            return jnp.concatenate([jnp.zeros((rows, 0), jnp.uint32), *(_words(*column) for column in columns)], axis=1)

        return cls(table(False), table(True), layout)

    def __len__(self) -> int:
        return self.words.shape[0]

    def take(self, rows: Int[Array, " B"]) -> PyTree[Array]:
        """The rows of these numbers, which must be in [0, N)."""
        # Unsigned, or every element would first ask whether its index counts from the end.
        rows = rows.astype(jnp.uint32)

        def gather(table: Array, rows: Array) -> Array:
            return table.at[rows].get(mode="promise_in_bounds")

        wide = self.wide
        if self.layout.wide:
            wide = jax.lax.platform_dependent(wide, rows, cpu=partial(by_itself, gather), default=gather)
        return self._unpacked(gather(self.words, rows), wide)

    def take_one(self, rows: Int[Array, " B"], which: Callable[[PyTree], Any]) -> Array:
        """`which(self.take(rows))`, one array of them, without the words of the others."""
        index = which(jax.tree.unflatten(self.layout.structure, range(len(self.layout.columns))))
        column = self.layout.columns[index]
        at = rows.astype(jnp.uint32)[:, None], column.first + jnp.arange(column.words, dtype=jnp.uint32)
        table = self.wide if column.wide else self.words
        return _numbers(table.at[at].get(mode="promise_in_bounds"), column._replace(first=0))

    def slice(self, first: int | Int[Array, ""], size: int) -> PyTree[Array]:
        return self._unpacked(*(jax.lax.dynamic_slice_in_dim(table, first, size) for table in (self.words, self.wide)))

    def _unpacked(self, words: Array, wide: Array) -> PyTree[Array]:
        columns = (_numbers(wide if column.wide else words, column) for column in self.layout.columns)
        return jax.tree.unflatten(self.layout.structure, list(columns))


def _words(numbers: Array, column: _Column) -> UInt32[Array, "N w"]:
    rows = len(numbers)
    if not column.words:  # no tasks, say
        return jnp.zeros((rows, 0), jnp.uint32)
    flat = numbers.astype(column.stored).reshape(rows, -1)
    per_word = max(1, _WORD // column.stored.itemsize)
    flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % per_word)))
    if per_word > 1:
        flat = flat.reshape(rows, -1, per_word)
    return jax.lax.bitcast_convert_type(flat, jnp.uint32).reshape(rows, column.words)


def _numbers(words: UInt32[Array, "N W"], column: _Column) -> Array:
    rows = len(words)
    if not column.words:
        return jnp.zeros((rows, *column.shape), column.dtype)
    part = words[:, column.first : column.first + column.words]
    if column.stored.itemsize > _WORD:
        part = part.reshape(rows, -1, column.stored.itemsize // _WORD)
    numbers = jax.lax.bitcast_convert_type(part, column.stored).reshape(rows, -1)
    return numbers[:, : math.prod(column.shape)].reshape(rows, *column.shape).astype(column.dtype)
