"""What an experiment has to show, as data: tables, charts and words that the report renders and papers print.

An experiment's `section(rows)` turns its rows into a `Section`. A `Chart` is described once and drawn twice: with
plotly on the page and with matplotlib for print. What a chart cannot say (surfaces, drawings) is a `Figure`, which
brings its own plotly figure and its own matplotlib function. `Surfaces` are for the page only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

Number = float | int | None


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is read, and the number behind it for CSV and sorting.

    `mark` is "best", "better", "worse" or "missing"; on the page it is a colour and a sign, never a colour alone.
    """

    text: str
    value: Any = None
    mark: str = ""
    title: str = ""  # more, shown when pointed at


@dataclass(frozen=True)
class Table:
    """Rows of cells under column names; the first column names the row."""

    id: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One line or one set of bars. `low` and `high` are the band or the whiskers around `y`."""

    name: str
    x: Sequence[Any]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    dashed: bool = False
    markers: bool = True
    colour: int | str | None = None  # index into the palette, or '#rrggbb'; None: by order
    group: str = ""  # on the page a chart with groups shows one at a time, chosen from a list


@dataclass(frozen=True)
class Chart:
    """Lines or bars over one x axis. `alt` says in words what is to be seen."""

    id: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    alt: str
    caption: str = ""
    kind: Literal["line", "bar", "stacked"] = "line"
    log_x: bool = False
    log_y: bool = False
    y_from_zero: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure that draws itself: `plotly` is a figure as JSON ("data" and "layout"), `static` a matplotlib one."""

    id: str
    title: str
    alt: str
    caption: str = ""
    plotly: Mapping[str, Any] | None = None
    static: Callable[[], "MatplotlibFigure"] | None = None
    height: int = 420


@dataclass(frozen=True)
class Picture:
    """An image, PNG in base64."""

    id: str
    title: str
    png: str
    width: int
    height: int
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Layer:
    """A surface of `Surfaces`: values[y][x]. Layers of the same `scale` share their colours and heights.

    A `reference` is drawn beside every other layer of its scale.
    """

    name: str
    values: Sequence[Sequence[float]]
    scale: str
    reference: bool = False


@dataclass(frozen=True)
class Surfaces:
    """Surfaces over the same x and y, on the page one at a time, to be turned and read point by point."""

    id: str
    title: str
    x_label: str
    x: Sequence[str]
    y_label: str
    y: Sequence[float]
    layers: Sequence[Layer]
    alt: str
    caption: str = ""


Item = str | Table | Chart | Figure | Picture | Surfaces


@dataclass(frozen=True)
class Section:
    """A part of the report: a heading, words, and what is to be seen in order.

    `summary` is what the top of the page says of it, sentences divided by "; "; `items` are paragraphs (str), tables,
    charts, figures and pictures. `rows` are the ids of the trials that it is made from.
    """

    id: str
    title: str
    items: Sequence[Item]
    summary: str = ""
    rows: Sequence[str] = field(default_factory=tuple)


def text_table(table: Table) -> list[list[str]]:
    """The cells as text, header first."""
    body = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    return [list(table.columns), *body]
