"""Write the numbers of `results/` into the documents: README's table, and the tables of docs/results.md.

What people wrote stays: README outside the two marks, docs/results.md before its first section. With `--check` nothing
is written, and a document that differs from the rows is an error.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from uvax import report
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.rows import RowStore

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- table1: written by `make docs` -->\n", "<!-- table1: end -->\n"
_SECTION = "\n## "


def main(arguments: Sequence[str]) -> None:
    rows = RowStore(ROOT / "results").read().rows
    stale = []
    for name, renew in (("README.md", readme), ("docs/results.md", results_page)):
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        anew = renew(text, rows)
        if anew != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(anew, encoding="utf-8")
    if stale and "--check" in arguments:
        raise SystemExit(f"{' and '.join(stale)}: not what the rows of results/ say; run `make docs`")
    print(f"written: {', '.join(stale)}" if stale else "the documents say what the rows say")


def readme(text: str, rows: Sequence[Row]) -> str:
    """README with the table of these rows between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"README.md lacks the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return before + BEGIN + "\n" + score_table(rows) + "\n" + END + after


def results_page(text: str, rows: Sequence[Row]) -> str:
    """docs/results.md with the sections of these rows."""
    with tempfile.TemporaryDirectory() as folder:
        made = report.build(rows, Path(folder) / "results.md", format="md").read_text(encoding="utf-8")
    return text.partition(_SECTION)[0] + _SECTION + made.partition(_SECTION)[2]


def score_table(rows: Sequence[Row]) -> str:
    """Best checkpoints on fresh boards, of the methods that have rows at every size, above the paper's numbers."""
    own, _ = analysis.of_experiment(rows, "table1")
    cells, _ = analysis.cells(own, "size", "method")
    sizes = sorted({size for size, _ in cells})
    methods = [m for m in analysis.ordered_methods(m for _, m in cells) if all((size, m) in cells for size in sizes)]
    lines = [["size", "", *map(paper.label, methods), "best possible"], ["---"] * (len(methods) + 3)]
    for size in sizes:
        here = {method: cells[size, method] for method in methods}
        fresh = {method: analysis.over_seeds(chosen, "final", "return") for method, chosen in here.items()}
        wrong = [analysis.over_seeds(chosen, "final", "attempt_impossible").estimate for chosen in here.values()]
        best = analysis.best_of(fresh)
        ours = [f"**{analysis.plus_minus(v)}**" if m in best else analysis.plus_minus(v) for m, v in fresh.items()]
        ceiling = next(iter(here.values()))[0]["result"]["ceiling"]["mean"]
        theirs = [_published(paper.TABLE1[size].get(method)) for method in methods]
        lines += [
            [str(size), "ours", *ours, f"{ceiling:.2f}"],
            ["", "impossible tasks", *(f"{share:.1%}" for share in wrong), ""],
            ["", "paper", *theirs, ""],
        ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _published(number: tuple[float, float] | None) -> str:
    return "" if number is None else f"{number[0]:.2f} ± {number[1]:.2f}".replace("± 0", "± ")


if __name__ == "__main__":
    main(sys.argv[1:])
