"""Rows: what an experiment leaves behind, and all that figures, tables and the report read.

A row is a JSON object on a line of its own:

    schema       version of this layout
    experiment   which experiment it belongs to
    trial_id     names the trial: equal for equal experiment, config and seed, on every machine
    config       the whole configuration
    seed
    result       what was measured; numbers that are not finite are null
    provenance   versions, processor, commit, command, when and how long
    check        sha256 (first 12 digits) of all of the above, so that an altered row is noticed

Rows are only ever appended, by as many processes as like to. Reading never fails because of a bad row: it is left
out and named, with its file and line.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import uvax
from uvax.errors import InvalidInput
from uvax.files import append_jsonl, read_jsonl

SCHEMA = 1
_FIELDS = {
    "schema": int,
    "experiment": str,
    "trial_id": str,
    "config": dict,
    "seed": int,
    "result": dict,
    "provenance": dict,
}


def trial_id(experiment: str, config: Mapping[str, Any], seed: int) -> str:
    """12 hexadecimal digits: sha256 over the sorted JSON of experiment, config and seed.

    Numbers count by value, so that a width of 512 and of 512.0 are the same trial.
    """
    plain = _plain(config, finite="config")
    return _digest(_by_value({"experiment": experiment, "config": plain, "seed": int(seed)}))


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of an experiment, from its beginning to its row.

    trial = Trial("task_rejection", config, seed=3)
    if trial.id not in store.finished():
        store.append(trial.row({"return": 9.8}))
    """

    experiment: str
    config: Mapping[str, Any]
    seed: int
    started: float = dataclasses.field(default_factory=time.time)

    @functools.cached_property
    def id(self) -> str:
        return trial_id(self.experiment, self.config, self.seed)

    def row(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The row of this trial, finished now."""
        return {
            "schema": SCHEMA,
            "experiment": self.experiment,
            "trial_id": self.id,
            "config": _plain(self.config, finite="config"),
            "seed": int(self.seed),
            "result": _plain(result),
            "provenance": provenance(self.started),
        }


@dataclasses.dataclass(frozen=True)
class Rows:
    """The usable rows, in the order of their files and lines, and a sentence for each that was left out."""

    rows: list[dict[str, Any]]
    problems: list[str]

    def __len__(self) -> int:
        return len(self.rows)


@dataclasses.dataclass(frozen=True)
class RowStore:
    """An append-only store: one `.jsonl` file, or a folder with one such file per experiment."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "path", Path(path))

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the row of a finished trial, safely among other writers. It is on the disk when this returns."""
        row = {k: v for k, v in _plain(row).items() if k != "check"}
        problem = _problem(row)
        if problem is None and row["trial_id"] != trial_id(row["experiment"], row["config"], row["seed"]):
            problem = f"its trial_id {row['trial_id']!r} is not that of its experiment, config and seed"
        if problem is not None:
            raise InvalidInput(f"this row cannot be stored: {problem}; make rows with Trial(...).row(result)")
        append_jsonl(self._file(row["experiment"]), row | {"check": _digest(row)})

    def read(self) -> Rows:
        """All rows that can be used. Those left out (damaged, repeated, of another schema) raise one warning."""
        rows: list[dict[str, Any]] = []
        problems: list[str] = []
        seen: dict[str, str] = {}
        for file in self._files():
            lines, damaged = read_jsonl(file)
            problems += damaged
            for number, row in lines:
                place = f"{file}, line {number}"
                problem = _problem(row) or _altered(row)
                if problem is None and row["trial_id"] in seen:
                    problem = f"trial {row['trial_id']} is already there ({seen[row['trial_id']]})"
                if problem is None:
                    seen[row["trial_id"]] = place
                    rows.append(row)
                else:
                    problems.append(f"{place}: {problem}")
        if problems:
            some = "; ".join(problems[:3]) + ("; ..." if len(problems) > 3 else "")
            warnings.warn(f"{len(problems)} rows of {self.path} are left out: {some}", stacklevel=2)
        return Rows(rows, problems)

    def finished(self) -> set[str]:
        """The ids of the trials that have a usable row."""
        return {row["trial_id"] for row in self.read().rows}

    def _file(self, experiment: str) -> Path:
        return self.path if self.path.suffix == ".jsonl" else self.path / f"{experiment}.jsonl"

    def _files(self) -> list[Path]:
        if self.path.suffix == ".jsonl":
            return [self.path] if self.path.exists() else []
        return sorted(self.path.glob("*.jsonl"))


def provenance(started: float) -> dict[str, Any]:
    """Where a row comes from. The command is without the folders of this machine."""
    finished = time.time()
    return {
        "uvax": uvax.__version__,
        "jax": importlib.metadata.version("jax"),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "commit": _commit(),
        "command": shlex.join([Path(sys.argv[0]).name, *map(_without_folders, sys.argv[1:])]),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "finished": datetime.fromtimestamp(finished, UTC).isoformat(timespec="seconds"),
        "seconds": round(finished - started, 3),
    }


def _problem(row: Mapping[str, Any]) -> str | None:
    schema = row.get("schema")
    if schema != SCHEMA:
        return f"it has schema version {schema!r} and this uvax ({uvax.__version__}) reads {SCHEMA}"
    for name, kind in _FIELDS.items():
        if type(row.get(name)) is not kind:
            return f"{name!r} is missing or is not a {kind.__name__}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", row["experiment"]):
        return f"its experiment is called {row['experiment']!r}; use letters, digits, '_', '-' and '.'"
    return None


def _altered(row: Mapping[str, Any]) -> str | None:
    if row.get("check") != _digest({k: v for k, v in row.items() if k != "check"}):
        return "it does not match its checksum: it was altered or damaged"
    return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()[:12]


def _plain(value: Any, *, finite: str | None = None) -> Any:
    """`value` as JSON. With `finite`, numbers that are not finite are an error; otherwise they become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v, finite=finite) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, finite=finite) for v in value]
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        return _plain(np.asarray(value).tolist(), finite=finite)
    if isinstance(value, float) and not math.isfinite(value):
        if finite is not None:
            raise InvalidInput(f"{finite} holds {value}, which JSON cannot hold; write it as text, '{value}'")
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise InvalidInput(f"a row cannot hold {value!r} ({type(value).__name__}); use numbers, text, lists and dicts")


def _by_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _by_value(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_by_value(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without_folders(argument: str) -> str:
    """Paths on this machine mean nothing elsewhere: relative to here where possible, else the name only."""
    option, equals, path = argument.rpartition("=")
    if not path.startswith(os.sep):
        return argument
    here = Path.cwd()
    return option + equals + (str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else Path(path).name)


@functools.cache
def _cpu() -> str:
    try:
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


@functools.cache
def _commit() -> str | None:
    """The commit of the uvax that runs, "-dirty" if its code was changed since; None for an installed one."""
    folder = Path(uvax.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        # Of the package only: an experiment's own rows in results/ are no change of the code that made them.
        changed = git("status", "--porcelain", "--", str(folder))
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
