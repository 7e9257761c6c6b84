"""A state as named host arrays, and back: what checkpoints and saved models both store.

Typed PRNG keys travel as their key data.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from uvax.errors import InvalidInput


def by_path(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as ".params['q'].head.weight"."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def to_host(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a tree as NumPy arrays by their paths."""
    leaves = by_path(tree)
    return {path: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for path, leaf in leaves.items()}


def fill(template: PyTree, arrays: Mapping[str, np.ndarray], what: str, advice: str) -> PyTree:
    """A tree like `template` with the values of `arrays`.

    A leaf that is missing, unknown, or of another shape or dtype is an error: f"{what}: ...; {advice}".
    """
    wanted = by_path(template)
    for path in sorted(wanted.keys() ^ arrays.keys()):
        raise InvalidInput(f"{what}: it {'lacks' if path in wanted else 'has'} {path}; {advice}")
    for path, leaf in wanted.items():
        got, expected = arrays[path], _data_shape(leaf)
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            raise InvalidInput(
                f"{what}: {path} is {got.dtype}{list(got.shape)} there and {expected.dtype}{list(expected.shape)}"
                f" here; {advice}"
            )
    filled = [_to_device(arrays[path], leaf) for path, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(template), filled)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data_shape(leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _to_device(array: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return array
    # A copy: the buffer may be a view on a file, or belong to the reader.
    placed = jax.device_put(np.array(array), getattr(like, "sharding", None))
    return jax.random.wrap_key_data(placed, impl=_key_impl(like)) if _is_key(like) else placed


def _key_impl(like: Any) -> Any:
    impls: list[Any] = []  # seen while tracing, since a template may be a shape without data
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return impls[0]
