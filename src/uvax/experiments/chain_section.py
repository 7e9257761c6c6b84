"""What the rows of `chain` show: tables that recover g or do not, surfaces beside the closed form, and RND."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from uvax.experiments import analysis, chain_figures
from uvax.experiments.analysis import Row
from uvax.experiments.chain import correlation
from uvax.experiments.content import Cell, Figure, Item, Layer, Section, Surfaces, Table

_STATES = {"c0": "one-hot states", "c1": "states as one number"}


def chain_section(rows: Sequence[Row], experiment: str) -> Section | None:
    """The section of all chains that have rows; None without any."""
    own, notes = analysis.of_experiment(rows, experiment)
    if not own:
        return None
    groups, dropped = analysis.cells(own, "chain", "method")
    items: list[Item] = [_INTRODUCTION, *notes, *dropped]
    said: list[str] = []
    if tables := groups.get((None, "tabular")):
        items += [_tables_figure(tables[0]), _tables_table(tables[0])]
        said.append(_tables_sentence(tables[0]))
    for chain in sorted({str(name) for name, _ in groups if name is not None}):
        found = {method: group for (name, method), group in groups.items() if name == chain}
        items += _chain_items(chain, found)
        said += _chain_sentences(chain, found)
    return Section(
        id=experiment,
        title="The chain: what UVU is uncertain about (Section 3)",
        items=items,
        summary="; ".join(said),
        rows=tuple(row["trial_id"] for row in own),
    )


_INTRODUCTION = (
    "A chain of states; the data hold action a only. The policy for z takes a with probability z, and otherwise b, "
    "which nobody has tried. How uncertain is the value of a? States are numbered from 1, as in the paper."
)


def _tables_figure(row: Row) -> Figure:
    config, result = row["config"], row["result"]
    return Figure(
        id="chain_tables",
        title='Tabular UVU (Figures "chainmdp" and "toy_viz")',
        alt=(
            f"Above: the chain, drawn for two policies. Below: {config['tables']} tables u and g over the states. For "
            f"the data policy u equals g; for the policy that takes b in s{config['leaves']} they differ before it."
        ),
        caption=(
            f"{config['tables']} independent tables, gamma {config['gamma']}, the same initial u and g on both sides. "
            f"Left: u recovers g. Right: b in s{config['leaves']} is not in the data, so earlier entries learn from "
            "an entry that stays as it was drawn; u differs from g although both have no TD error."
        ),
        static=partial(chain_figures.draw_tables, result, leaves=config["leaves"]),
    )


def _tables_table(row: Row) -> Table:
    body: list[list[Cell | str]] = []
    states = row["config"]["length"]
    for policy, name in (("data", "data policy"), ("leaves", f"b in s{row['config']['leaves']}")):
        found = row["result"][policy]
        uncertainty = [line[0] for line in found["uncertainty"]]
        body.append(
            [
                name,
                *(Cell(_short(found[key]), found[key]) for key in ("td_error_u", "td_error_g", "difference")),
                *(Cell(f"{v:.3f}", v) for v in uncertainty),
            ]
        )
    return Table(
        "chain_tables_table",
        "Tabular UVU against the linear solve",
        ["policy", "TD error of u", "TD error of g", "from exact", *(f"at s{s + 1}" for s in range(states))],
        body,
        caption=(
            "Largest TD errors on the data, largest distance from the exact solution, and the uncertainty "
            "1/2 mean (u - g)^2 over the tables at action a. Trained in single precision."
        ),
    )


def _tables_sentence(row: Row) -> str:
    config, result = row["config"], row["result"]
    recovered = max(abs(line[0]) for line in result["data"]["uncertainty"])
    left = max(line[0] for line in result["leaves"]["uncertainty"])
    return (
        f"Tabular UVU recovers g for the data policy (uncertainty at most {_short(recovered)}) and not where b in "
        f"s{config['leaves']} cuts the data off (up to {left:.2f}), both with no TD error"
    )


Group = dict[str, list[Row]]  # rows of a method, by seed


def _chain_items(chain: str, found: Group) -> list[Item]:
    theory = found.get("theory")
    if theory is None:
        return [f"The closed form of chain {chain} has no row yet; run uvax experiment chain --chains {chain}."]
    config = theory[0]["config"]
    z = np.linspace(0.0, 1.0, config["test_z"])
    suffix = "" if chain == "c0" else f"_{chain}"
    title = f"chain {chain}"
    layers = _layers(found)
    by_name = {layer.name: layer.values for layer in layers}
    trained = [(name, by_name[name]) for name in map(partial(_name, found), ("ensemble", "uvu")) if name in by_name]
    items: list[Item] = [_setting_sentence(chain, config, found)]
    if trained:
        items.append(
            Figure(
                id=f"chain_surfaces{suffix}",
                title=f'Uncertainty over states and policies (Figure "toyvariances"), {title}',
                alt=(
                    "Surfaces over state and z, two views of each: of the ensemble, of UVU and in closed form. All are "
                    "highest for early states and small z and fall to zero at z = 1 and towards the end of the chain."
                ),
                caption=(
                    "Variance of the value of action a, from two sides, on one scale; seed 0. The closed form "
                    "(Theorem 1, infinite width and time) is not in the paper."
                ),
                static=partial(
                    chain_figures.draw_surfaces,
                    [*trained, ("closed form", by_name["closed form"])],
                    z,
                    label=r"variance of $Q(s, a, z)$",
                ),
            )
        )
    items.append(
        Surfaces(
            id=f"chain_explorer{suffix}",
            title=f"The surfaces to turn and to read, {title}",
            x_label="state",
            x=[f"s{s + 1}" for s in range(config["length"])],
            y_label="z",
            y=[round(float(v), 6) for v in z],
            layers=layers,
            alt=f"Uncertainty over state and z on chain {chain}",
            caption=(
                "Seed 0, action a. Variances share one scale, RND's quantities another. The cuts go through the "
                "chosen point; the dashed line is the closed form."
            ),
        )
    )
    if trained:
        items.append(_comparison(f"chain_comparison{suffix}", title, found))
    intrinsic = _rnd_layers(found)
    if len(intrinsic) == 3:
        items.append(
            Figure(
                id=f"chain_rnd{suffix}",
                title=f'RND on the same chain (Figure "toyvariance_rnd"), {title}',
                alt=(
                    "Three rows of surfaces over state and z. RND errors are flat at zero; the intrinsic Q is low and "
                    "without a pattern; with intrinsic reward priors it is highest for early states and small z."
                ),
                caption=(
                    "Rows as in the paper's caption (its text swaps the last two): RND errors, the intrinsic Q, the "
                    "intrinsic Q with intrinsic reward priors; in units of RND's error, on one scale, seed 0. Without "
                    "the priors the error of b, not in the data, is never asked for, and the intrinsic Q is what its "
                    "initial values left."
                ),
                static=partial(
                    chain_figures.draw_rows,
                    [(layer.name, layer.values) for layer in intrinsic],
                    z,
                    label="in units of RND's error",
                ),
            )
        )
        items.append(_rnd_table(f"chain_rnd_table{suffix}", title, found))
    return items


def _name(found: Group, method: str) -> str:
    count = found[method][0]["config"]["count"] if method in found else 0
    return f"ensemble of {count}" if method == "ensemble" else f"UVU, {count} heads"


def _layers(found: Group) -> list[Layer]:
    layers = [Layer("closed form", found["theory"][0]["result"]["uncertainty"], "variance", reference=True)]
    for method in ("ensemble", "uvu"):
        if method in found:
            layers.append(Layer(_name(found, method), found[method][0]["result"]["uncertainty"], "variance"))
    return layers + _rnd_layers(found)


def _rnd_layers(found: Group) -> list[Layer]:
    """In the order of the paper's caption."""
    layers = []
    if plain := found.get("dqn-rnd"):
        result = plain[0]["result"]
        layers += [Layer("RND errors", result["error"], "RND"), Layer("intrinsic Q", result["uncertainty"], "RND")]
    if prior := found.get("dqn-rnd-p"):
        name = "intrinsic Q with intrinsic reward priors"
        layers.append(Layer(name, prior[0]["result"]["uncertainty"], "RND"))
    return layers


def _setting_sentence(chain: str, config: dict[str, Any], found: Group) -> str:
    sizes = [
        f"{_name(found, method)} of width {found[method][0]['config']['width']}"
        for method in ("ensemble", "uvu")
        if method in found
    ]
    z = ", ".join(f"{v:g}" for v in config["train_z"])
    layers = f"{config['depth']} hidden layer{'s' if config['depth'] > 1 else ''}"
    return (
        f"Chain {chain}: {config['length']} states ({_STATES[chain]}), gamma {config['gamma']}, data for z = {z}. "
        f"Networks with {layers} in the setting of Theorem 1 (NTK parametrisation, the whole batch, plain gradient "
        f"descent), {config['steps']:,} steps{': ' if sizes else ''}{'; '.join(sizes)}."
    )


def _pair(found: Group) -> list[tuple[float, float]]:
    """Correlation and ratio of UVU's surface with the ensemble's, for every seed that has both."""
    ensembles = {row["seed"]: np.array(row["result"]["uncertainty"]) for row in found.get("ensemble", [])}
    surfaces = [(row["seed"], np.array(row["result"]["uncertainty"])) for row in found.get("uvu", [])]
    both = [(ensembles[seed], surface) for seed, surface in surfaces if seed in ensembles]
    return [(correlation(u, e), float(u.mean() / e.mean())) for e, u in both]


def _comparison(id: str, title: str, found: Group) -> Table:
    body: list[list[Cell | str]] = []
    for method in ("ensemble", "uvu"):
        if method not in found:
            continue
        rows = found[method]
        body.append(
            [
                f"{_name(found, method)} / closed form",
                Cell(str(rows[0]["config"]["width"]), rows[0]["config"]["width"]),
                Cell(str(len(rows)), len(rows)),
                _spread(analysis.numbers(rows, "correlation"), 3),
                *(_spread(analysis.numbers(rows, key), 2) for key in ("ratio", "difference")),
                _spread(analysis.numbers(rows, "covered")),
            ]
        )
    if pairs := _pair(found):
        close, ratio = zip(*pairs, strict=True)
        numbers = (_spread(close, 3), _spread(ratio, 2))
        body.append(["UVU / ensemble", "", Cell(str(len(pairs)), len(pairs)), *numbers, "", ""])
    return Table(
        id,
        f"Surfaces against the closed form, {title}",
        ["surfaces", "width", "seeds", "correlation", "ratio", "largest difference", "at z = 1"],
        body,
        caption=(
            "Correlation over all points; ratio of the means; largest difference over the largest variance of the "
            "closed form; the largest uncertainty at z = 1 over the largest of all. Mean over seeds, and their range."
        ),
        note=(
            "Members and heads are few enough for sampling errors of about 12%. All heads share one trunk, and with it "
            "one draw of the finite-width kernel, so UVU's ratio varies more between seeds and is high on average."
        ),
    )


def _rnd_table(id: str, title: str, found: Group) -> Table:
    body: list[list[Cell | str]] = []
    for method, key, name in (
        ("dqn-rnd", "error", "RND errors"),
        ("dqn-rnd", "uncertainty", "intrinsic Q"),
        ("dqn-rnd-p", "uncertainty", "intrinsic Q with intrinsic reward priors"),
    ):
        surfaces = [np.array(row["result"][key]) for row in found[method]]
        closed = np.array(found["theory"][0]["result"]["uncertainty"])
        body.append(
            [
                name,
                Cell(str(len(surfaces)), len(surfaces)),
                _spread([float(s.min()) for s in surfaces]),
                _spread([float(s.max()) for s in surfaces]),
                _spread([correlation(s, closed) for s in surfaces], 2),
            ]
        )
    return Table(
        id,
        f"RND's quantities, {title}",
        ["quantity", "seeds", "lowest", "highest", "correlation with the value's variance"],
        body,
        caption="Over all states and z, action a, in units of RND's error. Mean over seeds, and their range.",
    )


def _chain_sentences(chain: str, found: Group) -> list[str]:
    said = []
    for method in ("ensemble", "uvu"):
        if method in found and "theory" in found:
            close, ratio = (analysis.numbers(found[method], key) for key in ("correlation", "ratio"))
            name = f"Chain {chain}, {_name(found, method)} against the closed form"
            said.append(f"{name}: correlation {_said(close)}, ratio {_said(ratio, 2)}")
    return said


def _said(values: Sequence[float], digits: int = 3) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _spread(values: Sequence[float], digits: int | None = None) -> Cell:
    """Mean over seeds and their range."""
    if not values:
        return Cell("–", None, "missing")
    mean = float(np.mean(values))
    shown = _said(values, digits) if digits is not None else _short(mean)
    if digits is None and len(values) > 1:
        shown += f" ({_short(min(values))} to {_short(max(values))})"
    return Cell(shown, mean)


def _short(value: float) -> str:
    return "0" if value == 0 or math.isnan(value) else f"{value:.2g}"
