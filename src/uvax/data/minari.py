"""Datasets from Minari and to Minari (the extra `uvax[minari]`).

A Minari episode of L steps has L + 1 observations, so nothing is lost in either direction: `next_obs` of the last
step is the last observation, whether the episode terminated, was truncated, or was merely cut off.
"""

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from uvax.data.arrays import from_arrays
from uvax.data.dataset import Dataset
from uvax.errors import DamagedFile, InvalidInput, WriteFailed
from uvax.files import reason

if TYPE_CHECKING:
    import minari
    from minari.dataset.episode_data import EpisodeData

Column = str | Callable[["EpisodeData"], ArrayLike] | None

_ARROW_ROWS = 32_768  # Minari takes one Arrow record batch per episode, and pyarrow reads none with more rows


def from_minari(
    dataset: "str | os.PathLike[str] | minari.MinariDataset",
    *,
    obs: Column = None,
    task: Column = None,
    download: bool = False,
) -> Dataset:
    """A dataset from a Minari one: its id, the path of its `data` folder, or a `minari.MinariDataset`.

    Actions must be `Discrete`. `obs` and `task` say where the two are: the name of an entry of dict observations or
    else of the infos, or a function of an episode that returns L + 1 rows (or L, for a task). By default `obs` is
    the whole observation, or the entry `obs` or `observation` of a dict; `task` is the entry `task` if there is
    one, and absent otherwise. Rows of any shape are flattened; `Discrete` observations become one-hot vectors.

        data = uvax.from_minari("uvax/gotodoor-size6-v0")
        data = uvax.from_minari(id, obs="image", task=lambda episode: encode(episode.observations["mission"]))
    """
    source = _open(_import(), dataset, download)
    num_actions, first_action = _actions(source)
    parts = [_columns(episode, source, obs, task) for episode in source.iterate_episodes() if len(episode)]
    steps = sum(len(part["action"]) for part in parts)
    if steps != source.total_steps:
        raise DamagedFile(f"Minari dataset {source.id} says it has {source.total_steps} steps, but {steps} can be read")
    if not parts:
        raise InvalidInput(f"Minari dataset {source.id} is empty: at least one transition is needed")
    try:
        columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"the episodes of Minari dataset {source.id} differ in shape: {error}") from None
    columns["action"] = columns["action"] - first_action
    ours = _ours(source)
    dtypes = ours.get("dtypes", {})
    if "task" not in columns and "task" in dtypes:
        columns["task"] = np.zeros((steps, 0), np.float32)
    for name, given in {"obs": obs, "next_obs": obs, "task": task, "action": None, "discount": None}.items():
        if name in dtypes and name in columns and given is None:
            columns[name] = columns[name].astype(dtypes[name])
    if "discount" not in dtypes:  # somebody else's discount may mean anything
        columns.pop("discount", None)
    header = {
        "created_by": "uvax.from_minari",
        "environment": _environment(source),
        "collection": {"minari": source.id, "algorithm": source.storage.metadata.get("algorithm_name")},
    }
    data = from_arrays(**columns, num_actions=num_actions, header=header)
    return dataclasses.replace(data, header=ours["header"]) if "header" in ours else data


def to_minari(
    data: Dataset, dataset_id: str, *, backend: Literal["hdf5", "arrow"] = "hdf5", **metadata: Any
) -> "minari.MinariDataset":
    """Write `data` under `dataset_id` (namespace/name-v0) into Minari's folder and return the Minari dataset.

    Observations are arrays, or dicts of `obs` and `task` where there are tasks (as of `uvax/GoToDoor-v0`). The data's
    own discount goes to `infos["discount"]`. The header goes along, so that `from_minari` gives back an equal dataset.
    `metadata` is passed to `minari.create_dataset_from_buffers` (`author`, `code_permalink`, `env`, ...). Arrow makes a
    folder per episode: prefer hdf5 for many short ones.
    """
    minari = _import()
    from minari.storage import get_dataset_path

    _check_id(dataset_id)
    if backend not in ("hdf5", "arrow"):
        raise InvalidInput(f"backend must be 'hdf5' or 'arrow', got {backend!r}")
    _check_continuous(data)
    longest = max(s.stop - s.start for s in data.episodes())
    if backend == "arrow" and longest >= _ARROW_ROWS:
        raise InvalidInput(
            f"Minari's arrow backend cannot read episodes of {_ARROW_ROWS:,} steps or more back, and the longest here"
            f" has {longest:,}; use backend='hdf5'"
        )
    path = get_dataset_path(dataset_id)
    if os.path.exists(path):
        raise InvalidInput(
            f"the Minari dataset {dataset_id} exists and is left as it is; choose another version number,"
            f" or remove it with minari.delete_dataset({dataset_id!r})"
        )
    observation_space, action_space = _spaces(data)
    dtypes = {name: str(array.dtype) for name, array in data.arrays().items() if name in _KEEP_DTYPE}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Minari wants an author, an email, a permalink, ...
            created = minari.create_dataset_from_buffers(
                dataset_id=dataset_id,
                buffer=[],
                observation_space=observation_space,
                action_space=action_space,
                data_format=backend,
                **metadata,
            )
        target = created.storage
        target.get_size = lambda: 0.0  # Minari's arrow storage would measure all files again after every episode
        try:
            target.update_episodes(_buffers(data))
        finally:
            del target.get_size
        ours = json.dumps({"header": data.header, "dtypes": dtypes})
        target.update_metadata({"dataset_size": target.get_size(), "uvax": ours})
        return minari.load_dataset(dataset_id)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise WriteFailed(f"the Minari dataset {dataset_id} could not be written: {reason(error)}") from error
        raise


_KEEP_DTYPE = ("obs", "next_obs", "task", "action", "discount")


def _import() -> Any:
    try:
        import minari
    except ImportError as error:
        raise InvalidInput(f"Minari is needed for this: pip install 'uvax[minari]' ({error})") from None
    return minari


def _open(minari: Any, dataset: Any, download: bool) -> "minari.MinariDataset":
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, os.PathLike):
        _check_id(dataset)
    try:
        if isinstance(dataset, os.PathLike):
            return minari.MinariDataset(os.fspath(dataset))
        return minari.load_dataset(dataset, download=download)
    except FileNotFoundError:
        known = sorted(minari.list_local_datasets())
        here = f"here are {', '.join(known)}" if known else "there are none here"
        raise InvalidInput(
            f"there is no Minari dataset {dataset} on this machine: {here}; download=True fetches it"
        ) from None
    except ImportError as error:
        raise InvalidInput(f"Minari cannot read {dataset}: {error}") from None
    except (ValueError, OSError, AssertionError) as error:
        raise DamagedFile(f"Minari cannot read {dataset}: {error}") from error


def _check_id(dataset_id: str) -> None:
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{dataset_id!r} is no Minari id; it must look like 'namespace/name-v0',"
            " the namespace having two letters or more"
        ) from None


def _actions(source: "minari.MinariDataset") -> tuple[int, int]:
    from gymnasium.spaces import Discrete

    space = source.action_space
    if not isinstance(space, Discrete):
        raise InvalidInput(f"actions of Minari dataset {source.id} are {space}; uvax needs Discrete actions")
    return int(space.n), int(space.start)


def _columns(
    episode: "EpisodeData", source: "minari.MinariDataset", obs: Column, task: Column
) -> dict[str, np.ndarray]:
    steps = len(episode)
    observations = _observations(episode, source, obs)
    tasks = _tasks(episode, task)
    if len(observations) != steps + 1 or len(episode.actions) != steps or (tasks is not None and len(tasks) < steps):
        raise InvalidInput(
            f"episode {episode.id} of Minari dataset {source.id} has {steps} rewards, {len(episode.actions)} actions,"
            f" {len(observations)} observations and {'no' if tasks is None else len(tasks)} tasks;"
            f" {steps} actions, {steps + 1} observations and at least {steps} tasks are needed"
        )
    columns: dict[str, Any] = {
        "obs": observations[:-1],
        "next_obs": observations[1:],
        "action": np.asarray(episode.actions).reshape(steps),
        "reward": np.asarray(episode.rewards).reshape(steps),
        "terminated": np.asarray(episode.terminations).reshape(steps),
        "truncated": np.asarray(episode.truncations).reshape(steps),
        "episode_start": np.arange(steps) == 0,
    }
    if tasks is not None:
        columns["task"] = tasks[:steps]
    if "discount" in (episode.infos or {}):
        columns["discount"] = np.asarray(episode.infos["discount"]).reshape(-1)[:steps]
    return columns


def _observations(episode: "EpisodeData", source: "minari.MinariDataset", where: Column) -> np.ndarray:
    from gymnasium import spaces

    if where is None and isinstance(source.observation_space, spaces.Discrete):
        space = source.observation_space
        return (np.asarray(episode.observations)[:, None] == np.arange(space.start, space.start + space.n)).astype(
            np.int8
        )
    if where is None and isinstance(episode.observations, dict):
        where = "obs" if "obs" in episode.observations else "observation"
    if where is None and not isinstance(episode.observations, np.ndarray):
        raise InvalidInput(
            f"observations of Minari dataset {source.id} are {source.observation_space};"
            " pass obs=, a function of an episode that returns an array of L + 1 rows"
        )
    found = episode.observations if where is None else _find(episode, where)
    if found is None:
        raise InvalidInput(
            f"observations of Minari dataset {source.id} have no entry {where!r}, only {', '.join(_entries(episode))};"
            " name one with obs=, or pass a function of an episode"
        )
    return _flat("obs", found)


def _tasks(episode: "EpisodeData", where: Column) -> np.ndarray | None:
    found = _find(episode, "task" if where is None else where)
    if found is None and where is not None:
        raise InvalidInput(f"there is no entry {where!r} for the task, only {', '.join(_entries(episode))}")
    return None if found is None else _flat("task", found)


def _find(episode: "EpisodeData", where: str | Callable[["EpisodeData"], ArrayLike]) -> Any:
    if callable(where):
        return where(episode)
    for place in (episode.observations, episode.infos):
        if isinstance(place, dict) and where in place:
            return place[where]
    return None


def _entries(episode: "EpisodeData") -> list[str]:
    return [key for place in (episode.observations, episode.infos) if isinstance(place, dict) for key in place]


def _flat(name: str, rows: ArrayLike) -> np.ndarray:
    array = np.asarray(rows)
    if array.ndim == 0 or array.dtype.kind in "OUSV":
        raise InvalidInput(
            f"{name} must be an array of numbers with a row per step, got {array.dtype}{list(array.shape)}"
        )
    return array.reshape(len(array), -1)


def _ours(source: "minari.MinariDataset") -> dict[str, Any]:
    text = source.storage.metadata.get("uvax")
    try:
        return json.loads(text) if text is not None else {}
    except (TypeError, ValueError) as error:
        raise DamagedFile(f"the uvax header of Minari dataset {source.id} cannot be read: {error}") from None


def _environment(source: "minari.MinariDataset") -> dict[str, Any] | None:
    spec = source.env_spec
    if spec is None:
        return None
    parameters = {k: v for k, v in spec.kwargs.items() if isinstance(v, bool | int | float | str)}
    return {"name": spec.id, **{k: v for k, v in parameters.items() if k != "name"}}


def _check_continuous(data: Dataset) -> None:
    broken = ~data.episode_start[1:] & (data.obs[1:] != data.next_obs[:-1]).any(axis=1)
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        raise InvalidInput(
            f"next_obs of row {row} is not obs of row {row + 1}, though both are in one episode; Minari stores each"
            " observation once: set episode_start where the data jumps"
        )


def _spaces(data: Dataset) -> tuple[Any, Any]:
    from gymnasium import spaces

    observation = _box(data.obs)
    if data.task.shape[1]:
        observation = spaces.Dict({"obs": observation, "task": _box(data.task)})
    return observation, spaces.Discrete(data.num_actions)


def _box(array: np.ndarray) -> Any:
    from gymnasium import spaces

    stored = _storable(array[:1])
    if stored.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, stored.shape[1:], stored.dtype.type)
    limits = np.iinfo(stored.dtype)
    return spaces.Box(limits.min, limits.max, stored.shape[1:], stored.dtype.type)


def _storable(array: np.ndarray) -> np.ndarray:
    """As a dtype that HDF5, Arrow and Gymnasium all know; `from_minari` turns it back."""
    if array.dtype == bool:
        return array.astype(np.int8)
    return array if array.dtype.kind in "iu" or array.dtype.name != "bfloat16" else array.astype(np.float32)


def _buffers(data: Dataset) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    for number, rows in enumerate(data.episodes()):
        observations: Any = _storable(np.concatenate([data.obs[rows], data.next_obs[rows][-1:]]))
        if data.task.shape[1]:
            task = _storable(np.concatenate([data.task[rows], data.task[rows][-1:]]))
            observations = {"obs": observations, "task": task}
        infos = None
        if data.discount is not None:
            # One row more than steps, as after a reset, and two axes: Minari's arrow reader fails on one.
            infos = {"discount": np.append(data.discount[rows], np.float32(1))[:, None]}
        yield EpisodeBuffer(
            id=number,
            observations=observations,
            actions=data.action[rows].astype(np.int64),
            rewards=data.reward[rows],
            terminations=data.terminated[rows],
            truncations=data.truncated[rows],
            infos=infos,
        )
