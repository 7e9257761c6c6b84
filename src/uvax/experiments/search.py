"""Table "hpsearchspace": the search for hyperparameters, on size 10 as in the paper.

The paper's grid is the product of its axes. The reduced search takes one axis after the other: from its start (the
preset without what the search found) outward along the first, from the best of that along the second, and so on, with
the first seed. Two rules spare hopeless trials. On the way outward a value with less than `LOST` of the return in the
middle is the last of its side. And the other seeds go only through settings whose first score is at least `HOPELESS`
of the method's best. Neither can change the best setting's own numbers, which always come from all seeds; they can miss
a setting whose first seed was unlucky by more than the margin, or that lies beyond a hopeless one.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Chart, Section, Table
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.presets import preset_hyperparameters
from uvax.experiments.rows import Trial
from uvax.experiments.trial import trial_config

NAME = "search"
Searched = tuple[int, str]  # a size and a method: sizes are searches of their own
HOPELESS = 0.9
LOST = 0.5

# The axes of the paper's table, and one of ours: the paper mentions no scale of intrinsic rewards, and it matters.
AXES: dict[str, tuple[float, ...]] = {
    "learning_rate": paper.RATES,
    "prior_scale": paper.PRIOR_SCALES,
    "rnd_learning_rate": paper.RATES,
    "uvu_learning_rate": paper.RATES,
    "intrinsic_scale": (1.0, 1e2, 1e4, 1e5, 1e6),
}
# The reduced search trains shorter and so with higher rates than the paper: where it starts is not to be the end.
_HIGHER = (2e-3, 5e-3, 1e-2, 2e-2)
_REDUCED = {name: (*values, *_HIGHER) if "learning_rate" in name else values for name, values in AXES.items()}
_SMOKE = {name: values[-3:] for name, values in AXES.items()}
_TABLES = {"paper": AXES, "smoke": _SMOKE}
_METHODS = ("dqn", "bdqnp3", "dqn-rnd", "dqn-rnd-p", "uvu")


def axes(method: str, preset: str) -> dict[str, tuple[float, ...]]:
    """The axes that a method is searched along. UVU's prior_scale is none of the paper's and stays what it is."""
    fields = preset_hyperparameters(preset, method)
    return {
        name: values
        for name, values in _TABLES.get(preset, _REDUCED).items()
        if name in fields and (name != "prior_scale" or method.startswith("bdqnp"))
    }


def start(method: str, preset: str, size: int | None = None) -> dict[str, float]:
    """Where the search begins: the preset's values on the axes, without what the search itself found."""
    usual = preset_hyperparameters(preset, method, size, tuned=False)
    return {name: usual[name] for name in axes(method, preset)}


def settings(method: str, preset: str, size: int | None = None) -> list[dict[str, float]]:
    """Values on the axes: the grid for `paper`, else one axis at a time, the others as at the start."""
    along = axes(method, preset)
    if preset == "paper":
        return [dict(zip(along, values, strict=True)) for values in itertools.product(*along.values())]
    middle = start(method, preset, size)
    outward = ((name, v) for name, values in along.items() for v in itertools.chain(*_sides(values, middle[name])))
    return [middle, *({**middle, name: v} for name, v in outward)]


def _sides(values: Sequence[float], middle: float) -> tuple[list[float], list[float]]:
    """The values below and above the middle, nearest first."""
    return sorted((v for v in values if v < middle), reverse=True), sorted(v for v in values if v > middle)


def scope(preset: str) -> Scope:
    if preset == "smoke":
        return Scope(preset=preset, sizes=(5,), methods=("dqn", "uvu"), seeds=2)
    return Scope(preset=preset, sizes=(10,), methods=_METHODS, seeds=2)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    """The first seed of the settings to try next; when a method has no more, the other seeds of those that can win."""
    scores = {row["trial_id"]: score(row) for row in rows}
    first, later = [], []
    for size, method in itertools.product(scope.sizes, scope.methods):

        def trial(setting: Mapping[str, float], method: str = method, size: int = size) -> Trial:
            config = trial_config(method, size, datasets[size], preset=scope.preset, hyperparameters=setting)
            return Trial(NAME, config, 0)

        if scope.preset == "paper":
            beginning = [trial(setting) for setting in settings(method, scope.preset, size)]
        else:
            middle = start(method, scope.preset, size)
            beginning = _one_axis_after_the_other(trial, axes(method, scope.preset), middle, scores)
        first += beginning
        if all(one.id in scores for one in beginning):
            bar = HOPELESS * max(scores[one.id] for one in beginning)
            hopeful = [one.config for one in beginning if scores[one.id] >= bar]
            later += [Trial(NAME, config, seed) for seed in range(1, scope.seeds) for config in hopeful]
    return first + later


def _one_axis_after_the_other(
    trial: Callable[[Mapping[str, float]], Trial],
    along: Mapping[str, Sequence[float]],
    middle: Mapping[str, float],
    scores: Mapping[str, float],
) -> list[Trial]:
    """As far as to go for now. An axis waits for all scores of the one before it, whose best value is its middle."""

    def known(one: Trial) -> float:
        return scores.get(one.id, -math.inf)

    found = [trial(middle)]
    for name, values in along.items():
        if any(one.id not in scores for one in found):
            break
        here = {middle[name]: trial(middle)}
        bar = LOST * known(here[middle[name]])
        for side in _sides(values, middle[name]):
            for value in side:
                here[value] = trial({**middle, name: value})
                if known(here[value]) < bar:
                    break  # no score yet, or nothing was learned there
        found += [one for value, one in here.items() if value != middle[name]]
        middle = {**middle, name: max(here.items(), key=lambda item: known(item[1]))[0]}
    return found


def score(row: Row) -> float:
    """What the search maximises: the best evaluation. Training that diverged before the first one scores least."""
    best = row["result"].get("best") or {}
    value = best.get("return")
    return -math.inf if value is None else float(value)


def section(rows: Sequence[Row]) -> Section | None:
    own, notes = analysis.of_experiment(rows, NAME)
    if not own:
        return None
    usable = [row for row in own if math.isfinite(score(row))]
    methods = analysis.ordered_methods(row["config"]["method"] for row in own)
    present = {_searched(row) for row in own}
    searched = [(size, m) for size in sorted({size for size, _ in present}) for m in methods if (size, m) in present]
    preset = own[0]["config"]["preset"]
    how = (
        "The whole grid of the paper."
        if preset == "paper"
        else "A reduced search, one axis after the other: outward from its start along the first, from the best of "
        f"that along the next, on either side up to the first value with less than {LOST:.0%} of the return in the "
        "middle."
    )
    introduction = (
        f"{how} After the first seed, settings below {HOPELESS:.0%} of the method's best score are not tried again; "
        f"{analysis.seeds_of(own)} so far. A method's best setting here is the best of those tried, no more."
    )
    charts = [chart for name in AXES if (chart := _axis_chart(usable, searched, name)) is not None]
    return Section(
        NAME,
        'Search for hyperparameters (Table "hpsearchspace")',
        [introduction, *notes, _winners(own, usable, searched), *charts, _everything(own, searched)],
        summary="",
        rows=[row["trial_id"] for row in own],
    )


def _searched(row: Row) -> Searched:
    return row["config"]["size"], row["config"]["method"]


def _groups(rows: Sequence[Row], searched: Searched) -> dict[str, list[Row]]:
    """Rows of a size and method by setting."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if _searched(row) == searched:
            key = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in _setting(row).items())
            groups.setdefault(key, []).append(row)
    return groups


def _setting(row: Row) -> dict[str, float]:
    """The values on the search's axes."""
    config = row["config"]
    return {name: config["hyperparameters"][name] for name in axes(config["method"], config["preset"])}


def _is_start(row: Row) -> bool:
    config = row["config"]
    return _setting(row) == start(config["method"], config["preset"], config["size"])


def _best(rows: Sequence[Row], searched: Searched) -> tuple[str, list[Row]] | None:
    groups = _groups(rows, searched)
    if not groups:
        return None
    most = max(len({r["seed"] for r in group}) for group in groups.values())
    whole = {key: group for key, group in groups.items() if len({r["seed"] for r in group}) == most}
    key = max(whole, key=lambda k: analysis.over_seeds(whole[k], "best", "return").estimate)
    return key, whole[key]


def _winners(rows: Sequence[Row], usable: Sequence[Row], every: Sequence[Searched]) -> Table:
    body: list[list[Cell | str]] = []
    for searched in every:
        groups = _groups(rows, searched)
        diverged = sum(not str(row["result"]["status"]).startswith("finished") for g in groups.values() for row in g)
        beginning = [row for group in groups.values() for row in group if _is_start(row)]
        found = _best(usable, searched)
        body.append(
            [
                *_named(searched),
                Cell(str(len(groups)), len(groups)),
                found[0] if found else "–",
                analysis.interval_cell(analysis.over_seeds(found[1] if found else [], "best", "return")),
                analysis.interval_cell(analysis.over_seeds(beginning, "best", "return")),
                Cell(str(diverged), diverged),
            ]
        )
    return Table(
        id="search-best",
        title="Best settings found",
        columns=["size", "method", "settings tried", "best setting", "return", "at the start", "diverged"],
        rows=body,
        caption="Return: best evaluation, mean over seeds. The best of several settings is flattered by luck, the more "
        "so the more settings were tried. At the start: the setting that the search goes out from.",
    )


def _named(searched: Searched) -> list[Cell | str]:
    size, method = searched
    return [Cell(str(size), size), paper.label(method)]


def _everything(rows: Sequence[Row], every: Sequence[Searched]) -> Table:
    """Every setting tried, in order of its values."""
    body: list[list[Cell | str]] = []
    for searched in every:
        groups = _groups(rows, searched)
        for key, group in sorted(groups.items(), key=lambda item: tuple(_setting(item[1][0]).values())):
            impossible = analysis.over_seeds(group, "final", "attempt_impossible").estimate
            returns = [analysis.over_seeds(group, part, "return") for part in ("best", "final", "last")]
            seeds = len({row["seed"] for row in group})
            body.append(
                [
                    *_named(searched),
                    key,
                    Cell(str(seeds), seeds),
                    *map(analysis.interval_cell, returns),
                    Cell(analysis.share(impossible), impossible),
                ]
            )
    return Table(
        id="search-all",
        title="Every setting tried",
        columns=["size", "method", "setting", "seeds", "best", "fresh boards", "last", "impossible"],
        rows=body,
        caption="Fresh boards: the best checkpoint again, on boards that chose nothing. Impossible: share of its "
        "attempts there at tasks whose door is not on the board.",
    )


def _axis_chart(rows: Sequence[Row], every: Sequence[Searched], axis: str) -> Chart | None:
    """Return along one axis, the values on the others being those with which most of this one was tried."""
    series = []
    for size, method in every:
        tried: dict[tuple[float, ...], dict[float, list[Row]]] = {}
        for row in rows:
            if _searched(row) == (size, method) and axis in (setting := _setting(row)):
                others = tuple(value for name, value in setting.items() if name != axis)
                tried.setdefault(others, {}).setdefault(setting[axis], []).append(row)
        along = max(tried.values(), key=len, default={})
        if len(along) > 1:
            values = sorted(along)
            points = [analysis.numbers(along[v], "best", "return") for v in values]
            line = analysis.seeds_series(
                paper.label(method), values, points, colour=analysis.colour_of(method), group=f"size {size}"
            )
            series.append(line)
    if not series:
        return None
    words = axis.replace("_", " ")
    return Chart(
        id=f"search-{axis.replace('_', '-')}",
        title=f"Return against {words}",
        x_label=words,
        y_label="mean return, best evaluation",
        series=series,
        log_x=True,
        y_from_zero=True,
        alt=f"Mean return of the best evaluation against {words} on a logarithmic axis, a line for each method.",
        caption="The other hyperparameters: those with which most of this axis was tried, in the end the best found "
        "along the axes before. Bands: lowest to highest seed.",
    )


def notes(scope: Scope) -> list[str]:
    count = sum(len(settings(method, scope.preset, size)) for size in scope.sizes for method in scope.methods)
    if scope.preset == "paper":
        how = f"{count} settings (the whole grid)"
    else:
        how = (
            f"At most {count} settings (a reduced search: outward from its start along one axis, from the best of that "
            f"along the next, up to the first value with less than {LOST:.0%} of the return in the middle)"
        )
    return [
        f"{how}; other seeds than the first only for those within {HOPELESS:.0%} of a method's best. More trials may "
        "be needed than are listed now."
    ]


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section, notes=notes)
