"""From rows to numbers: which rows belong together, and what is said about them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from uvax.evaluation.statistics import Interval, mean_interval
from uvax.experiments.content import Cell, Series
from uvax.experiments.paper import METHODS, label
from uvax.experiments.presets import PRESETS, changes
from uvax.experiments.rows import trial_id

Row = Mapping[str, Any]


def of_experiment(rows: Iterable[Row], name: str) -> tuple[list[Row], list[str]]:
    """The rows of an experiment at its largest preset and about one dataset for each size; sentences for the others.

    Rows of different presets are different experiments: a smoke run must not be averaged into a table. Rows about
    different data are not compared either, seed by seed or otherwise.
    """
    own, notes = _largest_preset([row for row in rows if row["experiment"] == name])
    own, more = _one_dataset(own)
    return own, notes + more


def _one_dataset(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """For each size the dataset with the most rows, of equals the one with the newest."""
    of_size: dict[Any, dict[Any, list[Row]]] = {}
    for row in rows:
        of_size.setdefault(row["config"].get("size"), {}).setdefault(row["config"].get("dataset"), []).append(row)
    kept, notes = {}, []
    for size, datasets in of_size.items():
        kept[size] = max(datasets, key=lambda d: (len(datasets[d]), max(_finished(row) for row in datasets[d])))
        if others := sum(map(len, datasets.values())) - len(datasets[kept[size]]):
            notes.append(f"Size {size}: {others} rows about another dataset are left out.")
    return [row for row in rows if row["config"].get("dataset") == kept[row["config"].get("size")]], notes


def _finished(row: Row) -> str:
    return row["provenance"]["finished"]


def _largest_preset(own: list[Row]) -> tuple[list[Row], list[str]]:
    presets = list(dict.fromkeys(row["config"].get("preset") for row in own))
    if len(presets) < 2:
        return own, []
    order = list(PRESETS)
    largest = max(presets, key=lambda p: order.index(p) if p in order else -1)
    kept = [row for row in own if row["config"].get("preset") == largest]
    others = ", ".join(f"{sum(r['config'].get('preset') == p for r in own)} of {p}" for p in presets if p != largest)
    return kept, [f"Rows of the preset {largest} are shown; there are also {others}."]


def cells(rows: Sequence[Row], *names: str) -> tuple[dict[tuple[Any, ...], list[Row]], list[str]]:
    """Rows by the values of `names` in their configuration, one configuration each.

    Where a cell has rows of several configurations (numbers were tuned between runs), the one with the most seeds is
    taken, of equals the newest, and a sentence says so.
    """
    groups: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        key = tuple(config_value(row["config"], name) for name in names)
        groups.setdefault(key, {}).setdefault(trial_id("", row["config"], 0), []).append(row)
    chosen, notes = {}, []
    for key, configurations in groups.items():
        best = max(configurations.values(), key=lambda rs: (len(rs), max(map(_finished, rs))))
        chosen[key] = sorted(best, key=lambda r: r["seed"])
        if dropped := sum(map(len, configurations.values())) - len(best):
            where = ", ".join(f"{n} {v}" for n, v in zip(names, key, strict=True))
            notes.append(f"For {where}, {dropped} rows of other configurations are left out.")
    return chosen, notes


def config_value(config: Mapping[str, Any], name: str) -> Any:
    """A setting of a trial, or a hyperparameter of its method."""
    return config[name] if name in config else (config.get("hyperparameters") or {}).get(name)


def seeds_of(rows: Iterable[Row]) -> str:
    """How many seeds there are, in words."""
    return seeds_in_words(len({row["seed"] for row in rows}))


def seeds_in_words(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"


def numbers(rows: Iterable[Row], *path: str) -> list[float]:
    """The number at result[path...] of every row that has it."""
    found = []
    for row in rows:
        value: Any = row["result"]
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and math.isfinite(value):
            found.append(float(value))
    return found


def over_seeds(rows: Iterable[Row], *path: str) -> Interval:
    """Mean over seeds with the 90% Student-t interval of the paper's tables."""
    return mean_interval(numbers(rows, *path))


def plus_minus(interval: Interval, digits: int = 2) -> str:
    """'10.54 ± .03' as the paper prints it; without an interval the mean alone, '–' for nothing."""
    if math.isnan(interval.estimate):
        return "–"
    mean = f"{interval.estimate:.{digits}f}"
    if math.isnan(interval.low):
        return mean
    half = f"{interval.half_width:.{digits}f}"
    return f"{mean} ± {half.removeprefix('0')}"


def interval_cell(interval: Interval, *, mark: str = "", extra: str = "") -> Cell:
    """A cell with mean and interval."""
    if math.isnan(interval.estimate):
        return Cell("–", None, "missing", interval.note)
    seeds = f"{interval.n} seed{'s' if interval.n != 1 else ''}"
    return Cell(plus_minus(interval), interval.estimate, mark, f"{seeds}{'; ' + extra if extra else ''}")


def share(value: float) -> str:
    """A share as a percentage."""
    return "–" if math.isnan(value) else f"{value:.1%}"


def mean_curve(rows: Sequence[Row], column: str, name: str, **style: Any) -> Series | None:
    """A column of the learning curves, averaged over seeds; the band reaches from the lowest to the highest seed."""
    curves = [row["result"]["curve"] for row in rows if (row["result"].get("curve") or {}).get(column)]
    if not curves:
        return None
    steps = sorted(set.intersection(*(set(curve["step"]) for curve in curves)))
    table = [dict(zip(curve["step"], curve[column], strict=True)) for curve in curves]
    points = [[t[step] for t in table if t[step] is not None] for step in steps]
    return seeds_series(name, steps, points, markers=False, **style)


def seeds_series(name: str, x: Sequence[Any], points: Sequence[Sequence[float]], **style: Any) -> Series:
    """A line through the means of `points`, one list of seeds' values for each x, with their range as its band.

    A Student-t interval of two or three seeds would hide everything else in a figure; tables have those.
    """
    means = [float(np.mean(values)) if values else None for values in points]
    if max(map(len, points), default=0) < 2:
        return Series(name, list(x), means, **style)
    low, high = ([pick(values) if values else None for values in points] for pick in (min, max))
    return Series(name, list(x), means, low, high, **style)


def ordered_methods(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the paper's table, others after them."""
    present = set(methods)
    return [m for m in METHODS if m in present] + sorted(present - set(METHODS))


def colour_of(method: str) -> int:
    """A method has one colour in every figure."""
    return METHODS.index(method) if method in METHODS else len(METHODS)


def changed(row: Row) -> dict[str, Any]:
    """The hyperparameters that differ from the preset's when the trial ran; by today's preset if the row is silent."""
    said = row["result"].get("changes")
    return dict(said) if isinstance(said, Mapping) else changes(row["config"])


def describe_scale(rows: Iterable[Row]) -> str:
    """How large the trials are, in a line: 'width 128, heads 64, batch 256, learning rate 0.0003, 20,000 steps'."""
    configs = [row["config"] for row in rows]
    parts = []
    for name, words in (
        ("width", "width {}"),
        ("heads", "heads {}"),
        ("batch_size", "batch {}"),
        ("learning_rate", "learning rate {}"),
        ("steps", "{} steps"),
    ):
        values = sorted({v for config in configs if isinstance(v := config_value(config, name), int | float)})
        texts = [f"{v:,}" if isinstance(v, int) else f"{v:g}" for v in values]
        if texts:
            parts.append(words.format(" and ".join(texts) if len(texts) < 3 else f"{texts[0]} to {texts[-1]}"))
    return ", ".join(parts)


def best_of(values: Mapping[str, Interval]) -> set[str]:
    """The highest mean and those whose intervals overlap its: what the paper prints in bold."""
    known = {name: v for name, v in values.items() if not math.isnan(v.estimate)}
    if not known:
        return set()
    top = max(known.values(), key=lambda v: v.estimate)

    def reach(v: Interval) -> tuple[float, float]:  # a single seed has no interval: its value alone
        return (v.estimate, v.estimate) if math.isnan(v.low) else (v.low, v.high)

    low, high = reach(top)
    return {name for name, v in known.items() if reach(v)[1] >= low and reach(v)[0] <= high}


def title_of(trial: Any) -> str:
    """A trial in a few words."""
    config = trial.config
    method = label(str(config.get("method", config.get("kind"))))
    if "cached" in config:  # a measurement of time, of an ensemble of some size
        members = (config.get("hyperparameters") or {}).get("members")
        return f"{method}{f'({members})' if members else ''}{', cached' if config['cached'] else ''}"
    different = ", ".join(f"{name}={value}" for name, value in changes(config).items())
    size = f"size {config['size']}, " if "size" in config else ""
    return f"{method}{f' ({different})' if different else ''}, {size}seed {trial.seed}"
