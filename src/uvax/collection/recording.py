"""The actions of a collection: with the seed they make its dataset again, to the last bit, on any machine.

The learner's arithmetic rounds differently from one processor or version to the next, and its choices with it. Boards,
starts and rewards follow from the seed and the actions in whole numbers. So two bits a step keep a dataset that takes a
quarter of an hour to collect, and rows made elsewhere are rows about the same data.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from uvax import storage
from uvax.collection import agent as agents
from uvax.collection.settings import CollectionSettings
from uvax.data import Dataset
from uvax.envs.go_to_door import GoToDoor
from uvax.errors import DamagedFile, InvalidInput
from uvax.estimators import from_config

KIND = "recording"
FILE_IN_FOLDER = "actions.safetensors"
_BITS = 2
_IN_BYTE = 8 // _BITS


class Recording(NamedTuple):
    """What a file of actions holds."""

    actions: UInt8[np.ndarray, " packed"]  # four to a byte, environment after environment
    header: Mapping[str, Any]  # the dataset's
    checksum: str  # of the dataset that the actions make

    @property
    def settings(self) -> CollectionSettings:
        values = dict(self.header["collection"])
        return CollectionSettings(**{**values, "dqn": from_config(values["dqn"])})

    @property
    def environment(self) -> GoToDoor:
        values = self.header["environment"]
        return GoToDoor(size=values["size"], max_steps=values["max_steps"])

    def dataset(self) -> Dataset:
        """The dataset, made again by playing the actions; a second for half a million transitions."""
        env, settings = self.environment, self.settings
        actions = unpack(self.actions, settings.steps).reshape(settings.environments, -1).T
        replay = _play(env, jax.random.key(self.header["seed"]), jnp.asarray(actions), settings=settings)
        data = dataset_of(env, replay, self.header)
        if data.checksum != self.checksum:
            raise DamagedFile(
                "playing the recorded actions gives another dataset than the one they were recorded from; "
                "this uvax's GoToDoor, or JAX's random numbers, are not those of the recording "
                f"(uvax {self.header.get('uvax')}): collect the data anew"
            )
        return data


def record(dataset: Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the actions of a dataset that `collect` made."""
    header = dataset.header
    if absent := {"environment", "collection", "seed"} - header.keys():
        raise InvalidInput(
            f"the dataset's header has no {', '.join(sorted(absent))}; only what uvax collected can be recorded"
        )
    # A part of a collection has the header of the whole, which its actions would not make.
    if "subset_of" in header or len(dataset) != header["collection"]["steps"]:
        raise InvalidInput("the dataset is a part of a collection; only a whole one can be recorded")
    content = {"dataset": dict(header), "checksum": dataset.checksum}
    storage.write(path, KIND, {"actions": pack(dataset.action)}, content, overwrite=overwrite)


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """The recording in that file; it is played by `Recording.dataset`."""
    arrays, content = storage.read(Path(path), KIND, mmap=False)
    try:
        recording = Recording(arrays["actions"], content["dataset"], content["checksum"])
        steps, _, _ = recording.settings.steps, recording.environment, recording.header["seed"]
    except (KeyError, TypeError, InvalidInput) as error:
        raise DamagedFile(f"{path} is not a recording that this uvax can play: {error}") from error
    if len(recording.actions) != -(-steps // _IN_BYTE):
        raise DamagedFile(f"{path} does not hold the {steps:,} actions that its header names")
    return recording


def pack(actions: Int[np.ndarray, " N"]) -> UInt8[np.ndarray, " packed"]:
    """Four actions in a byte, the first in the lowest bits."""
    actions = np.asarray(actions)
    if actions.size and not (actions.min() >= 0 and actions.max() < 2**_BITS):
        raise InvalidInput(f"actions go from {actions.min()} to {actions.max()}; expected 0 to {2**_BITS - 1}")
    padded = np.zeros(-(-actions.size // _IN_BYTE) * _IN_BYTE, np.uint8)
    padded[: actions.size] = actions
    shifts = np.arange(_IN_BYTE, dtype=np.uint8) * _BITS
    return np.bitwise_or.reduce(padded.reshape(-1, _IN_BYTE) << shifts, axis=1)


def unpack(packed: UInt8[np.ndarray, " packed"], count: int) -> UInt8[np.ndarray, " N"]:
    """The first `count` actions that `pack` put there."""
    shifts = np.arange(_IN_BYTE, dtype=np.uint8) * _BITS
    return ((packed[:, None] >> shifts) & (2**_BITS - 1)).astype(np.uint8).reshape(-1)[:count]


@partial(jax.jit, static_argnames="settings")
def _play(env: GoToDoor, seed: Array, actions: UInt8[Array, "T E"], *, settings: CollectionSettings) -> agents.Replay:
    """What `advance` remembers when it takes these actions."""

    def body(state, at):
        step, action = at
        board = replace(env, size=settings.size(step, env.size))
        key = agents.keys_of_step(seed, step).env
        state, row, _ = agents.act(board, state, action.astype(jnp.int32), key=key)
        return state, row

    start = agents.first_boards(env, settings, key=agents.key_of_start(seed))
    steps = jnp.arange(len(actions), dtype=jnp.int32)
    return jax.lax.scan(body, start, (steps, actions))[1]


def dataset_of(env: GoToDoor, replay: agents.Replay, header: Mapping[str, Any]) -> Dataset:
    """The history with each environment's episodes in a row."""

    def rows(x):
        x = np.asarray(x)
        return np.ascontiguousarray(np.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]))

    start = np.array(replay.start)
    start[0] = True
    return Dataset(
        obs=rows(replay.obs),
        task=np.eye(env.task_dim, dtype=np.int8)[rows(replay.target)],
        action=rows(replay.action).astype(np.int32),
        reward=rows(replay.reward).astype(np.float32),
        terminated=rows(replay.terminated),
        truncated=rows(replay.truncated),
        episode_start=rows(start),
        next_obs=rows(replay.next_obs),
        header=header,
    )
