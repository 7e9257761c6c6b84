"""Datasets from logged arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from uvax.data import checks
from uvax.data.dataset import Dataset
from uvax.errors import InvalidInput


def from_arrays(
    obs: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    next_obs: ArrayLike | None = None,
    *,
    terminated: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    episode_start: ArrayLike | None = None,
    discount: ArrayLike | None = None,
    task: ArrayLike | None = None,
    num_actions: int | None = None,
    environment: str | Mapping[str, Any] | None = None,
    header: Mapping[str, Any] | None = None,
) -> Dataset:
    """A dataset from arrays with one row per step: obs [N, D], action [N], reward [N], and the rest as far
    as known.

    `terminated` (the future is worth nothing) and `truncated` (a time limit; the future goes on) are masks
    of the last rows of episodes; absent means never. `discount` [N] is the environment's own continuation
    factor in [0, 1], which multiplies gamma. `task` [N, Z] is absent for a single task. `num_actions` is by
    default the largest action + 1: say it if the data may not contain every action. `environment` is a name
    or a dict with `name` and parameters.

    With `next_obs`, rows need not be in any order. Without `episode_start`, an episode begins in row 0,
    after a terminated or truncated row, and where an observation or task is not what the row before led to.

    Without `next_obs`, rows must be in the order they were made, and the observation after row i is the one
    in row i + 1. The last row of every episode must be marked, since its successor is not in the data: for a
    terminated row that does not matter (nothing bootstraps from it; `next_obs` repeats `obs`). A row where
    an episode was cut off by truncation cannot be used for learning and is left out; its observation becomes
    the true `next_obs` of the row before, which is then the truncated one. `header["rows_left_out"]` counts
    them. Pass `next_obs` to keep them.

    64-bit numbers become 32-bit ones, which is what JAX computes with; smaller types stay as they are.

        data = uvax.from_arrays(obs, action, reward, terminated=done, num_actions=4)
    """
    columns: dict[str, np.ndarray] = {
        "obs": _numbers("obs", obs),
        "action": _actions(action),
        "reward": _as_float32("reward", reward),
    }
    if columns["action"].ndim != 1:
        raise InvalidInput(f"action must have shape [N], got {list(columns['action'].shape)}")
    n = len(columns["action"])
    columns["task"] = np.zeros((n, 0), np.float32) if task is None else _numbers("task", task)
    if discount is not None:
        columns["discount"] = _as_float32("discount", discount)
    flags = {"terminated": terminated, "truncated": truncated, "episode_start": episode_start}
    for name, flag in flags.items():
        columns[name] = np.zeros(n, bool) if flag is None else _mask(name, flag)
    if next_obs is not None:
        columns["next_obs"] = _numbers("next_obs", next_obs)
        if columns["next_obs"].dtype != columns["obs"].dtype:
            common = np.promote_types(columns["obs"].dtype, columns["next_obs"].dtype)
            for name in ("obs", "next_obs"):
                columns[name] = _numbers(name, columns[name].astype(common))
    for name, column in columns.items():
        if column.ndim == 0 or len(column) != n:
            raise InvalidInput(f"{name} must have {n} rows like action, got shape {list(column.shape)}")
    if n == 0:
        raise InvalidInput("the dataset is empty: at least one transition is needed")

    left_out = 0
    if next_obs is None:
        columns, left_out = _derive_next_obs(columns, flags)
    elif episode_start is None:
        columns["episode_start"] = _find_starts(columns)
    if num_actions is None:
        num_actions = max(int(columns["action"].max()), 0) + 1
    return Dataset(**columns, header=_header(num_actions, environment, header, left_out))


def _derive_next_obs(
    columns: dict[str, np.ndarray], given: Mapping[str, ArrayLike | None]
) -> tuple[dict[str, np.ndarray], int]:
    if all(flag is None for flag in given.values()):
        raise InvalidInput(
            "without next_obs, terminated, truncated or episode_start must say where episodes end;"
            " otherwise the first observation of an episode would count as the outcome of the one before"
        )
    terminated, truncated = columns["terminated"], columns["truncated"]
    ended = terminated | truncated
    if given["episode_start"] is None:
        if not ended[-1]:
            raise InvalidInput(
                f"without next_obs, the last row ({len(ended) - 1}) must be terminated or truncated:"
                " the observation after it is not in the data; set truncated there, or pass next_obs"
            )
        start = np.append(True, ended[:-1])
    else:
        start = columns["episode_start"] | np.append(False, ended[:-1])
        start[0] = True
    last = np.append(start[1:], True)
    obs = columns["obs"]
    kept = ~last | terminated
    if not kept.any():
        raise InvalidInput(
            "without next_obs, every episode needs two rows or a terminated one: all episodes here are single"
            " truncated rows, whose outcome is not in the data; pass next_obs"
        )
    followed = np.append(np.arange(1, len(obs)), 0)
    columns = columns | {
        "next_obs": obs[np.where(last, np.arange(len(obs)), followed)],
        "truncated": np.where(last, truncated, ~kept[followed]),
        "episode_start": start,
    }
    if kept.all():
        return columns, 0
    return {name: column[kept] for name, column in columns.items()}, int((~kept).sum())


def _find_starts(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    obs, next_obs, task = columns["obs"], columns["next_obs"], columns["task"]
    start = np.append(True, (columns["terminated"] | columns["truncated"])[:-1])
    if obs.shape == next_obs.shape and obs.ndim == 2 and task.ndim == 2:
        start[1:] |= (obs[1:] != next_obs[:-1]).any(axis=1) | (task[1:] != task[:-1]).any(axis=1)
    return start


def _header(
    num_actions: int,
    environment: str | Mapping[str, Any] | None,
    header: Mapping[str, Any] | None,
    left_out: int,
) -> dict[str, Any]:
    result = {"created_by": "uvax.from_arrays", **(header or {}), "num_actions": num_actions}
    if environment is not None:
        result["environment"] = {"name": environment} if isinstance(environment, str) else dict(environment)
    if left_out:
        result["rows_left_out"] = left_out
    return result


def _plain(name: str, value: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidInput(f"{name} must be an array with rows of equal length") from None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _numbers(name: str, value: ArrayLike) -> np.ndarray:
    array = _plain(name, value)
    if array.dtype in (np.int64, np.uint64):
        narrow = np.dtype(np.int32 if array.dtype == np.int64 else np.uint32)
        limits = np.iinfo(narrow)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise InvalidInput(f"{name} has integers that do not fit in {narrow}; pass it as float32")
        return array.astype(narrow)
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        return _as_float32(name, array)
    if array.dtype not in checks.NUMBERS:
        raise InvalidInput(f"{name} must hold numbers, got dtype {array.dtype}")
    return array


def _actions(value: ArrayLike) -> np.ndarray:
    array = _plain("action", value)
    if array.dtype.kind in "iu":
        return _numbers("action", array)
    if array.size == 0:
        return array.astype(np.int32)
    raise InvalidInput(f"action has dtype {array.dtype}; it must hold integers: continuous actions are not supported")


def _as_float32(name: str, value: ArrayLike) -> np.ndarray:
    array = _plain(name, value)
    if array.dtype != np.float32 and array.dtype not in checks.NUMBERS and array.dtype.kind not in "iuf":
        raise InvalidInput(f"{name} must hold numbers, got dtype {array.dtype}")
    if array.ndim:
        checks.finite(name, array)
    with np.errstate(over="ignore"):
        narrowed = array.astype(np.float32, copy=False)
    if not np.isfinite(narrowed).all():
        raise InvalidInput(f"{name} has values too large for float32 (beyond 3.4e38); rescale it")
    return narrowed


def _mask(name: str, value: ArrayLike) -> np.ndarray:
    array = _plain(name, value)
    if array.dtype == bool:
        return array
    if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
        raise InvalidInput(f"{name} must be a mask of true and false (or 1 and 0), got dtype {array.dtype}")
    return array.astype(bool)
