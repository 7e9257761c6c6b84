"""Figure "gotodoor" (a): return against network width on size 10, with standard deviations over seeds."""

from collections.abc import Mapping, Sequence

import numpy as np

from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Chart, Section, Series, Table
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rows import Trial
from uvax.experiments.trial import trial_config

NAME = "width"
WIDTHS = {"smoke": (8, 16), "cpu": (32, 64, 128, 256), "paper": (32, 64, 128, 256, 512, 1024)}


def scope(preset: str) -> Scope:
    if preset == "smoke":
        return Scope(preset=preset, sizes=(5,), methods=("dqn", "bdqnp3", "uvu"), seeds=1)
    methods = ("dqn", "bdqnp3", "uvu") if preset == "cpu" else ("dqn", "bdqnp3", "bdqnp15", "uvu")
    return Scope(preset=preset, sizes=(10,), methods=methods, seeds=5)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    """Only the width changes; heads, batch and learning rates are the preset's."""
    return [
        Trial(
            NAME,
            trial_config(method, size, datasets[size], preset=scope.preset, hyperparameters={"width": width}),
            seed,
        )
        for seed in range(scope.seeds)
        for size in scope.sizes
        for width in WIDTHS[scope.preset]
        for method in scope.methods
    ]


def section(rows: Sequence[Row]) -> Section | None:
    own, notes = analysis.of_experiment(rows, NAME)
    if not own:
        return None
    cells, more = analysis.cells(own, "size", "method", "width")
    sizes = sorted({size for size, _, _ in cells})
    methods = analysis.ordered_methods(method for _, method, _ in cells)
    widths = sorted({width for _, _, width in cells})
    series: list[Series] = []
    body: list[list[Cell | str]] = []
    for size in sizes:
        for method in methods:
            present = [w for w in widths if (size, method, w) in cells]
            scores = [np.asarray(analysis.numbers(cells[size, method, w], "best", "return")) for w in present]
            known = [(w, s) for w, s in zip(present, scores, strict=True) if s.size]
            mean = [float(s.mean()) for _, s in known]
            spread = [float(s.std(ddof=1)) if s.size > 1 else 0.0 for _, s in known]
            series.append(
                Series(
                    paper.label(method),
                    [w for w, _ in known],
                    mean,
                    [m - d for m, d in zip(mean, spread, strict=True)],
                    [m + d for m, d in zip(mean, spread, strict=True)],
                    colour=analysis.colour_of(method),
                    group=f"size {size}",
                )
            )
            for (width, s), m, d in zip(known, mean, spread, strict=True):
                rows_here = cells[size, method, width]
                impossible = analysis.over_seeds(rows_here, "final", "attempt_impossible").estimate
                fresh = analysis.over_seeds(rows_here, "final", "return")
                body.append(
                    [
                        str(size),
                        paper.label(method),
                        Cell(str(width), width),
                        Cell(str(s.size), int(s.size)),
                        Cell(f"{m:.2f}", m),
                        Cell(f"{d:.2f}", d),
                        analysis.interval_cell(fresh),
                        Cell(analysis.share(impossible), impossible),
                    ]
                )
    chart = Chart(
        id="width-return",
        title="Return against network width",
        x_label="network width",
        y_label="mean return, best evaluation",
        series=series,
        log_x=True,
        y_from_zero=True,
        alt="Mean return of the best evaluation against network width on a logarithmic axis, one line for each "
        "method; shaded: one standard deviation over seeds.",
        caption=f"Shaded: standard deviation over {analysis.seeds_of(own)}, as in the paper's figure. Everything but "
        f"the width is that of the preset {own[0]['config']['preset']}.",
    )
    table = Table(
        id="width-table",
        title="The numbers of the figure",
        columns=["size", "method", "width", "seeds", "return", "st. dev.", "fresh boards", "impossible"],
        rows=body,
        caption="Return: best evaluation, mean over seeds. Fresh boards: the same checkpoints on boards that chose "
        "nothing, with 90% intervals.",
    )
    used = [row["trial_id"] for chosen in cells.values() for row in chosen]
    return Section(
        NAME, 'Network width (Figure "gotodoor" a)', [*notes, *more, chart, table], summary=_summary(series), rows=used
    )


def _summary(series: Sequence[Series]) -> str:
    parts = []
    for line in series:
        if len(line.x) > 1 and line.y[0] is not None and line.y[-1] is not None:
            parts.append(f"{line.name} from {line.y[0]:.2f} at width {line.x[0]} to {line.y[-1]:.2f} at {line.x[-1]}")
    return "; ".join(parts)


def notes(scope: Scope) -> list[str]:
    widths = ", ".join(map(str, WIDTHS[scope.preset]))
    return [
        f"Widths {widths}; the paper's figure goes to 1024 and has BDQNP(15) as well."
        if scope.preset != "paper"
        else f"Widths {widths}."
    ]


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section, notes=notes)
