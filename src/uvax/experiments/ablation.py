"""What the paper does not ablate: heads against members, bootstrapping, normalisation, the number of rejections."""

from collections.abc import Mapping, Sequence
from typing import Any

from uvax.estimators import METHODS
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Chart, Section, Series, Table
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rows import Trial
from uvax.experiments.trial import trial_config

NAME = "ablation"

# Corollary 2: the error of M heads and the variance of M + 1 members have the same law.
HEADS = {"smoke": (1, 2), "cpu": (1, 2, 14, 34, 128), "paper": (1, 2, 14, 34, 128)}
# 129 members take forty times as long as three; on the cpu preset the largest ensemble is the paper's.
LARGEST_ENSEMBLE = {"smoke": 3, "cpu": 35, "paper": 129}
_TASKS = 6


def variants(preset: str) -> list[tuple[str, dict[str, Any]]]:
    """(method, changes to the preset) of everything that is compared; the preset itself is among them."""
    found: list[tuple[str, dict[str, Any]]] = [("dqn", {}), ("uvu", {})]
    for heads in HEADS[preset]:
        found.append(("uvu", {"heads": heads}))
        if heads + 1 <= LARGEST_ENSEMBLE[preset]:
            found.append(_ensemble(heads + 1))
    found += [(method, {"shared_bootstrap": True}) for method in ("uvu", "bdqnp3")]
    found += [(method, {"normalise": False}) for method in ("uvu", "bdqnp3", "dqn")]
    return found


def _ensemble(members: int) -> tuple[str, dict[str, Any]]:
    """By the name it has in the paper's table where it has one, so that it is the same trial."""
    named = f"bdqnp{members}"
    return (named, {}) if named in METHODS else ("bdqnp", {"members": members})


def scope(preset: str) -> Scope:
    sizes = (5,) if preset == "smoke" else (5, 8)
    methods = tuple(dict.fromkeys(method for method, _ in variants(preset)))
    return Scope(preset=preset, sizes=sizes, methods=methods, seeds=1 if preset == "smoke" else 3)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    return [
        Trial(NAME, trial_config(method, size, datasets[size], preset=scope.preset, hyperparameters=changed), seed)
        for seed in range(scope.seeds)
        for size in scope.sizes
        for method, changed in variants(scope.preset)
        if method in scope.methods
    ]


def section(rows: Sequence[Row]) -> Section | None:
    own, notes = analysis.of_experiment(rows, NAME)
    if not own:
        return None
    sizes = sorted({row["config"]["size"] for row in own})
    items: list[Any] = [*notes, _heads(own, sizes), _switches(own, sizes), _rejections(own, sizes)]
    introduction = (
        "Not in the paper. Everything but what is named is that of the preset "
        f"{own[0]['config']['preset']}, {analysis.seeds_of(own)}."
    )
    return Section(NAME, "Ablations", [introduction, *items], rows=[row["trial_id"] for row in own])


def _heads(rows: Sequence[Row], sizes: Sequence[int]) -> Chart:
    series = []
    for size in sizes:
        here = [row for row in rows if row["config"]["size"] == size and _plain_but(row, "heads", "members")]
        for method, field, freedom in (("uvu", "heads", 0), ("bdqnp", "members", 1)):
            groups: dict[int, list[Row]] = {}
            for row in here:
                hyper = row["config"]["hyperparameters"]
                if row["config"]["method"].startswith(method) and field in hyper:
                    groups.setdefault(hyper[field] - freedom, []).append(row)
            points = sorted(groups)
            line = analysis.seeds_series(
                "UVU, M heads" if method == "uvu" else "BDQNP, M + 1 members",
                points,
                [analysis.numbers(groups[p], "best", "return") for p in points],
                colour=analysis.colour_of("uvu" if method == "uvu" else "bdqnp15"),
                group=f"size {size}",
            )
            series.append(line)
    return Chart(
        id="ablation-heads",
        title="Heads of UVU beside members of an ensemble",
        x_label="degrees of freedom M",
        y_label="mean return, best evaluation",
        series=series,
        log_x=True,
        y_from_zero=True,
        alt="Mean return against the degrees of freedom of the uncertainty on a logarithmic axis: UVU with M heads and "
        "ensembles with M + 1 members.",
        caption="By Corollary 2 the mean squared error of M heads and the variance of M + 1 members follow the same "
        "law. Bands: lowest to highest seed.",
    )


def _switches(rows: Sequence[Row], sizes: Sequence[int]) -> Table:
    names = {
        "as in the paper": {},
        "shared bootstrapping": {"shared_bootstrap": True},
        "no l2 normalisation": {"normalise": False},
    }
    body: list[list[Cell | str]] = []
    for size in sizes:
        for method in ("dqn", "bdqnp3", "uvu"):
            for name, wanted in names.items():
                chosen = [
                    row
                    for row in rows
                    if row["config"]["size"] == size
                    and row["config"]["method"] == method
                    and analysis.changed(row) == wanted
                ]
                if not chosen:
                    continue
                impossible = analysis.over_seeds(chosen, "final", "attempt_impossible").estimate
                body.append(
                    [
                        str(size),
                        paper.label(method),
                        name,
                        Cell(str(len(chosen)), len(chosen)),
                        *(
                            analysis.interval_cell(analysis.over_seeds(chosen, part, "return"))
                            for part in ("best", "final", "last")
                        ),
                        Cell(analysis.share(impossible), impossible),
                    ]
                )
    return Table(
        id="ablation-switches",
        title="Bootstrapping and normalisation",
        columns=["size", "method", "variant", "seeds", "best", "fresh boards", "last", "impossible"],
        rows=body,
        caption="Shared bootstrapping: all heads or members bootstrap at one action, the argmax of Q or of the mean, "
        "instead of each at its own.",
    )


def _rejections(rows: Sequence[Row], sizes: Sequence[int]) -> Chart:
    series: list[Series] = []
    for size in sizes:
        for method in ("dqn", "bdqnp3", "bdqnp15", "bdqnp35", "uvu"):
            chosen = [
                row
                for row in rows
                if row["config"]["size"] == size and row["config"]["method"] == method and not analysis.changed(row)
            ]
            if chosen:
                points = [analysis.numbers(chosen, "final", f"curve_method_{k}") for k in range(1, _TASKS)]
                series.append(
                    analysis.seeds_series(
                        paper.label(method),
                        range(1, _TASKS),
                        points,
                        colour=analysis.colour_of(method),
                        group=f"size {size}",
                    )
                )
    return Chart(
        id="ablation-rejections",
        title="One to five rejections",
        x_label="tasks rejected, of six",
        y_label="mean return",
        series=series,
        y_from_zero=True,
        alt="Mean return against the number of rejected tasks from one to five, one line for each method.",
        caption="The same checkpoints on the same fresh boards; the paper rejects four. Bands: lowest to highest seed.",
    )


def _plain_but(row: Row, *names: str) -> bool:
    return not set(analysis.changed(row)) - set(names)


def notes(scope: Scope) -> list[str]:
    left_out = [m + 1 for m in HEADS[scope.preset] if m + 1 > LARGEST_ENSEMBLE[scope.preset]]
    said = "rejections 1 to 5 need no trials of their own"
    return [f"{said.capitalize()}." if not left_out else f"BDQNP({left_out[0]}) is left out for its time; {said}."]


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section, notes=notes)
