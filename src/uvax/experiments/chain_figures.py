"""The figures of Section 3 and Appendix B.3, drawn for print. Lightness carries what colour does."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "cividis"
VIEWS = ((27, 38), (27, 122))  # elevation and azimuth, in degrees
_INK, _QUIET, _U = "#1d232b", "#8a94a0", "#1d5bb5"
Layer = tuple[str, Any]  # name, surface [z, state]


def draw_tables(result: dict[str, Any], *, leaves: int) -> "Figure":
    """The chain above, and below it a row for every table: u and g for the data policy and for the one that leaves."""
    from matplotlib.figure import Figure

    policies = ("data", "leaves")
    tables, states = np.shape(result["data"]["g"])[:2]
    figure = Figure(figsize=(7.6, 2.0 + 1.25 * tables), layout="constrained")
    axes = figure.subplots(tables + 1, 2, squeeze=False, height_ratios=[1.45] + [1.0] * tables)
    shown = [np.array(result[p][name]) for p in policies for name in ("g", "exact")]
    low, high = min(v.min() for v in shown), max(v.max() for v in shown)
    margin = 0.12 * (high - low)
    for column, policy in enumerate(policies):
        left = leaves if policy == "leaves" else None
        _draw_chain(axes[0, column], states, left)
        axes[0, column].set_title(
            r"data policy $\pi_d$: always $a$" if left is None else rf"$\pi(\cdot|s,z)$: $b$ in $s_{left}$", fontsize=10
        )
        for t in range(tables):
            axis = axes[t + 1, column]
            _draw_table(axis, result[policy], t, left)
            axis.set_ylim(low - margin, high + margin)
            axis.set_xlim(0.6, states + 0.6)
            axis.set_xticks(
                range(1, states + 1), [rf"$s_{s}$" for s in range(1, states + 1)] if t == tables - 1 else []
            )
            axis.tick_params(labelsize=8, labelleft=column == 0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(True, linewidth=0.4, alpha=0.5)
            if column == 0:
                axis.set_ylabel(f"table {t + 1}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("state", fontsize=9)
    handles: dict[str, Any] = {}
    for axis in axes[1:].ravel():
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    return figure


def _draw_chain(axis: "Axes", states: int, leaves: int | None) -> None:
    """Figure "chainmdp": a goes on, b leads where no data are; the policy's own way is bold."""
    from matplotlib.patches import Circle, FancyArrowPatch

    def arrow(start: tuple[float, float], end: tuple[float, float], bold: bool, dashed: bool = False) -> None:
        axis.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                mutation_scale=9,
                shrinkA=0,
                shrinkB=0,
                linewidth=1.9 if bold else 0.9,
                linestyle=(0, (3, 2)) if dashed else "-",
                color=_INK if bold else _QUIET,
            )
        )

    radius = 0.24
    for s in range(1, states + 1):
        axis.add_patch(Circle((s, 0), radius, facecolor="white", edgecolor=_INK, linewidth=1.1))
        axis.text(s, 0, rf"$s_{s}$", ha="center", va="center", fontsize=9)
        takes_b = s == leaves
        on_the_way = leaves is None or s <= leaves
        end = s + 1 - radius if s < states else s + 1 - radius - 0.03
        arrow((s + radius, 0), (end, 0), on_the_way and not takes_b)
        axis.text(s + 0.5, 0.1, "$a$", ha="center", va="bottom", fontsize=9)
        arrow((s, -radius), (s, -0.78), takes_b, dashed=True)
        axis.text(s + 0.09, -0.52, "$b$", ha="left", va="center", fontsize=9)
        axis.text(s, -0.95, "?", ha="center", va="center", fontsize=9, color=_INK if takes_b else _QUIET)
    axis.text(states + 0.86, 0, "end", ha="left", va="center", fontsize=8.5)
    axis.text(states + 0.5, 0.42, "$r = 1$", ha="center", va="bottom", fontsize=8.5)
    axis.set_xlim(0.6, states + 1.25)
    axis.set_ylim(-1.1, 0.75)
    axis.set_aspect("equal")
    axis.axis("off")


def _draw_table(axis: "Axes", result: dict[str, Any], table: int, leaves: int | None) -> None:
    g = np.array(result["g"])[table]
    sweeps = np.array(result["u"])[:, table]
    u, states = sweeps[-1], np.arange(1, g.shape[0] + 1)
    axis.plot(states, sweeps[0, :, 0], ":", color=_QUIET, linewidth=1.2, label=r"$u_{sa}$ before training")
    axis.vlines(states, g[:, 0], u[:, 0], color=_U, linewidth=5, alpha=0.28, label=r"error $|u_{sa} - g_{sa}|$")
    axis.plot(states, u[:, 0], "o-", color=_U, markersize=4, linewidth=1.4, label=r"$u_{sa}$ trained")
    axis.plot(
        states, g[:, 0], "s--", color=_INK, mfc="none", markersize=7, linewidth=0.9, label=r"$g_{sa}$, never trained"
    )
    if leaves is not None:
        place = leaves + 0.28
        axis.vlines(place, g[leaves - 1, 1], u[leaves - 1, 1], color=_QUIET, linewidth=0.9)
        axis.plot(place, u[leaves - 1, 1], "D", color=_U, markersize=5, label=rf"$u_{{s_{leaves}b}}$, not in the data")
        axis.plot(place, g[leaves - 1, 1], "D", color=_INK, mfc="none", markersize=6, label=rf"$g_{{s_{leaves}b}}$")


def draw_surfaces(columns: Sequence[Layer], z: np.ndarray, *, label: str) -> "Figure":
    """A column for every surface, two views of each, all on one scale of height and colour."""
    from matplotlib.figure import Figure

    limits = _limits([values for _, values in columns])
    figure = Figure(figsize=(3.0 * len(columns) + 0.8, 5.6))
    for row, view in enumerate(VIEWS):
        for column, (name, values) in enumerate(columns):
            axis: Any = figure.add_subplot(len(VIEWS), len(columns), row * len(columns) + column + 1, projection="3d")
            _draw_surface(axis, np.array(values), z, view, limits)
            if row == 0:
                axis.set_title(name, fontsize=10, pad=0, y=1.0)
    figure.subplots_adjust(left=0.01, right=0.9, bottom=0.03, top=0.95, wspace=0.05, hspace=0.02)
    _colour_bar(figure, limits, label, 0.925)
    return figure


def draw_rows(rows: Sequence[Layer], z: np.ndarray, *, label: str) -> "Figure":
    """A row for every surface with its two views, all on one scale; beside them the lowest and highest value."""
    from matplotlib.figure import Figure

    limits = _limits([values for _, values in rows])
    figure = Figure(figsize=(7.0, 2.8 * len(rows)))
    for row, (name, values) in enumerate(rows):
        for column, view in enumerate(VIEWS):
            axis: Any = figure.add_subplot(len(rows), 2, 2 * row + column + 1, projection="3d")
            _draw_surface(axis, np.array(values), z, view, limits)
        low, high = np.min(values), np.max(values)
        height = 1.0 - (row + 0.035) / len(rows)
        text = f"{name}  (from {low:.2g} to {high:.2g})"
        figure.text(0.43, height, text, ha="center", va="top", fontsize=10)
    figure.subplots_adjust(left=0.01, right=0.85, bottom=0.03, top=0.945, wspace=0.02, hspace=0.16)
    _colour_bar(figure, limits, label, 0.88)
    return figure


def _limits(surfaces: Sequence[Any]) -> tuple[float, float]:
    """From zero, or what is below it, to the highest."""
    low = min(float(np.min(values)) for values in surfaces)
    high = max(float(np.max(values)) for values in surfaces)
    return min(low, 0.0), high if high > 0 else 1.0


def _draw_surface(
    axis: Any, values: np.ndarray, z: np.ndarray, view: tuple[float, float], limits: tuple[float, float]
) -> None:
    states = np.arange(1, values.shape[1] + 1)
    axis.plot_surface(
        *np.meshgrid(states, z),
        values,
        rstride=1,
        cstride=1,
        cmap=COLOURS,
        vmin=limits[0],
        vmax=limits[1],
        edgecolor=(0.1, 0.1, 0.1, 0.55),
        linewidth=0.35,
        shade=False,
        antialiased=True,
    )
    axis.view_init(*view)
    axis.set_box_aspect((1, 1, 0.75), zoom=1.0)
    axis.set_zlim(limits[0], 1.02 * limits[1])
    axis.set_xlabel("state", fontsize=9, labelpad=-7)
    axis.set_ylabel("$z$", fontsize=9, labelpad=-7)
    shown = states[:: 3 if len(states) > 6 else 1]
    axis.set_xticks(shown, [rf"$s_{{{s}}}$" for s in shown])
    axis.set_yticks([0.0, 0.5, 1.0], ["0", ".5", "1"])
    axis.tick_params(labelsize=7.5, pad=-3)
    axis.zaxis.set_tick_params(pad=-1)
    axis.locator_params(axis="z", nbins=4)
    for side in (axis.xaxis, axis.yaxis, axis.zaxis):
        side.set_pane_color((0.97, 0.97, 0.98, 1.0))


def _colour_bar(figure: "Figure", limits: tuple[float, float], label: str, left: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    place = figure.add_axes((left, 0.24, 0.016, 0.52))
    bar = figure.colorbar(ScalarMappable(Normalize(*limits), COLOURS), cax=place)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
