"""Which sections the rows give, and which rows cannot be shown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uvax.experiments import experiment as experiments
from uvax.experiments.content import Section
from uvax.experiments.rejection import rejection_section

Row = Mapping[str, Any]

_CHAIN = ("chain", "method", "length", "depth", "gamma", "train_z", "test_z", "steps")
_SURFACE = ("uncertainty", "correlation", "ratio", "difference", "covered")

# What a row of a kind must have for its section to be made; more may be there.
_NEEDED: dict[str, dict[str, tuple[str, ...]]] = {
    "task_rejection": {
        "config": ("preset", "method", "size", "hyperparameters", "evaluations", "final_episodes"),
        "result": ("status", "best", "last", "final", "curve", "seconds"),
    },
    "step_time": {
        "config": ("method", "hyperparameters", "cached"),
        "result": ("per_step", "fastest", "slowest", "compile", "fill_cache", "evaluation", "memory", "threads"),
    },
    "board": {"config": ("size",), "result": ("png", "width", "height", "mission")},
    "uvax.experiments.chain_tables:perform": {
        "config": ("length", "tables", "leaves", "gamma"),
        "result": ("data", "leaves"),
    },
    "uvax.experiments.chain:closed_form": {"config": _CHAIN, "result": ("uncertainty",)},
    "uvax.experiments.chain:ensemble": {"config": (*_CHAIN, "count", "width"), "result": _SURFACE},
    "uvax.experiments.chain:uvu": {"config": (*_CHAIN, "count", "width"), "result": _SURFACE},
    "uvax.experiments.chain:rnd": {"config": (*_CHAIN, "count", "width"), "result": ("uncertainty", "error")},
}


def usable(rows: Iterable[Row]) -> tuple[list[Row], list[str]]:
    """The rows that have what their kind needs, and a sentence for each that does not."""
    good, problems = [], []
    for row in rows:
        lacking = [
            f"{part}.{name}"
            for part, names in _NEEDED.get(str(row["config"].get("kind")), {}).items()
            for name in names
            if name not in row[part]
        ]
        if lacking:
            problems.append(f"trial {row['trial_id']} of {row['experiment']} has no {lacking[0]} and is left out")
        else:
            good.append(row)
    return good, problems


def make_sections(rows: Sequence[Row]) -> tuple[list[Section], list[str]]:
    """A section for every experiment that has rows, Table 1 first; then those of your own.

    Rows of an experiment that uvax does not know are shown too if they are task-rejection trials.
    """
    present = dict.fromkeys(row["experiment"] for row in rows)
    found, problems = [], []
    for name in [n for n in experiments.MODULES if n in present] + [n for n in present if n not in experiments.MODULES]:
        if name in experiments.MODULES:
            section = experiments.module(name).section(rows)
        else:
            known = [row for row in rows if row["experiment"] == name and row["config"].get("kind") == "task_rejection"]
            section = rejection_section(known, name, f"Task rejection ({name})")
        if section is None:
            count = sum(row["experiment"] == name for row in rows)
            problems.append(f"{count} rows of {name} are of a kind that the report has no section for")
        else:
            found.append(section)
    return found, problems
