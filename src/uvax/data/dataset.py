"""Datasets: flat arrays of transitions with a header, checked when made."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Shaped

import uvax
from uvax import storage
from uvax.data import checks
from uvax.data.transition import Spec, Transition
from uvax.errors import DamagedFile, InvalidInput

if TYPE_CHECKING:
    import minari

    from uvax.data.summary import Summary

SCHEMA = 1
KIND = "dataset"
FILE_IN_FOLDER = "data.safetensors"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Transitions in the order they were made, episode after episode, and where they come from.

    Everything is checked here, so a dataset that exists can be trained on. The arrays are NumPy, are not
    copied, and cannot be written through the dataset. Compact dtypes stay as they are: integer observations
    take a quarter of the memory of float32 ones, and networks convert them batch by batch.
    `uvax.from_arrays` is the forgiving way in; this constructor converts nothing.

    An episode is a run of rows that begins with `episode_start` and ends where `terminated` or `truncated`
    says so, or where the next one begins: then the recording stopped and the environment went on, which
    bootstraps like a truncation. `next_obs` is the observation that really followed, never the first one of
    the next episode.

    `header` is plain JSON. `num_actions` must be in it; `environment` (a dict with `name` and its
    parameters), `collection`, `seed` and `created_by` are the names other parts of uvax look for; `schema`
    and `uvax` (the version that made the data) are filled in.
    """

    obs: Shaped[np.ndarray, "N D"]
    task: Shaped[np.ndarray, "N Z"]
    action: Integer[np.ndarray, " N"]
    reward: Float[np.ndarray, " N"]
    terminated: Bool[np.ndarray, " N"]
    truncated: Bool[np.ndarray, " N"]
    episode_start: Bool[np.ndarray, " N"]
    next_obs: Shaped[np.ndarray, "N D"]
    discount: Float[np.ndarray, " N"] | None = None
    header: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        header = checks.header({"schema": SCHEMA, "uvax": uvax.__version__, **self.header}, SCHEMA)
        object.__setattr__(self, "header", header)
        for name, array in self.arrays().items():
            object.__setattr__(self, name, checks.read_only(array))
        checks.columns(self.arrays(), header["num_actions"])

    def __len__(self) -> int:
        return len(self.action)

    def __repr__(self) -> str:
        environment = (self.header.get("environment") or {}).get("name", "unknown environment")
        return (
            f"Dataset({environment}: {len(self):,} transitions, {int(self.episode_start.sum()):,} episodes,"
            f" obs {self.obs.dtype}[{self.obs.shape[1]}], task [{self.task.shape[1]}],"
            f" {self.num_actions} actions)"
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns by name; `discount` only where there is one."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "header"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def num_actions(self) -> int:
        return self.header["num_actions"]

    @property
    def spec(self) -> Spec:
        """What a network has to know: shape and dtype of an observation, the task's length, the actions."""
        obs = jax.ShapeDtypeStruct(self.obs.shape[1:], self.obs.dtype)
        return Spec(obs=obs, task_dim=self.task.shape[1], num_actions=self.num_actions)

    def batch(self, gamma: float) -> Transition:
        """All transitions on the device, with discount = gamma * (1 - terminated), times the data's own
        discount.

        Observations keep their dtype; task and reward are float32, actions int32.
        """
        if not 0.0 <= gamma <= 1.0:
            raise InvalidInput(f"gamma must be in [0, 1], got {gamma}")
        discount = np.where(self.terminated, np.float32(0), np.float32(gamma))
        if self.discount is not None:
            discount = discount * self.discount
        return Transition(
            obs=jnp.asarray(self.obs),
            task=jnp.asarray(self.task.astype(np.float32)),
            action=jnp.asarray(self.action.astype(np.int32)),
            reward=jnp.asarray(self.reward),
            discount=jnp.asarray(discount),
            next_obs=jnp.asarray(self.next_obs),
        )

    def next_action(self) -> tuple[Int[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
        """The action the data took at `next_obs`, and whether it did: not in the last row of an episode (0
        there).

        For evaluating the policy that made the data (SARSA). Rows without one can be trained on only where
        the discount is zero, that is where `terminated` is set.
        """
        known = np.append(~self.episode_start[1:], False)
        return np.where(known, np.append(self.action[1:], 0), 0).astype(np.int32), known

    def episodes(self) -> Iterator[slice]:
        """The rows of each episode, as slices: `data.reward[s]` for s in `data.episodes()`."""
        starts = self._starts
        for first, last in zip(starts, np.append(starts[1:], len(self)), strict=True):
            yield slice(int(first), int(last))

    def returns(self) -> Float[np.ndarray, " E"]:
        """The undiscounted sum of rewards of each episode, as float64."""
        return np.add.reduceat(self.reward, self._starts, dtype=np.float64)

    @cached_property
    def _starts(self) -> Int[np.ndarray, " E"]:
        return np.flatnonzero(self.episode_start)

    def subset(self, indices: Any) -> "Dataset":
        """The rows at `indices` (integers or a mask), in that order.

        Rows that followed each other and still do stay one episode; every gap begins a new one. Cost: a copy.
        """
        index = checks.row_index(indices, len(self))
        columns = {name: array[index] for name, array in self.arrays().items()}
        columns["episode_start"] = columns["episode_start"] | np.append(True, index[1:] != index[:-1] + 1)
        return Dataset(**columns, header={**self.header, "subset_of": self.checksum})

    @cached_property
    def checksum(self) -> str:
        """sha256 of the arrays. Equal transitions have equal checksums, whatever the header says."""
        return storage.checksum(self.arrays())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one file, whole or not at all; `uvax.load` reads it back."""
        storage.write(path, KIND, self.arrays(), self.header, overwrite=overwrite)

    def summary(self) -> "Summary":
        """Transitions, episodes, returns and coverage, by task and for GoToDoor by the target's wall: print it."""
        from uvax.data.summary import summarise

        return summarise(self)

    def to_minari(
        self, dataset_id: str, *, backend: Literal["hdf5", "arrow"] = "hdf5", **metadata: Any
    ) -> "minari.MinariDataset":
        """Write a Minari dataset; see `uvax.data.minari.to_minari`."""
        from uvax.data.minari import to_minari

        return to_minari(self, dataset_id, backend=backend, **metadata)


def load(path: str | os.PathLike[str], *, verify: bool = True, mmap: bool = True) -> Dataset:
    """The dataset that `Dataset.save` wrote, memory-mapped: rows are read from disk as they are used.

    `path` is the file, or the folder that `uvax collect` made.
    `verify` compares every byte with the checksum in the file. Pickles and other formats are refused by name.
    """
    inside = os.path.join(path, FILE_IN_FOLDER)
    arrays, header = storage.read(inside if os.path.isfile(inside) else path, KIND, verify=verify, mmap=mmap)
    columns = {f.name for f in dataclasses.fields(Dataset)} - {"header"}
    if missing := columns - arrays.keys() - {"discount"}:
        raise DamagedFile(f"{path} is not a complete dataset: it has no {', '.join(sorted(missing))}")
    if extra := arrays.keys() - columns:
        raise DamagedFile(f"{path} is not a dataset of this uvax: it also has {', '.join(sorted(extra))}")
    try:
        return Dataset(**arrays, header=header)
    except InvalidInput as error:
        raise DamagedFile(f"{path} does not hold a usable dataset: {error}") from error
