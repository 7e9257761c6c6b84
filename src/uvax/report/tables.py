"""Tables as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uvax.configs import flatten
from uvax.experiments.content import Cell, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "–": "--",
    "…": r"\dots{}",
}


def cell(value: Cell | str) -> Cell:
    """A cell, also where a table has plain text."""
    return value if isinstance(value, Cell) else Cell(value)


def text_columns(table: Table) -> set[int]:
    """The columns that hold words rather than numbers."""
    cells = [[cell(value) for value in row] for row in table.rows]
    return {i for i, column in enumerate(zip(*cells, strict=True)) if all(c.value is None for c in column)}


def markdown(table: Table) -> str:
    """A GitHub table with its title and caption; the best in bold."""

    def text(value: Cell | str) -> str:
        shown = cell(value).text.replace("|", "\\|")
        return f"**{shown}**" if cell(value).mark == "best" else shown

    words_only = text_columns(table)
    rule = ["---" if i == 0 or i in words_only else "---:" for i in range(len(table.columns))]
    lines = [f"**{table.title}**", "", _md_line(table.columns), _md_line(rule)]
    lines += [_md_line([text(value) for value in row]) for row in table.rows]
    words = " ".join(part for part in (table.caption, table.note) if part)
    return "\n".join([*lines, "", words, ""] if words else [*lines, ""])


def _md_line(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |"


def latex(table: Table) -> str:
    """A booktabs table; it needs \\usepackage{booktabs,amssymb}."""

    def text(value: Cell | str) -> str:
        shown = escape(cell(value).text)
        if cell(value).mark == "best":
            return rf"\textbf{{{shown}}}"
        return rf"{{\small {shown}}}" if cell(value).mark == "quiet" and shown else shown

    words_only = text_columns(table)
    sides = "".join("l" if i == 0 or i in words_only else "r" for i in range(len(table.columns)))
    lines = [
        r"\begin{table}",
        rf"  \caption{{{escape(' '.join(filter(None, (table.title + '.', table.caption, table.note))))}}}",
        rf"  \label{{tab:{table.id}}}",
        r"  \centering",
        rf"  \begin{{tabular}}{{{sides}}}",
        r"    \toprule",
        f"    {' & '.join(map(escape, table.columns))} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(map(text, row))} \\\\" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text as LaTeX."""
    return re.sub("|".join(map(re.escape, _LATEX)), lambda match: _LATEX[match[0]], text)


def table_csv(table: Table) -> str:
    """The numbers behind the cells where there are any, else their text."""
    body = [[c.text if c.value is None else c.value for c in map(cell, row)] for row in table.rows]
    return _csv([list(table.columns), *body])


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """All rows, a column for every number of their results and every setting; curves and boards are left out."""
    flat = []
    for row in rows:
        result = {k: v for k, v in row["result"].items() if k not in ("curve", "explorer", "png", "dataset")}
        parts = {"config": row["config"], "result": result, "provenance": row["provenance"]}
        plain = {name: row[name] for name in ("experiment", "trial_id", "seed")} | flatten(parts)
        flat.append({k: v for k, v in plain.items() if not isinstance(v, list)})
    names = list(dict.fromkeys(name for line in flat for name in line))
    return _csv([names, *([line.get(name, "") for name in names] for line in flat)])


def curves_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The learning curves, a line for every evaluation."""
    keys = ("experiment", "trial_id", "seed")
    columns: dict[str, None] = {}
    lines: list[dict[str, Any]] = []
    for row in rows:
        curve = row["result"].get("curve")
        if not isinstance(curve, Mapping) or not curve.get("step"):
            continue
        about = {k: row[k] for k in keys} | {k: row["config"].get(k) for k in ("method", "size")}
        for i in range(len(curve["step"])):
            lines.append(about | {name: values[i] for name, values in curve.items()})
        columns |= dict.fromkeys([*about, *curve])
    return _csv([list(columns), *([line.get(name, "") for name in columns] for line in lines)])


def _csv(lines: Iterable[Iterable[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(["" if v is None else v for v in line] for line in lines)
    return file.getvalue()
