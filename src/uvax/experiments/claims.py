"""Does what the paper says about its table hold in ours? Comparisons of two methods, seed by seed."""

import math
from collections.abc import Mapping, Sequence

from uvax.evaluation.statistics import Interval, paired_difference
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Table

Cells = Mapping[tuple[int, str], list[Row]]


def difference(cells: Cells, size: int, a: str, b: str) -> Interval | None:
    """Best evaluation of `a` less that of `b`, paired by seed, since a seed's boards are the same for all methods.

    None where one of them was not run.
    """
    scores = []
    for method in (a, b):
        rows = cells.get((size, method), [])
        scores.append({r["seed"]: r["result"]["best"]["return"] for r in rows if r["result"].get("best")})
    common = sorted(scores[0].keys() & scores[1].keys())
    if not common:
        return None
    return paired_difference([scores[0][s] for s in common], [scores[1][s] for s in common])


def verdict(found: Interval, *, or_equal: bool) -> str:
    """ "holds", "fails" or "unclear": whether the interval of the difference lies above zero, below it, or around it.

    A claim of "at least" fails only below zero, and holds when nothing speaks against it.
    """
    if math.isnan(found.low):
        return "unclear"
    if found.low > 0:
        return "holds"
    if found.high < 0:
        return "fails"
    return "holds" if or_equal else "unclear"


def claims(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Table:
    """The paper's comparisons, one line each, with our differences."""
    signs = {"holds": "✓", "fails": "✗", "unclear": "?"}
    body: list[list[Cell | str]] = []
    for a, b, or_equal in paper.CLAIMS:
        if a not in methods or b not in methods:
            continue
        line: list[Cell | str] = [f"{paper.label(a)} {'at or above' if or_equal else 'above'} {paper.label(b)}"]
        for size in sizes:
            found = difference(cells, size, a, b)
            if found is None:
                line.append(Cell("–", None, "missing", "not run"))
                continue
            outcome = verdict(found, or_equal=or_equal)
            mark = "worse" if outcome == "fails" else "missing" if outcome == "unclear" else ""
            text = f"{signs[outcome]} {found.estimate:+.2f}"
            half = "" if math.isnan(found.low) else f" ± {f'{found.half_width:.2f}'.removeprefix('0')}"
            line.append(Cell(text + half, found.estimate, mark, f"{outcome}, {analysis.seeds_in_words(found.n)}"))
        body.append(line)
    return Table(
        id=name,
        title="Does the paper's ordering hold?",
        columns=["the paper finds", *(f"size {size}" for size in sizes)],
        rows=body,
        caption="Difference of the best evaluations, seed by seed, with 90% intervals. ✓: the interval agrees, ✗: it "
        "says the opposite, ?: it cannot tell. No correction for the number of comparisons.",
    )


def headline(cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> str:
    """What the paper is about, in sentences: UVU beside the best ensemble, and how many of the claims hold."""
    parts = []
    for size in sizes:
        present = [m for m in methods if m.startswith("bdqnp") and (size, m) in cells]
        if (size, "uvu") not in cells or not present:
            continue
        ours = analysis.over_seeds(cells[size, "uvu"], "best", "return")
        scores = {m: analysis.over_seeds(cells[size, m], "best", "return") for m in present}
        rival, other = max(scores.items(), key=lambda item: item[1].estimate)
        gap = difference(cells, size, "uvu", rival)
        clear = "" if gap is None or math.isnan(gap.low) else " (no clear difference)"
        if gap is not None and (gap.low > 0 or gap.high < 0):
            clear = " (UVU higher)" if gap.low > 0 else " (UVU lower)"
        parts.append(
            f"Size {size}: UVU {analysis.plus_minus(ours)}, best ensemble {paper.label(rival)} "
            f"{analysis.plus_minus(other)}{clear}"
        )
    outcomes = [
        verdict(found, or_equal=or_equal)
        for a, b, or_equal in paper.CLAIMS
        for size in sizes
        if (found := difference(cells, size, a, b)) is not None
    ]
    if outcomes:
        count = {name: outcomes.count(name) for name in ("holds", "unclear", "fails")}
        parts.append(
            f"The paper's comparisons, {len(outcomes)} in all: {count['holds']} as in the paper, {count['fails']} the "
            f"other way, {count['unclear']} undecided"
        )
    return "; ".join(parts)
