"""What a dataset must be, with a sentence for everything it must not."""

import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from uvax.errors import InvalidInput

# 64-bit numbers are left out: JAX would narrow them silently when they reach the device.
NUMBERS = tuple(
    np.dtype(d)
    for d in (
        np.bool_,
        np.int8,
        np.uint8,
        np.int16,
        np.uint16,
        np.int32,
        np.uint32,
        np.float16,
        ml_dtypes.bfloat16,
        np.float32,
    )
)


def header(given: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """A plain copy of `given`, or a sentence."""
    try:
        plain = json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"header must be plain JSON (text, finite numbers, lists, dicts): {error}") from None
    if plain["schema"] != schema:
        raise InvalidInput(f"header has dataset schema {plain['schema']!r} and this uvax knows {schema}")
    count = plain.get("num_actions")
    if type(count) is not int or count < 1:
        raise InvalidInput(f"header['num_actions'] must be a positive integer, got {count!r}")
    environment = plain.get("environment")
    if environment is not None and (not isinstance(environment, dict) or not isinstance(environment.get("name"), str)):
        raise InvalidInput(f"header['environment'] must be a dict with a 'name', got {environment!r}")
    return plain


def read_only(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array


def columns(arrays: Mapping[str, Any], num_actions: int) -> None:
    """Refuse columns that do not make a dataset."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InvalidInput(f"{name} must be a NumPy array, got {type(array).__name__}; use uvax.from_arrays")
    action = arrays["action"]
    integers = tuple(d for d in NUMBERS if d.kind in "iu")
    _array("action", action, 1, None, integers, "integers; continuous actions are not supported")
    n = len(action)
    if n == 0:
        raise InvalidInput("the dataset is empty: at least one transition is needed")
    _array("obs", arrays["obs"], 2, n, NUMBERS, "numbers of at most 32 bits; use uvax.from_arrays")
    _array("task", arrays["task"], 2, n, NUMBERS, "numbers of at most 32 bits; use uvax.from_arrays")
    _array("reward", arrays["reward"], 1, n, (np.dtype(np.float32),), "float32; use uvax.from_arrays")
    for name in ("terminated", "truncated", "episode_start"):
        _array(name, arrays[name], 1, n, (np.dtype(bool),), "bool; use uvax.from_arrays")
    obs, next_obs = arrays["obs"], arrays["next_obs"]
    if next_obs.shape != obs.shape or next_obs.dtype != obs.dtype:
        raise InvalidInput(
            f"next_obs must look like obs, {obs.dtype}{list(obs.shape)}, got {next_obs.dtype}{list(next_obs.shape)}"
        )
    if obs.shape[1] == 0:
        raise InvalidInput("obs must have at least one number per row, got shape " + str(list(obs.shape)))
    for name in ("obs", "next_obs", "task", "reward"):
        finite(name, arrays[name])
    low, high = int(action.min()), int(action.max())
    if low < 0 or high >= num_actions:
        row = int(np.flatnonzero((action < 0) | (action >= num_actions))[0])
        raise InvalidInput(
            f"actions must be in 0..{num_actions - 1}, got {int(action[row])} in row {row};"
            " number them from zero, or pass a larger num_actions"
        )
    if "discount" in arrays:
        discount = arrays["discount"]
        _array("discount", discount, 1, n, (np.dtype(np.float32),), "float32; use uvax.from_arrays")
        outside = ~((discount >= 0) & (discount <= 1))  # NaN is outside
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise InvalidInput(f"discount must be in [0, 1], got {discount[row]} in row {row}")
    _episodes(arrays)


def finite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind in "biu":
        return
    good = np.isfinite(array)
    if not good.all():
        rows = np.flatnonzero(~good.reshape(len(array), -1).all(axis=1))
        raise InvalidInput(
            f"{name} must be finite, but {len(rows)} of {len(array)} rows hold NaN or infinity,"
            f" the first of them row {rows[0]}"
        )


def row_index(indices: Any, n: int) -> np.ndarray:
    """Row numbers in 0..n-1 from integers or a mask."""
    index = np.asarray(indices)
    if index.dtype == bool:
        if index.shape != (n,):
            raise InvalidInput(f"a mask of rows must have shape [{n}], got {list(index.shape)}")
        index = np.flatnonzero(index)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        raise InvalidInput(f"indices must be a list of row numbers, got {index.dtype}{list(index.shape)}")
    if index.size == 0:
        raise InvalidInput("indices selects no row: at least one transition is needed")
    index = index.astype(np.int64)
    if index.min() < -n or index.max() >= n:
        raise InvalidInput(f"indices must be in 0..{n - 1}, got {int(index.min())}..{int(index.max())}")
    return np.where(index < 0, index + n, index)


def _array(
    name: str, array: np.ndarray, ndim: int, length: int | None, dtypes: tuple[np.dtype, ...], wanted: str
) -> None:
    if array.dtype not in dtypes:
        raise InvalidInput(f"{name} has dtype {array.dtype}; it must hold {wanted}")
    if array.ndim != ndim or (length is not None and len(array) != length):
        n = "N" if length is None else str(length)
        expected = f"[{n}]" if ndim == 1 else f"[{n}, {'Z' if name == 'task' else 'D'}]"
        hint = f"; flatten it with {name}.reshape(len({name}), -1)" if array.ndim > ndim == 2 else ""
        raise InvalidInput(f"{name} must have shape {expected}, got {list(array.shape)}{hint}")


def _episodes(arrays: Mapping[str, np.ndarray]) -> None:
    terminated, truncated, start = arrays["terminated"], arrays["truncated"], arrays["episode_start"]
    if not start[0]:
        raise InvalidInput("episode_start must be set in row 0: the first row begins an episode")
    ended = terminated | truncated
    if (ended[:-1] & ~start[1:]).any():
        row = int(np.flatnonzero(ended[:-1] & ~start[1:])[0])
        raise InvalidInput(
            f"row {row} ends an episode (terminated or truncated), so row {row + 1} must have episode_start set"
        )
