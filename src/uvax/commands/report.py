"""`uvax report`: turn result rows into one HTML page, or into tables for a paper."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from uvax.commands.options import parse
from uvax.errors import InvalidInput

_HOW = "fill it with uvax experiment table1 --preset smoke (seconds), or uvax experiment NAME"


@dataclass(frozen=True, kw_only=True)
class Options:
    results: tyro.conf.Positional[str] = "results"
    """folder of rows, or one .jsonl file"""
    out: Annotated[str | None, tyro.conf.arg(aliases=["-o"])] = None
    """file to write, replaced if it is there; the default is report.html, report.md or report.tex"""
    format: str | None = None
    """html (one page with everything in it), md or tex (the tables); the default follows the file's name"""
    title: str = "Universal value-function uncertainties, reproduced"
    figures: str | None = None
    """folder that gets every figure as PNG and SVG as well"""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, command="report", description="Turn result rows into one HTML page.")
    from uvax.experiments.run import read_rows
    from uvax.report import build

    kind = options.format or _format(options.out)
    out = options.out or f"report.{kind}"
    results = Path(options.results)
    if not results.exists():
        raise InvalidInput(f"there is no folder or file {results}; {_HOW}")
    rows, problems = read_rows(results)
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)
    if not rows:
        found = f"none of its {len(problems)} lines is a usable row" if problems else "no rows are there yet"
        raise InvalidInput(f"{results} has nothing to report: {found}; {_HOW}")
    path = build(
        rows,
        out,
        title=options.title,
        format=kind,
        problems=problems,
        failed=_failed(results),
        figures=options.figures,
    )
    print(f"{len(rows)} rows, {path.stat().st_size / 1e6:.1f} MB: {path}")
    return 0


def _format(out: str | None) -> str:
    suffix = Path(out or "report.html").suffix.lstrip(".").lower()
    return {"htm": "html", "markdown": "md"}.get(suffix, suffix or "html")


def _failed(results: Path) -> list[dict]:
    from uvax.experiments.runner import FAILED
    from uvax.files import read_jsonl

    folder = (results if results.is_dir() else results.parent) / FAILED
    return [line.row for file in sorted(folder.glob("*.jsonl")) for line in read_jsonl(file)[0]]
