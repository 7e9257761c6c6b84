"""Charts drawn twice from one description: as plotly data for the page, and by matplotlib for print."""

import base64
import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from uvax.experiments.content import Chart, Figure, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

# One colour for each method of the paper's table, then oracle and random. They differ in lightness as well as hue,
# and lines have markers of their own, so that a print in grey can be read.
PALETTE = ("#8c8c8c", "#7db8e8", "#3b82d0", "#1d5bb5", "#e0a11b", "#c9640d", "#d4266b", "#2e9e6b", "#9a7bd0")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "circle-open", "square-open")
_MATPLOTLIB_MARKERS = ("o", "s", "D", "^", "P", "X", "*", "o", "s")


def colour(series: Series, index: int) -> str:
    """The colour of a series, by its own choice or by its place."""
    if isinstance(series.colour, str):
        return series.colour
    return PALETTE[(index if series.colour is None else series.colour) % len(PALETTE)]


def groups(chart: Chart) -> list[str]:
    """The groups of a chart's series, in order."""
    return list(dict.fromkeys(series.group for series in chart.series))


def plotly_figure(chart: Chart | Figure) -> dict[str, Any]:
    """ "data", "layout" and for every trace its group. Colours of text and grid are the page's, light or dark."""
    if isinstance(chart, Figure):
        figure = dict(chart.plotly or {"data": [], "layout": {}})
        return {"data": list(figure["data"]), "layout": dict(figure["layout"]), "groups": [], "height": chart.height}
    data: list[dict[str, Any]] = []
    for group in groups(chart):
        for i, series in enumerate(s for s in chart.series if s.group == group):
            data += _traces(chart, series, i)
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": chart.x_label}, "automargin": True},
        "yaxis": {"title": {"text": chart.y_label}, "automargin": True},
        "legend": {"orientation": "h", "y": -0.25},
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "hovermode": "closest" if chart.kind == "line" else "x",
    }
    if chart.kind == "line":
        layout["xaxis"] |= _axis([x for s in chart.series for x in s.x], log=chart.log_x)
    if chart.log_y:
        layout["yaxis"] |= {"type": "log", "dtick": "D2"}  # labels at 1, 2 and 5, not at every digit
    elif chart.y_from_zero:
        layout["yaxis"]["rangemode"] = "tozero"
    if chart.kind == "stacked":
        layout["barmode"] = "stack"
        layout["yaxis"]["tickformat"] = ".0%"
    return {"data": data, "layout": layout, "groups": [g for g in groups(chart) if g], "height": 420}


def _axis(values: Sequence[float], *, log: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"type": "log" if log else "linear"}
    if ticks := _ticks(values, log=log):
        axis |= {"tickvals": ticks, "ticktext": [_short(t) for t in ticks]}
    return axis


def _ticks(values: Iterable[float], *, log: bool) -> list[float]:
    """The values that were run, if they are few, else powers of ten on a logarithmic axis; or the library chooses."""
    ticks = sorted(set(values))
    if len(ticks) <= (9 if log else 6):
        return ticks
    return _powers_of_ten(ticks[0], ticks[-1]) if log and ticks[0] > 0 else []


def _powers_of_ten(low: float, high: float) -> list[float]:
    """Those from low to high, unless there is only one."""
    found = [float(f"1e{k}") for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    found = [power for power in found if low <= power <= high]
    return found if len(found) > 1 else []


def _short(tick: float) -> str:
    """Rates as 1e-3, not 0.001 or 1m: neighbours on a logarithmic axis are close."""
    return f"{tick:.0e}".replace("e-0", "e-") if 0 < abs(tick) < 0.01 and tick == float(f"{tick:.0e}") else f"{tick:g}"


def _traces(chart: Chart, series: Series, index: int) -> list[dict[str, Any]]:
    tint = colour(series, index)
    y = [_number(v) for v in series.y]
    x = list(series.x)
    common = {"name": series.name, "x": x, "legendgroup": series.name, "uvaxGroup": series.group}
    if chart.kind != "line":
        hover = "%{x}, " + series.name + ": %{y:.1%}<extra></extra>" if chart.kind == "stacked" else None
        bar: dict[str, Any] = {"type": "bar", "y": y, "marker": {"color": tint}, **common}
        return [bar | ({"hovertemplate": hover} if hover else {})]
    band: list[dict[str, Any]] = []
    if series.low is not None and series.high is not None:
        edges = [(a, b, c) for a, b, c in zip(x, series.low, series.high, strict=True) if None not in (b, c)]
        if edges:
            xs, low, high = (list(column) for column in zip(*edges, strict=True))
            band = [
                {
                    **common,
                    "type": "scatter",
                    "x": xs + xs[::-1],
                    "y": high + low[::-1],
                    "fill": "toself",
                    "fillcolor": _translucent(tint),
                    "line": {"width": 0},
                    "mode": "lines",
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
            ]
    place = series.colour if isinstance(series.colour, int) else index
    line = {
        **common,
        "type": "scatter",
        "y": y,
        "mode": "lines+markers" if series.markers else "lines",
        "line": {"color": tint, "width": 2, "dash": "dash" if series.dashed else "solid"},
        "marker": {"symbol": _MARKERS[place % len(_MARKERS)], "size": 7},
        "hovertemplate": f"{series.name}<br>%{{x}}: %{{y:.3g}}<extra></extra>",
    }
    return [*band, line]


def static_figure(chart: Chart | Figure) -> "MatplotlibFigure | None":
    """The figure for print: one panel for each group. None where a figure has no static form."""
    if isinstance(chart, Figure):
        return chart.static() if chart.static is not None else None
    from matplotlib.figure import Figure as MatplotlibFigure

    panels = groups(chart)
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = MatplotlibFigure(figsize=(4.2 * columns + 0.6, 3.0 * lines + 0.8), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis, group in zip(axes, panels, strict=False):
        chosen = [s for s in chart.series if s.group == group]
        _draw(axis, chart, chosen)
        axis.set_title(group, fontsize=9)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    # As many columns as fit: a handle and its gaps take about 0.6 inches, a letter of this size 0.065.
    column = 0.6 + 0.065 * max(map(len, handles), default=0)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(1, min(5, len(handles), int(figure.get_figwidth() / column))),
        fontsize=8,
        frameon=False,
    )
    return figure


def _draw(axis: "Axes", chart: Chart, chosen: Sequence[Series]) -> None:
    if chart.log_x:
        axis.set_xscale("log")
    if chart.kind == "line" and (ticks := _ticks((x for s in chosen for x in s.x), log=chart.log_x)):
        axis.set_xticks(ticks, [_short(t) for t in ticks])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    if chart.log_y:
        axis.set_yscale("log")
    bottom: dict[Any, float] = {}
    for i, series in enumerate(chosen):
        tint = colour(series, i)
        y = [math.nan if v is None else float(v) for v in series.y]
        if chart.kind == "line":
            place = series.colour if isinstance(series.colour, int) else i
            marker = _MATPLOTLIB_MARKERS[place % len(_MATPLOTLIB_MARKERS)] if series.markers else None
            dash = "--" if series.dashed else "-"
            axis.plot(series.x, y, dash, color=tint, marker=marker, markersize=4, linewidth=1.4, label=series.name)
            if series.low is not None and series.high is not None:
                low, high = ([math.nan if v is None else v for v in b] for b in (series.low, series.high))
                axis.fill_between(series.x, low, high, color=tint, alpha=0.18, linewidth=0)
        else:
            heights = [0.0 if math.isnan(v) else v for v in y]
            base = [bottom.get(x, 0.0) if chart.kind == "stacked" else 0.0 for x in series.x]
            axis.bar(series.x, heights, bottom=base, color=tint, label=series.name)
            bottom |= {x: b + h for x, b, h in zip(series.x, base, heights, strict=True)}
    if chart.kind != "line":
        axis.tick_params(axis="x", labelrotation=35, labelsize=7)
    if chart.y_from_zero and not chart.log_y:
        axis.set_ylim(bottom=0)
    axis.set_xlabel(chart.x_label, fontsize=9)
    axis.set_ylabel(chart.y_label, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(True, linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def rendered(figure: "MatplotlibFigure", kind: str) -> bytes:
    """The figure as "svg" or "png". Text in SVG stays text; no date, so that the same rows give the same bytes."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "uvax"}):
        figure.savefig(file, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return _renumbered(file.getvalue()) if kind == "svg" else file.getvalue()


def _renumbered(svg: bytes) -> bytes:
    """Matplotlib makes some ids from addresses in memory; here they are numbers in order of appearance."""
    numbers: dict[bytes, bytes] = {}
    return re.sub(rb"\b[a-z][0-9a-f]{10}\b", lambda m: numbers.setdefault(m[0], b"i%d" % len(numbers)), svg)


def data_uri(content: bytes, kind: str) -> str:
    """The content as the address of itself."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _translucent(hex_colour: str) -> str:
    r, g, b = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},0.18)"


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
