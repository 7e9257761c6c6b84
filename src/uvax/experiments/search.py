"""Table "hpsearchspace": the search for hyperparameters, on size 10 as in the paper.

The paper's grid is the product of its axes. The reduced search goes outward from the preset's setting along one axis at
a time, with two seeds. Two rules spare hopeless trials. On the way outward a value with less than `LOST` of the return
at the preset's is the last of its side. And the other seeds go only through settings whose first score is at least
`HOPELESS` of the method's best. Neither can change the best setting's own numbers, which always come from all seeds;
they can miss a setting whose first seed was unlucky by more than the margin, or that lies beyond a hopeless one.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from uvax.estimators import METHODS as KNOWN
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Chart, Section, Table
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.presets import preset_hyperparameters
from uvax.experiments.rows import Trial
from uvax.experiments.trial import trial_config

NAME = "search"
HOPELESS = 0.8
LOST = 0.1

# The axes of the paper's table, and one of ours: the paper mentions no scale of intrinsic rewards, and it matters.
AXES: dict[str, tuple[float, ...]] = {
    "learning_rate": paper.RATES,
    "prior_scale": paper.PRIOR_SCALES,
    "rnd_learning_rate": paper.RATES,
    "uvu_learning_rate": paper.RATES,
    "intrinsic_scale": (1.0, 1e2, 1e4, 1e5, 1e6),
}
# The reduced search trains shorter and so with higher rates than the paper: the preset's is not to be the last one.
_REDUCED = AXES | {"learning_rate": (*paper.RATES, 5e-3, 1e-2)}
_SMOKE = {name: values[-3:] for name, values in AXES.items()}
_TABLES = {"paper": AXES, "smoke": _SMOKE}
_METHODS = ("dqn", "bdqnp3", "dqn-rnd", "dqn-rnd-p", "uvu")


def axes(method: str, preset: str) -> dict[str, tuple[float, ...]]:
    """The axes that a method is searched along. UVU's prior_scale is none of the paper's and stays what it is."""
    fields = {f.name for f in dataclasses.fields(KNOWN[method][0])}
    return {
        name: values
        for name, values in _TABLES.get(preset, _REDUCED).items()
        if name in fields and (name != "prior_scale" or method.startswith("bdqnp"))
    }


def settings(method: str, preset: str, size: int | None = None) -> list[dict[str, float]]:
    """Changes to the preset, each a setting that may be tried: the grid for `paper`, one axis at a time otherwise."""
    if preset == "paper":
        along = axes(method, preset)
        return [dict(zip(along, values, strict=True)) for values in itertools.product(*along.values())]
    return [{}, *itertools.chain.from_iterable(_ways(method, preset, size))]


def _ways(method: str, preset: str, size: int | None) -> list[list[dict[str, float]]]:
    """The ways outward from the preset's setting, down and up each axis, nearest value first."""
    usual = preset_hyperparameters(preset, method, size)
    ways = []
    for name, values in axes(method, preset).items():
        ways.append([{name: value} for value in sorted(values, reverse=True) if value < usual[name]])
        ways.append([{name: value} for value in sorted(values) if value > usual[name]])
    return ways


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
            middle = trial({})
            beginning = [middle]
            for way in _ways(method, scope.preset, size):
                beginning += _outward(map(trial, way), scores, LOST * scores.get(middle.id, math.inf))
        first += beginning
        if all(one.id in scores for one in beginning):
            bar = HOPELESS * max(scores[one.id] for one in beginning)
            hopeful = [one.config for one in beginning if scores[one.id] >= bar]
            later += [Trial(NAME, config, seed) for seed in range(1, scope.seeds) for config in hopeful]
    return first + later


def _outward(way: Iterable[Trial], scores: Mapping[str, float], bar: float) -> list[Trial]:
    """As far as to go for now: up to the first trial that has no score yet or one below the bar."""
    found = []
    for trial in way:
        found.append(trial)
        if scores.get(trial.id, -math.inf) < bar:
            break
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
    best_rows = {m: _best(usable, m) for m in methods}
    table = _winners(own, methods, best_rows)
    preset = own[0]["config"]["preset"]
    how = (
        "The whole grid of the paper."
        if preset == "paper"
        else "A reduced search: from the preset's setting outward along one axis at a time, the others held fixed, on "
        f"either side up to the first value with less than {LOST:.0%} of the return at the preset's."
    )
    introduction = (
        f"{how} After the first seed, settings below {HOPELESS:.0%} of the method's best score are not tried again; "
        f"{analysis.seeds_of(own)} so far. A method's best setting here is the best of those tried, no more."
    )
    charts = [chart for name in AXES if (chart := _axis_chart(usable, methods, name)) is not None]
    return Section(
        NAME,
        'Search for hyperparameters (Table "hpsearchspace")',
        [introduction, *notes, table, *charts],
        summary="",
        rows=[row["trial_id"] for row in own],
    )


def _groups(rows: Sequence[Row], method: str) -> dict[str, list[Row]]:
    """Rows of a method by setting."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["config"]["method"] == method:
            key = ", ".join(f"{k} {v:g}" for k, v in _setting(row).items()) or "the preset's"
            groups.setdefault(key, []).append(row)
    return groups


def _setting(row: Row) -> dict[str, float]:
    """The values on the search's axes that differ from the preset's."""
    return {name: value for name, value in analysis.changed(row).items() if name in AXES}


def _best(rows: Sequence[Row], method: str) -> tuple[str, list[Row]] | None:
    groups = _groups(rows, method)
    if not groups:
        return None
    most = max(len({r["seed"] for r in group}) for group in groups.values())
    whole = {key: group for key, group in groups.items() if len({r["seed"] for r in group}) == most}
    key = max(whole, key=lambda k: analysis.over_seeds(whole[k], "best", "return").estimate)
    return key, whole[key]


def _winners(rows: Sequence[Row], methods: Sequence[str], best: Mapping[str, tuple[str, list[Row]] | None]) -> Table:
    body: list[list[Cell | str]] = []
    for method in methods:
        groups = _groups(rows, method)
        diverged = sum(not str(row["result"]["status"]).startswith("finished") for g in groups.values() for row in g)
        usual = analysis.over_seeds(groups.get("the preset's", []), "best", "return")
        found = best[method]
        body.append(
            [
                paper.label(method),
                Cell(str(len(groups)), len(groups)),
                found[0] if found else "–",
                analysis.interval_cell(analysis.over_seeds(found[1] if found else [], "best", "return")),
                analysis.interval_cell(usual),
                Cell(str(diverged), diverged),
            ]
        )
    return Table(
        id="search-best",
        title="Best settings found",
        columns=["method", "settings tried", "best setting", "return", "preset's return", "diverged"],
        rows=body,
        caption="Return: best evaluation, mean over seeds. The best of several settings is flattered by luck, the more "
        "so the more settings were tried.",
    )


def _axis_chart(rows: Sequence[Row], methods: Sequence[str], axis: str) -> Chart | None:
    """Return along one axis, the other hyperparameters being the preset's."""
    series = []
    for method in methods:
        along: dict[float, list[Row]] = {}
        for row in rows:
            config = row["config"]
            if config["method"] == method and axis in config["hyperparameters"] and not set(_setting(row)) - {axis}:
                along.setdefault(config["hyperparameters"][axis], []).append(row)
        if len(along) > 1 and axis in axes(method, rows[0]["config"]["preset"]):
            values = sorted(along)
            points = [analysis.numbers(along[v], "best", "return") for v in values]
            series.append(analysis.seeds_series(paper.label(method), values, points, colour=analysis.colour_of(method)))
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
        caption="All other hyperparameters are the preset's. Bands: lowest to highest seed.",
    )


def notes(scope: Scope) -> list[str]:
    count = sum(len(settings(method, scope.preset, scope.sizes[0])) for method in scope.methods)
    if scope.preset == "paper":
        how = f"{count} settings (the whole grid)"
    else:
        how = (
            f"At most {count} settings (a reduced search: outward from the preset's along one axis at a time, up to "
            f"the first value with less than {LOST:.0%} of its return)"
        )
    return [
        f"{how}; other seeds than the first only for those within {HOPELESS:.0%} of a method's best. More trials may "
        "be needed than are listed now."
    ]


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section, notes=notes)
