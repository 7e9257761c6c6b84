"""What the rows of `verify` show: ratios and errors against width, head coupling, and the chi-square law."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats

from uvax.experiments import analysis
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Chart, Item, Section, Series, Table

Group = Mapping[tuple[str, int, int], list[Row]]  # method, count, width
_NAMES = {"ensemble": "ensemble of {}", "uvu": "UVU, {} heads"}


def verify_section(rows: Sequence[Row], experiment: str) -> Section | None:
    """Tables and charts; None without rows."""
    own, notes = analysis.of_experiment(rows, experiment)
    if not own:
        return None
    groups: dict[tuple[str, int, int], list[Row]] = {}
    for row in own:
        c = row["config"]
        groups.setdefault((c["method"], c["count"], c["width"]), []).append(row)
    groups = dict(sorted(groups.items()))
    problem = own[0]["config"]
    gap = own[0]["result"]["limit_gap"]
    introduction = (
        f"Networks f(s, a, z) with {problem['depth']} hidden layer(s) in NTK parametrisation, trained by "
        f"{problem['steps']:,} steps of full-batch gradient descent on the chain of {problem['length']} states, gamma "
        f"{problem['gamma']}. The theory is the closed form for infinite width and the same steps, applied to each "
        f"network's own initial outputs. (The variance after these steps differs from that at t = infinity by "
        f"{100 * gap:+.2g}%, apart from all that follows.)"
    )
    items: list[Item] = [
        introduction,
        *notes,
        _ratio_chart(groups),
        _error_chart(groups),
        _table(groups),
        _quantiles(groups),
    ]
    return Section(
        id=experiment,
        title="Theorem 1 on networks of finite width",
        items=items,
        summary=_summary(groups),
        rows=tuple(row["trial_id"] for row in own),
    )


def pooled(rows: Sequence[Row], name: str = "ratio") -> tuple[float, float]:
    """Mean over seeds and its standard error: over seeds where there are several, else the jackknife's."""
    values = np.array([row["result"][name] for row in rows], dtype=float)
    if len(values) > 1:
        return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
    own = rows[0]["result"].get(f"{name}_error")
    return float(values[0]), math.nan if own is None else float(own)


def law_test(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Expected and observed quantiles of the estimates, and the Kolmogorov-Smirnov statistic with its p-value.

    Estimates are divided by the theory's variance, so that they follow chi^2(M) / M at infinite width.
    """
    dof = rows[0]["result"]["dof"]
    observed = np.sort(np.concatenate([row["result"]["estimates"] for row in rows]))
    share = (np.arange(len(observed)) + 0.5) / len(observed)
    test = scipy.stats.kstest(dof * observed, scipy.stats.chi2(dof).cdf)
    return scipy.stats.chi2.ppf(share, dof) / dof, observed, float(test.statistic), float(test.pvalue)


def _name(method: str, count: int) -> str:
    return _NAMES[method].format(count)


def _lines(groups: Group, name: str) -> list[Series]:
    series = []
    for index, (method, count) in enumerate(dict.fromkeys((m, c) for m, c, _ in groups)):
        widths = [w for m, c, w in groups if (m, c) == (method, count)]
        found = [pooled(groups[method, count, w], name) for w in widths]
        spread = [0.0 if math.isnan(error) else error for _, error in found]
        mean = [value for value, _ in found]
        series.append(
            Series(
                _name(method, count),
                widths,
                mean,
                [m - s for m, s in zip(mean, spread, strict=True)],
                [m + s for m, s in zip(mean, spread, strict=True)],
                colour=index,
            )
        )
    return series


def _ratio_chart(groups: Group) -> Chart:
    series = _lines(groups, "ratio")
    widths = sorted({w for _, _, w in groups})
    one = Series("theory", [widths[0], widths[-1]], [1.0, 1.0], dashed=True, markers=False, colour="#888888")
    return Chart(
        "verify_ratio",
        "Variance of networks over that of the theory",
        "width",
        "variance ratio (paired)",
        [*series, one],
        alt="Lines of the variance ratio against width on logarithmic axes, approaching one as networks become wider.",
        caption="Mean over the surface; bands are one standard error (over seeds, or jackknife over networks).",
        log_x=True,
        log_y=True,
    )


def _error_chart(groups: Group) -> Chart:
    return Chart(
        "verify_error",
        "What the theory mispredicts",
        "width",
        "root mean square error over that of the change",
        _lines(groups, "error"),
        alt="Lines of the relative prediction error against width on logarithmic axes, falling.",
        caption="Error of the predicted output of each single network, relative to what training changed.",
        log_x=True,
        log_y=True,
    )


def _table(groups: Group) -> Table:
    body: list[list[Cell | str]] = []
    for (method, count, width), rows in groups.items():
        ratio, ratio_error = pooled(rows)
        error, _ = pooled(rows, "error")
        unpaired, unpaired_error = pooled(rows, "unpaired")
        *_, statistic, pvalue = law_test(rows)
        body.append(
            [
                _name(method, count),
                Cell(str(width), width),
                Cell(str(len(rows)), len(rows)),
                Cell(_with_error(ratio, ratio_error), ratio),
                Cell(f"{error:.3f}", error),
                Cell(_with_error(unpaired, unpaired_error), unpaired),
                Cell(f"{statistic:.2f}", statistic),
                Cell(f"{pvalue:.2g}", pvalue),
            ]
        )
    return Table(
        "verify_table",
        "Networks against the theory",
        ["networks", "width", "seeds", "variance ratio", "error", "ratio, unpaired", "KS statistic", "p"],
        body,
        caption=(
            "Variance ratio: from the same initial outputs. Unpaired: against the theory's own variance, with the "
            "sampling error of the initial draws. KS: estimates from groups of four against the scaled chi-square law."
        ),
        note="Heads of one trunk are coupled at finite width, so their estimates come out high and not independent.",
    )


def _with_error(value: float, error: float) -> str:
    return f"{value:.3f}" if math.isnan(error) else f"{value:.3f} ± {error:.3f}"


def _quantiles(groups: Group) -> Chart:
    series: list[Series] = []
    largest = 1.0
    for method in dict.fromkeys(m for m, _, _ in groups):
        # The widest networks, and of these the most.
        width, count = max((w, c) for m, c, w in groups if m == method)
        expected, observed, _, pvalue = law_test(groups[method, count, width])
        name = f"{_name(method, count)} (p = {pvalue:.2g})"
        series.append(Series(name, expected.tolist(), observed.tolist()))
        largest = max(largest, float(expected[-1]))
    series.append(Series("theory", [0.0, largest], [0.0, largest], dashed=True, markers=False, colour="#888888"))
    return Chart(
        "verify_quantiles",
        "Estimates of the variance from four networks or heads, against the chi-square law",
        "quantile of the law, over the variance",
        "estimate over the variance",
        series,
        alt="Quantile plot of variance estimates against the scaled chi-square law; the diagonal is agreement.",
        caption=(
            "At the point of the surface where the variance is largest, for the widest networks; p of a "
            "Kolmogorov-Smirnov test against the law."
        ),
    )


def _summary(groups: Group) -> str:
    sentences = []
    for method in dict.fromkeys(m for m, _, _ in groups):
        width, count = max((w, c) for m, c, w in groups if m == method)
        ratio, error = pooled(groups[method, count, width])
        sentences.append(
            f"{_name(method, count)} of width {width}: variance {_with_error(ratio, error)} of the theory's"
        )
    return "; ".join(sentences)
