"""Figure "gotodoor" (b): time of ensembles of several sizes and of UVU, at the paper's scale.

Measures steps, not runs: a run's time is compilation, 100,000 steps and 50 evaluations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from uvax.estimators import BDQNP, DQN, UVU
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Chart, Item, Section, Series, Table
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rows import Trial
from uvax.experiments.timing import timing_config

NAME = "runtime"
_STEPS, _EVALUATIONS = 100_000, 50
_SMALL: dict[str, Any] = {"width": 32, "depth": 1, "batch_size": 32}


def estimators(preset: str) -> list[tuple[str, Any]]:
    """(name, estimator). An ensemble of one is a DQN: a single member has no variance, and needs no prior."""
    if preset == "smoke":
        return [("dqn", DQN(**_SMALL)), ("bdqnp", BDQNP(members=3, **_SMALL)), ("uvu", UVU(heads=4, **_SMALL))]
    ensembles = [BDQNP(members=k) for k in paper.ENSEMBLES if k > 1]
    return [("dqn", DQN()), *(("bdqnp", e) for e in ensembles), ("uvu", UVU())]


def scope(preset: str) -> Scope:
    return Scope(preset=preset, sizes=(10,), methods=("dqn", "bdqnp", "uvu"), seeds=1)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    seconds = 0.2 if scope.preset == "smoke" else 30.0
    # cpu and paper are the same measurement: this experiment is at the paper's scale on any machine.
    preset = "smoke" if scope.preset == "smoke" else "paper"
    return [
        Trial(NAME, timing_config(estimator, method, preset=preset, cached=cached, seconds=seconds), seed)
        for seed in range(scope.seeds)
        for method, estimator in estimators(scope.preset)
        if method in scope.methods
        for cached in ((False, True) if hasattr(estimator, "cache") else (False,))
    ]


def section(rows: Sequence[Row]) -> Section | None:
    own, notes = analysis.of_experiment(rows, NAME)
    if not own:
        return None
    cells, more = analysis.cells(own, "method", "members", "cached")
    lines = sorted(cells, key=lambda key: (key[0] == "uvu", key[1] or 1, key[2]))
    table = _table([(key, cells[key][0]["result"]) for key in lines])
    items: list[Item] = [_introduction(own), *notes, *more, _chart(cells), table]
    used = [row["trial_id"] for chosen in cells.values() for row in chosen]
    return Section(NAME, 'Run time (Figure "gotodoor" b)', items, summary=_summary(cells), rows=used)


def run_seconds(result: Mapping[str, Any]) -> float:
    """A whole run of the paper: compilation, the cache, steps, evaluations."""
    return result["compile"] + result["fill_cache"] + _STEPS * result["per_step"] + _EVALUATIONS * result["evaluation"]


def _chart(cells: Mapping[tuple[Any, ...], list[Row]]) -> Chart:
    series = []
    for cached, text in ((False, "plain"), (True, "frozen parts computed once")):
        ensembles = {
            members or 1: rows[0]["result"]
            for (method, members, c), rows in cells.items()
            if method != "uvu" and (c == cached or (method == "dqn" and not c))
        }
        sizes = sorted(ensembles)
        if len(sizes) > 1:
            series.append(
                Series(
                    f"ensembles, {text}",
                    sizes,
                    [1e3 * ensembles[k]["per_step"] for k in sizes],
                    [1e3 * ensembles[k]["fastest"] for k in sizes],
                    [1e3 * ensembles[k]["slowest"] for k in sizes],
                    colour=2 if cached else 1,
                    dashed=cached,
                )
            )
        uvu = cells.get(("uvu", None, cached))
        if uvu and sizes:
            result = uvu[0]["result"]
            ends = [sizes[0], sizes[-1]]
            series.append(
                Series(
                    f"UVU, {text}",
                    ends,
                    [1e3 * result["per_step"]] * 2,
                    colour=6,
                    dashed=cached,
                    markers=False,
                )
            )
    return Chart(
        id="runtime-step",
        title="Time of a gradient step",
        x_label="ensemble size",
        y_label="milliseconds per step",
        series=series,
        log_x=True,
        log_y=True,
        alt="Milliseconds per gradient step against ensemble size, both axes logarithmic; horizontal lines for UVU.",
        caption="Median over chunks of two seconds or ten steps, bands: quartiles. Horizontal: UVU, which has no "
        "members to count. Dashed: outputs of the frozen priors and of g computed once per dataset.",
    )


def _table(lines: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Table:
    body: list[list[Cell | str]] = []
    for (method, members, cached), result in lines:
        name = f"BDQNP({members})" if method == "bdqnp" else paper.label(method)
        hours = run_seconds(result) / 3600
        body.append(
            [
                name,
                "yes" if cached else "no",
                Cell(_milliseconds(result["per_step"]), result["per_step"]),
                Cell(f"{hours:.2f}", hours),
                Cell(f"{result['compile']:.1f}", result["compile"]),
                Cell(f"{result['fill_cache']:.1f}" if result["cached"] else "–", result["fill_cache"]),
                Cell(f"{result['memory'] / 2**30:.2f}", result["memory"]),
                Cell(f"{(result['parameters'] + result['frozen_parameters']) / 1e6:.2f}", result["parameters"]),
                Cell(f"{result['steps_measured']:,}", result["steps_measured"]),
            ]
        )
    return Table(
        id="runtime-table",
        title="Time and memory",
        columns=[
            "method",
            "cached",
            "ms per step",
            "hours per run",
            "compile, s",
            "fill cache, s",
            "memory, GiB",
            "parameters, M",
            "steps measured",
        ],
        rows=body,
        caption=f"Hours per run: {_STEPS:,} steps, {_EVALUATIONS} evaluations of 1,000 episodes, compilation and cache "
        "included. Memory: peak of the whole process. Cached: what training never changes is computed once (fit does "
        "so when it fits its memory limit); the time to fill it is for 50,000 transitions and grows with them.",
    )


def _summary(cells: Mapping[tuple[Any, ...], list[Row]]) -> str:
    """One line for the plain steps, one for those with all that never changes computed before."""
    lines = []
    for cached, words in ((False, "plain"), (True, "frozen parts computed once")):
        uvu = cells.get(("uvu", None, cached))
        parts = []
        for members in (3, 15, 35):
            rows = cells.get(("bdqnp", members, cached))
            if uvu and rows:
                ratio = rows[0]["result"]["per_step"] / uvu[0]["result"]["per_step"]
                parts.append(f"BDQNP({members}) {ratio:.1f} times")
        if parts:
            lines.append(f"Time of a gradient step against UVU's, {words}: {', '.join(parts)}")
    return "; ".join(lines)


def _introduction(rows: Sequence[Row]) -> str:
    hyper, result = rows[0]["config"]["hyperparameters"], rows[0]["result"]
    return (
        f"Width {hyper['width']}, batch {hyper['batch_size']}, on {result['threads']} threads of "
        f"{rows[0]['provenance']['cpu']} ({result['device']}). An ensemble of one is a DQN."
    )


def notes(scope: Scope) -> list[str]:
    return ["One measurement at a time, with the whole machine; other work on it would be measured too."]


def _milliseconds(seconds: float) -> str:
    """Three figures, and never an exponent."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


EXPERIMENT = Experiment(
    name=NAME, scope=scope, trials=trials, section=section, needs_data=False, exclusive=True, notes=notes
)
