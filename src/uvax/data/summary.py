"""What is in a dataset, as a table."""

import dataclasses
import io
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.console import Group as RichGroup

    from uvax.data.dataset import Dataset

QUANTILES = (0.1, 0.5, 0.9)
MOST_GROUPS = 24


@dataclasses.dataclass(frozen=True)
class Part:
    """Some of the episodes: how many, how much of the problem they cover, and what they earned."""

    name: str
    episodes: int
    transitions: int
    distinct: int  # pairs of observation and task
    return_mean: float | None  # None for no episodes
    return_quantiles: tuple[float, ...] | None  # at QUANTILES


@dataclasses.dataclass(frozen=True)
class Summary:
    """The numbers of `Dataset.summary`; `print` shows them as a table, and so does rich."""

    title: str
    total: Part
    endings: dict[str, int]  # episodes by how they ended
    parts: dict[str, tuple[Part, ...]]  # by what they are grouped: "task", and for GoToDoor "wall" (of the target)
    notes: tuple[str, ...] = ()

    def __rich__(self) -> "RichGroup":
        from rich.box import SIMPLE
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title), title_justify="left", box=SIMPLE, pad_edge=False, collapse_padding=True)
        table.add_column("")
        for column in ("episodes", "share", "transitions", "distinct", "return", *(f"{q:.0%}" for q in QUANTILES)):
            table.add_column(column, justify="right", no_wrap=True)
        _add(table, self.total, self.total.episodes)
        for by, parts in self.parts.items():
            table.add_section()
            for part in parts:
                _add(table, dataclasses.replace(part, name=f"{by} {part.name}"), self.total.episodes)
        endings = ", ".join(f"{count:,} {how}" for how, count in self.endings.items() if count)
        legend = "distinct: pairs of observation and task; return: mean and quantiles over episodes, undiscounted"
        return Group(table, f"Episodes: {endings}.", *self.notes, legend)

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().split("\n"))


def summarise(data: "Dataset") -> Summary:
    """Count, group and describe the episodes of `data`. Cost: one pass and a sort of one number per row."""
    starts = np.flatnonzero(data.episode_start)
    lengths = np.diff(np.append(starts, len(data)))
    last = starts + lengths - 1
    episodes = _Episodes(data.returns(), lengths, np.repeat(np.arange(len(starts)), lengths), _row_codes(data))
    terminated, truncated = data.terminated[last], data.truncated[last]
    environment = dict(data.header.get("environment") or {"name": "dataset"})
    parameters = ", ".join(f"{k}={v}" for k, v in environment.items() if k != "name")
    notes = []
    if left_out := data.header.get("rows_left_out"):
        notes.append(f"{left_out:,} truncated rows without a next observation were left out.")
    return Summary(
        title=environment["name"] + (f" ({parameters})" if parameters else ""),
        total=episodes.part("all", np.ones(len(starts), bool)),
        endings={
            "terminated": int(terminated.sum()),
            "truncated": int((truncated & ~terminated).sum()),
            "cut off by the end of the recording": int((~truncated & ~terminated).sum()),
        },
        parts={
            by: tuple(episodes.part(name, mask) for name, mask in groups)
            for by, groups in _groups(data, starts).items()
        },
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True)
class _Episodes:
    returns: np.ndarray
    lengths: np.ndarray
    of_row: np.ndarray
    codes: np.ndarray

    def part(self, name: str, mask: np.ndarray) -> Part:
        returns = self.returns[mask]
        return Part(
            name=name,
            episodes=int(mask.sum()),
            transitions=int(self.lengths[mask].sum()),
            distinct=_count_distinct(self.codes[mask[self.of_row]]),
            return_mean=float(returns.mean()) if len(returns) else None,
            return_quantiles=tuple(np.quantile(returns, QUANTILES).tolist()) if len(returns) else None,
        )


def _groups(data: "Dataset", starts: np.ndarray) -> dict[str, list[tuple[str, np.ndarray]]]:
    task = data.task[starts]
    if data.task.shape[1] == 0:
        return {}
    environment = data.header.get("environment") or {}
    if "GoToDoor" in environment.get("name", "") and data.obs.shape[1] == 35 and task.shape[1] == 6:
        from uvax.envs.go_to_door import COLOURS, WALLS

        doors = data.obs[starts, 3:27].reshape(-1, len(WALLS), len(COLOURS)).argmax(axis=2)
        target = task.argmax(axis=1)
        is_target = doors == target[:, None]
        walls = [(wall, is_target[:, i]) for i, wall in enumerate(WALLS)]
        if not is_target.any(axis=1).all():
            walls.append(("none", ~is_target.any(axis=1)))
        return {
            "task": [(colour, target == i) for i, colour in enumerate(COLOURS)],
            "wall": walls,
        }
    tasks, member = np.unique(task.astype(np.float32), axis=0, return_inverse=True)
    if len(tasks) > MOST_GROUPS:
        return {}
    return {"task": [(_task_name(z), member.reshape(-1) == i) for i, z in enumerate(tasks)]}


def _task_name(task: np.ndarray) -> str:
    if task.max() == 1 and (task != 0).sum() == 1:
        return str(int(task.argmax()))
    return "[" + " ".join(f"{x:g}" for x in task) + "]"


def _count_distinct(codes: np.ndarray) -> int:
    # np.unique would do, with a hash table that is ten times slower here than sorting.
    codes = np.sort(codes)
    return int(np.count_nonzero(codes[1:] != codes[:-1])) + (len(codes) > 0)


def _row_codes(data: "Dataset") -> np.ndarray:
    """64 bits per row, equal for equal observation and task; two among a million clash once in 1e7 datasets."""
    rows = np.concatenate([_row_bytes(data.obs), _row_bytes(data.task)], axis=1)
    words = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))).view(np.uint64)
    code = np.zeros(len(rows), np.uint64)
    for word in words.T:  # the mixing step of splitmix64, word after word
        code ^= word
        code *= np.uint64(0xBF58476D1CE4E5B9)
        code ^= code >> np.uint64(27)
        code *= np.uint64(0x94D049BB133111EB)
        code ^= code >> np.uint64(31)
    return code


def _row_bytes(columns: np.ndarray) -> np.ndarray:
    if columns.dtype.kind not in "biu":
        columns = columns.astype(np.float32) + np.float32(0)  # the sum makes -0.0 the same as 0.0
    width = columns.shape[1] * columns.dtype.itemsize
    return np.ascontiguousarray(columns).view(np.uint8).reshape(len(columns), width)


def _add(table: Any, part: Part, episodes: int) -> None:
    from rich.text import Text

    numbers = [part.return_mean, *(part.return_quantiles or [None] * len(QUANTILES))]
    table.add_row(
        Text(part.name),
        f"{part.episodes:,}",
        f"{part.episodes / episodes:.1%}",
        f"{part.transitions:,}",
        f"{part.distinct:,}",
        *("-" if x is None else f"{x:.4g}" for x in numbers),
    )
