"""From rows to one self-contained page, or to tables for a paper."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import uvax
from uvax.errors import InvalidInput, unknown_name
from uvax.experiments.content import Chart, Figure, Picture, Section, Surfaces, Table
from uvax.files import write_atomic
from uvax.report import tables
from uvax.report.explorer import explorer_data
from uvax.report.figures import data_uri, plotly_figure, rendered, static_figure
from uvax.report.provenance import provenance
from uvax.report.sections import make_sections, usable

FORMATS = ("html", "md", "tex")
Row = Mapping[str, Any]


class Drawn(NamedTuple):
    """A chart as the page needs it."""

    id: str
    title: str
    alt: str
    caption: str
    groups: list[str]
    height: int
    json: Any
    svg: str
    png: str


class Shown(NamedTuple):
    """A section as the page needs it: (kind, item) for each of its parts."""

    id: str
    title: str
    parts: list[tuple[str, Any]]


def build(
    rows: Sequence[Row],
    out: str | os.PathLike[str],
    *,
    title: str = "uvax results",
    introduction: str = "",
    format: str = "html",
    problems: Sequence[str] = (),
    failed: Sequence[Mapping[str, Any]] = (),
    figures: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the report of `rows` to `out`, replacing what is there; experiments without rows have no section.

    `format` is "html" (one page with everything in it), "md" or "tex" (the tables). `problems` are sentences about
    rows that were left out, `failed` records of trials that never finished. `figures` is a folder that gets every
    figure as PNG and SVG as well.

        uvax.report.build(RowStore("results").read().rows, "report.html")
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if not rows:
        raise InvalidInput("there are no rows to report on; run an experiment first, such as uvax experiment table1")
    shown, lacking = usable(rows)
    sections, unknown = make_sections(shown)
    told = [*problems, *lacking, *unknown]
    if figures is not None:
        write_figures(sections, Path(figures))
    if format == "html":
        text = _page(shown, sections, title, introduction, told, failed)
    else:
        text = _tables(sections, title, format)
    _write(out, text.encode())
    return Path(out)


def write_figures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Every figure of the sections as PNG and SVG."""
    written = []
    for item in (item for section in sections for item in section.items):
        if not isinstance(item, Chart | Figure) or (figure := static_figure(item)) is None:
            continue
        for kind in ("svg", "png"):
            path = folder / f"{item.id}.{kind}"
            _write(path, rendered(figure, kind))
            written.append(path)
    return written


def _write(path: str | os.PathLike[str], content: bytes) -> None:
    write_atomic(path, lambda file: file.write(content), overwrite=True)


def _tables(sections: Sequence[Section], title: str, format: str) -> str:
    render = tables.markdown if format == "md" else tables.latex
    head = f"# {title}\n" if format == "md" else f"% {title}: needs \\usepackage{{booktabs,amssymb}}\n"
    parts = [head]
    for section in sections:
        name = f"## {section.title}\n" if format == "md" else f"% {section.title}\n"
        summary = "".join(f"- {sentence}\n" for sentence in section.summary.split("; ") if sentence)
        parts += [name, summary] if summary and format == "md" else [name]
        parts += [render(item) for item in section.items if isinstance(item, Table)]
    return "\n".join(parts)


def _page(
    rows: Sequence[Row],
    sections: Sequence[Section],
    title: str,
    introduction: str,
    problems: Sequence[str],
    failed: Sequence[Mapping[str, Any]],
) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    table_template = environment.from_string(_asset("table.html.j2"))

    def table(item: Table) -> Markup:
        cells = [[tables.cell(value) for value in row] for row in item.rows]
        csv = data_uri(tables.table_csv(item).encode(), "text/csv")
        return Markup(table_template.render(item=item, rows=cells, left=tables.text_columns(item), csv=csv))

    def part(item: Any) -> tuple[str, Any]:
        if isinstance(item, str):
            return "text", item
        if isinstance(item, Table):
            return "table", item
        if isinstance(item, Surfaces):
            return "surfaces", (item, _json(dataclasses.asdict(item)))
        return ("picture", item) if isinstance(item, Picture) else ("chart", _drawn(item))

    parts = [Shown(s.id, s.title, [part(item) for item in s.items]) for s in sections]
    needs_plotly = any(item.json for section in parts for kind, item in section.parts if kind == "chart")
    explorer = explorer_data(rows)
    summary = [(s, s.summary.split("; ")) for s in sections if s.summary]
    contents = [("summary", "Summary")] if summary else []
    contents += [(section.id, section.title.split(" (")[0]) for section in parts]
    contents += [("explorer", "Grid explorer")] if explorer else []
    contents += [("provenance", "Provenance"), ("data", "Data")]
    return environment.from_string(_asset("page.html.j2")).render(
        title=title,
        introduction=introduction,
        version=uvax.__version__,
        count=len(rows),
        css=Markup(_asset("page.css")),
        script=Markup("".join(map(_asset, ("page.js", "explorer.js", "surface.js")))),
        plotly=Markup(_plotly()) if needs_plotly else "",
        needs_plotly=needs_plotly,
        contents=contents,
        summary=summary,
        sections=parts,
        table=table,
        explorer=_json(explorer) if explorer else "",
        provenance=provenance(rows, problems, failed),
        files=[
            ("rows.csv", "every number of every row, with its configuration", _json(tables.rows_csv(rows))),
            ("curves.csv", "every evaluation of every run", _json(tables.curves_csv(rows))),
        ],
    )


def _drawn(chart: Chart | Figure) -> Drawn:
    figure = static_figure(chart)
    svg = data_uri(rendered(figure, "svg"), "image/svg+xml") if figure is not None else ""
    png = data_uri(rendered(figure, "png"), "image/png") if figure is not None else ""
    plot = plotly_figure(chart)
    content = _json({key: plot[key] for key in ("data", "layout", "groups")}) if plot["data"] else ""
    return Drawn(chart.id, chart.title, chart.alt, chart.caption, plot["groups"], plot["height"], content, svg, png)


def _json(value: Any) -> Any:
    """JSON that may stand inside a script element: no '<' can end it."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _asset(name: str) -> str:
    return resources.files("uvax.report").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()
