"""The grid explorer's data: boards by size, and every method's values and uncertainties on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from uvax.experiments import analysis, paper

Row = Mapping[str, Any]
_FIELDS = ("value", "uncertainty", "action")


def explorer_data(rows: Sequence[Row]) -> dict[str, Any] | None:
    """{size: {"boards": [...], "methods": {method: {"label", "value", "uncertainty", "action"}}}}, or None.

    From the experiment with the most of them, the preset's own hyperparameters, one run per method and size.
    """
    candidates = [row for row in rows if row["result"].get("explorer") and not analysis.changed(row)]
    counts: dict[str, int] = {}
    for row in candidates:
        counts[row["experiment"]] = counts.get(row["experiment"], 0) + 1
    if not counts:
        return None
    own, _ = analysis.of_experiment(candidates, max(counts, key=lambda name: (counts[name], name == "table1")))
    cells, _ = analysis.cells(own, "size", "method")
    data: dict[str, Any] = {}
    for size in sorted({size for size, _ in cells}):
        methods = analysis.ordered_methods(m for s, m in cells if s == size)
        explored = {m: cells[size, m][0]["result"]["explorer"] for m in methods}
        boards = explored[methods[0]]["boards"]
        data[str(size)] = {
            "boards": boards,
            "methods": {
                m: {"label": paper.label(m), **{name: explored[m][name] for name in _FIELDS}}
                for m in methods
                if explored[m]["boards"] == boards
            },
        }
    return data
