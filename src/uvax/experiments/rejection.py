"""What rows of task-rejection trials have to say: scores beside the paper's, attempts, curves, calibration."""

import math
from collections.abc import Mapping, Sequence

from uvax.evaluation.protocol import PLACES
from uvax.evaluation.statistics import Interval
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.claims import claims, headline
from uvax.experiments.content import Cell, Item, Section, Table
from uvax.experiments.rejection_charts import attempts, learning, learning_impossible, rejection

Cells = Mapping[tuple[int, str], list[Row]]


def rejection_section(rows: Sequence[Row], name: str, title: str) -> Section | None:
    """A section about the trials of an experiment with one per size, method and seed; None without rows."""
    own, notes = analysis.of_experiment(rows, name)
    if not own:
        return None
    cells, more = analysis.cells(own, "size", "method")
    sizes = sorted({size for size, _ in cells})
    methods = analysis.ordered_methods(method for _, method in cells)
    items: list[Item] = [_introduction(own), *notes, *more]
    items += [
        part(f"{name}-{suffix}", cells, sizes, methods)
        for suffix, part in (
            ("scores", scores),
            ("claims", claims),
            ("details", details),
            ("rejection", rejection),
            ("attempts", attempts),
            ("walls", by_wall),
            ("learning", learning),
            ("impossible", learning_impossible),
            ("calibration", calibration),
        )
    ]
    used = [row["trial_id"] for chosen in cells.values() for row in chosen]
    return Section(name, title, items, summary=headline(cells, sizes, methods), rows=used)


def scores(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Table:
    """Ours over the paper's, for every size and method."""
    body: list[list[Cell | str]] = []
    for size in sizes:
        ours = {m: analysis.over_seeds(cells.get((size, m), []), "best", "return") for m in methods}
        best = analysis.best_of(ours)
        line: list[Cell | str] = [str(size)]
        theirs: list[Cell | str] = [Cell("paper", mark="quiet")]
        for method in methods:
            published = paper.TABLE1.get(size, {}).get(method)
            line.append(_score(ours[method], published, method in best))
            theirs.append(_published(published))
        line.append(Cell(f"{_ceiling(cells, size):.2f}", _ceiling(cells, size)))
        theirs.append("")
        body += [line, theirs]
    return Table(
        id=name,
        title="Mean return of the best evaluation, ours above the paper's",
        columns=["size", *map(paper.label, methods), "optimal"],
        rows=body,
        caption="90% Student-t intervals over seeds. Bold: the best, and what its interval overlaps. "
        "▲ ▼: above or below the paper's number by more than both intervals together allow. "
        "Optimal: expected return of a shortest-path policy on the tasks that are possible.",
        note="One dataset per size is shared by all methods and seeds, so the intervals do not cover the luck of "
        "collecting it. The best of many evaluations is partly the luckiest one; the next table has the same "
        "checkpoints on fresh boards.",
    )


def details(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Table:
    """One line per size and method: best, fresh boards, last, impossible attempts, area, time."""
    body: list[list[Cell | str]] = []
    for size in sizes:
        for method in methods:
            rows = cells.get((size, method))
            if not rows:
                continue
            values = {
                "best": analysis.over_seeds(rows, "best", "return"),
                "fresh": analysis.over_seeds(rows, "final", "return"),
                "last": analysis.over_seeds(rows, "last", "return"),
                "gain": analysis.over_seeds(rows, "final", "gain"),
            }
            impossible = analysis.over_seeds(rows, "final", "attempt_impossible")
            minutes = analysis.over_seeds(rows, "seconds", "total").estimate / 60
            body.append(
                [
                    f"{size}",
                    paper.label(method),
                    Cell(str(len(rows)), len(rows)),
                    *(analysis.interval_cell(values[name]) for name in ("best", "fresh", "last")),
                    Cell(analysis.share(impossible.estimate), impossible.estimate),
                    analysis.interval_cell(values["gain"]),
                    Cell("–" if math.isnan(minutes) else f"{minutes:.1f}", minutes),
                ]
            )
    return Table(
        id=name,
        title="The same runs in detail",
        columns=["size", "method", "seeds", "best", "fresh boards", "last", "impossible", "ranking", "minutes"],
        rows=body,
        caption="Fresh boards: the best checkpoint again, on boards that chose nothing. Impossible: share of its "
        "attempts there at tasks whose door is not on the board. Ranking: area under the rejection curve, 0 for random "
        "rejection, 1 for an oracle that knows the returns. Minutes: mean time of a run, compilation and evaluations "
        "included.",
    )


def calibration(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Table:
    """Does the uncertainty say where the value is wrong?"""
    columns = {
        "rank correlation": "rank_correlation_every",
        "… possible tasks": "rank_correlation_possible",
        "failure AUROC": "failure_auroc_every",
        "… possible tasks ": "failure_auroc_possible",
    }
    body: list[list[Cell | str]] = []
    for size in sizes:
        for method in methods:
            if rows := cells.get((size, method)):
                found = [analysis.over_seeds(rows, "final", key) for key in columns.values()]
                body.append([f"{size}", paper.label(method), *map(analysis.interval_cell, found)])
    return Table(
        id=name,
        title="Calibration at the first state",
        columns=["size", "method", *columns],
        rows=body,
        caption="Spearman's rank correlation of the uncertainty at (s0, a0, z) with the error of the value there, and "
        "the AUROC of the uncertainty as a warning that the task will fail (return below half of the best possible), "
        "over all tasks and over those whose door is on the board. Best checkpoint, fresh boards.",
    )


def by_wall(name: str, cells: Cells, sizes: Sequence[int], methods: Sequence[str]) -> Table:
    """What a method earns when it attempts a task of a wall."""
    body: list[list[Cell | str]] = []
    for size in sizes:
        for method in methods:
            if rows := cells.get((size, method)):
                found = [analysis.over_seeds(rows, "final", f"return_{place}") for place in PLACES]
                body.append([f"{size}", paper.label(method), *map(analysis.interval_cell, found)])
    return Table(
        id=name,
        title="Return by the wall of the attempted door",
        columns=["size", "method", *PLACES],
        rows=body,
        caption="Mean return of attempts at tasks whose door is on that wall; the data hold good behaviour for south "
        "and west only. –: nobody attempted one.",
    )


def _score(ours: Interval, published: tuple[float, float] | None, best: bool) -> Cell:
    if math.isnan(ours.estimate):
        return Cell("–", None, "missing", "not run")
    mark, sign, words = "best" if best else "", "", analysis.seeds_in_words(ours.n)
    if published is not None and not math.isnan(ours.low):
        gap = ours.estimate - published[0]
        if abs(gap) > ours.half_width + published[1]:
            sign = " ▲" if gap > 0 else " ▼"
        words += f", {gap:+.2f} against the paper"
    return Cell(analysis.plus_minus(ours) + sign, ours.estimate, mark, words)


def _published(published: tuple[float, float] | None) -> Cell:
    if published is None:
        return Cell("–", None, "quiet")
    mean, half = published
    return Cell(f"{mean:.2f} ± {f'{half:.2f}'.removeprefix('0')}", mean, "quiet")


def _ceiling(cells: Cells, size: int) -> float:
    for (s, _), rows in cells.items():
        if s == size and (found := analysis.numbers(rows, "ceiling", "mean")):
            return found[0]
    return math.nan


def _introduction(rows: Sequence[Row]) -> str:
    config = rows[0]["config"]
    seeds = len({row["seed"] for row in rows})
    return (
        f"Preset {config['preset']}: {analysis.describe_scale(rows)}, {seeds} seed{'s' if seeds > 1 else ''}, "
        f"{config['evaluations']} evaluations of {config['evaluation_episodes']:,} episodes during training, the best "
        f"checkpoint on {config['final_episodes']:,} fresh boards. The paper: width 512, 512 heads, batch 512, "
        "100,000 steps. Before each episode the agent rejects the four of six tasks that it is least certain of and "
        "plays one of the other two."
    )
