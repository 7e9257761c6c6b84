"""The charts of task-rejection trials: attempts by wall, learning curves, rejection curves."""

from collections.abc import Mapping, Sequence

from uvax.evaluation.protocol import PLACES
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Chart, Series

Cells = Mapping[tuple[int, str], list[Row]]
_TASKS = 6
# South and west are where the data are good.
_PLACE_COLOURS = {"north": "#f0a35e", "south": "#2e9e6b", "west": "#7cc9a3", "east": "#d9730d", "impossible": "#b3262e"}


def attempts(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Chart:
    """Where the attempted doors are."""
    series = []
    for size in sizes:
        present = [m for m in methods if (size, m) in cells]
        for place in PLACES:
            shares = [analysis.over_seeds(cells[size, m], "final", f"attempt_{place}").estimate for m in present]
            series.append(
                Series(
                    place, [paper.label(m) for m in present], shares, colour=_PLACE_COLOURS[place], group=f"size {size}"
                )
            )
    return Chart(
        id=name,
        title="Attempts by wall",
        x_label="",
        y_label="share of attempts",
        series=series,
        kind="stacked",
        alt="Stacked bars for each method: the share of attempts at doors on the north, south, west and east wall "
        "and at impossible tasks. A good method attempts south and west only.",
        caption="Best checkpoint, fresh boards, mean over seeds.",
    )


def learning(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Chart:
    """Return against gradient steps."""
    return _curves(name, cells, sizes, methods, "return", "Learning curves", "mean return")


def learning_impossible(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Chart:
    """Attempts at impossible tasks against gradient steps."""
    title, axis = "Attempts at impossible tasks during training", "share of attempts at impossible tasks"
    return _curves(name, cells, sizes, methods, "attempt_impossible", title, axis)


def _curves(
    name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str], column: str, title: str, axis: str
) -> Chart:
    series = []
    for size in sizes:
        for method in methods:
            line = analysis.mean_curve(
                cells.get((size, method), []),
                column,
                paper.label(method),
                colour=analysis.colour_of(method),
                group=f"size {size}",
            )
            if line is not None:
                series.append(line)
    return Chart(
        id=name,
        title=title,
        x_label="gradient steps",
        y_label=axis,
        series=series,
        y_from_zero=True,
        alt=f"{title}: {axis} against gradient steps, one line for each method, bands from the lowest seed to the "
        "highest.",
        caption="Evaluations during training, the same boards for every method of a seed. Bands: lowest to highest "
        "seed.",
    )


def rejection(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Chart:
    """Return against the number of tasks rejected."""
    series = []
    for size in sizes:
        shown = [m for m in methods if (size, m) in cells]
        for method in shown:
            points = [analysis.numbers(cells[size, method], "final", f"curve_method_{k}") for k in range(_TASKS)]
            series.append(
                analysis.seeds_series(
                    paper.label(method),
                    range(_TASKS),
                    points,
                    colour=analysis.colour_of(method),
                    group=f"size {size}",
                )
            )
        reference = "uvu" if "uvu" in shown else shown[-1]
        for kind, text in (("oracle", "oracle ranking"), ("random", "random rejection")):
            points = [analysis.numbers(cells[size, reference], "final", f"curve_{kind}_{k}") for k in range(_TASKS)]
            line = analysis.seeds_series(
                f"{paper.label(reference)}, {text}",
                range(_TASKS),
                points,
                colour=7 if kind == "oracle" else 8,
                dashed=True,
                group=f"size {size}",
            )
            series.append(line)
    return Chart(
        id=name,
        title="Rejection curves",
        x_label="tasks rejected, of six",
        y_label="mean return",
        series=series,
        y_from_zero=True,
        alt="Mean return against the number of rejected tasks from zero to five, a line for each method, dashed lines "
        "for an oracle ranking and for random rejection. The protocol rejects four.",
        caption="Best checkpoint, fresh boards; bands: lowest to highest seed. The oracle ranks by the returns it is "
        "scored by: no method reaches it.",
    )
