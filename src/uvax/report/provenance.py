"""Where every number comes from: commands, configurations, versions, machines, datasets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uvax.experiments import paper
from uvax.experiments.content import Cell, Table
from uvax.experiments.rows import trial_id

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Provenance:
    """Sentences, tables, and long texts to unfold."""

    texts: list[str]
    tables: list[Table]
    details: list[tuple[str, str]]


def provenance(rows: Sequence[Row], problems: Sequence[str], failed: Sequence[Mapping[str, Any]]) -> Provenance:
    """`problems` are sentences about rows that were left out, `failed` the records of trials that never finished."""
    texts = [
        "Every number on this page is computed from rows, one for each finished trial; a row holds its whole "
        "configuration, its seed and where it was made. The same rows give the same page."
    ]
    details = [
        ("Configurations", _configurations(rows)),
        ("Trials", _trials(rows)),
        ("Commands", "\n".join(dict.fromkeys(str(row["provenance"].get("command")) for row in rows))),
    ]
    if problems:
        texts.append(f"Lines that could not be used and are left out: {len(problems)}; they are named below.")
        details.insert(0, ("Rows left out", "\n".join(problems)))
    tables = [_experiments(rows)]
    if datasets := _datasets(rows):
        tables.append(datasets)
    done = {row["trial_id"] for row in rows}
    lost = {entry["trial_id"]: entry for entry in failed if entry.get("trial_id") not in done}
    if lost:
        texts.append(f"Trials that failed and have no row: {len(lost)}; what is shown is made without them.")
        tables.append(_failures(list(lost.values())))
    return Provenance(texts, tables, details)


def _experiments(rows: Sequence[Row]) -> Table:
    body: list[list[Cell | str]] = []
    for name in dict.fromkeys(row["experiment"] for row in rows):
        own = [row for row in rows if row["experiment"] == name]
        about = [row["provenance"] for row in own]
        reused = sum("reused_from" in p for p in about)
        hours = sum(p.get("seconds") or 0 for p in about if "reused_from" not in p) / 3600
        body.append(
            [
                name,
                Cell(str(len(own)), len(own)),
                Cell(str(reused), reused),
                Cell(f"{hours:.2f}", hours),
                _days(about),
                Cell(_distinct(about, "commit", 12), mark="words"),
                Cell(
                    ", ".join(f"{n} {_distinct(about, n)}" for n in ("uvax", "jax", "python")),
                    mark="words",
                ),
                Cell("; ".join(filter(None, (_distinct(about, "cpu"), _distinct(about, "device")))), mark="words"),
            ]
        )
    return Table(
        id="provenance-experiments",
        title="Rows by experiment",
        columns=["experiment", "rows", "taken over", "hours of trials", "made", "commit", "versions", "hardware"],
        rows=body,
        caption="Taken over: run for another experiment with the same configuration and seed. Hours: the sum over "
        "trials, several of which ran at a time.",
    )


def _datasets(rows: Sequence[Row]) -> Table | None:
    found: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for row in rows:
        about = row["result"].get("dataset")
        if isinstance(about, Mapping):
            found.setdefault(str(row["config"].get("dataset")), (row["config"].get("size"), about))
    if not found:
        return None
    body: list[list[Cell | str]] = []
    for checksum, (size, about) in sorted(found.items(), key=lambda item: (str(item[1][0]).zfill(3), item[0])):
        score = about.get("greedy_policy_score") or {}
        learner = (about.get("collection") or {}).get("dqn") or {}
        body.append(
            [
                Cell(str(size), size),
                checksum[:12],
                Cell(f"{about.get('transitions', 0):,}", about.get("transitions")),
                Cell(str(about.get("seed")), about.get("seed")),
                Cell(str(learner.get("width", "–")), learner.get("width")),
                *(
                    Cell("–" if score.get(name) is None else f"{score[name]:.2f}", score.get(name))
                    for name in ("expert", "expert_ceiling", "other", "other_ceiling")
                ),
            ]
        )
    return Table(
        id="provenance-datasets",
        title="Datasets",
        columns=[
            "size",
            "checksum",
            "transitions",
            "seed",
            "width",
            "south, west",
            "best possible",
            "north, east",
            "best possible ",
        ],
        rows=body,
        caption="What the collecting policy returns without exploration, by the wall of the target door, beside an "
        "optimal policy. All trials of a size share one dataset.",
    )


def _failures(entries: Sequence[Mapping[str, Any]]) -> Table:
    body: list[list[Cell | str]] = [
        [str(e.get("title")), str(e.get("experiment")), str(e.get("attempts")), Cell(str(e.get("error")), mark="words")]
        for e in entries
    ]
    return Table(
        id="provenance-failed",
        title="Trials that failed",
        columns=["trial", "experiment", "attempts", "why"],
        rows=body,
        caption="Running the experiment again tries them again.",
    )


def _configurations(rows: Sequence[Row]) -> str:
    """Every configuration once, with the seeds it was run with."""
    groups: dict[str, tuple[Row, list[int]]] = {}
    for row in rows:
        groups.setdefault(trial_id(row["experiment"], row["config"], 0), (row, []))[1].append(row["seed"])
    lines = []
    for row, seeds in groups.values():
        lines.append(f"{row['experiment']}, seeds {', '.join(map(str, sorted(seeds)))}: {json.dumps(row['config'])}")
    return "\n".join(lines)


def _trials(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        config, about = row["config"], row["provenance"]
        method = paper.label(str(config.get("method", config.get("kind"))))
        origin = f", from {about['reused_from']}" if "reused_from" in about else ""
        lines.append(
            f"{row['trial_id']}  {row['experiment']:<10} {method:<10} size {config.get('size', '–')} "
            f"seed {row['seed']}: {row['result'].get('status', '')}, {about.get('seconds', 0):.0f} s, commit "
            f"{str(about.get('commit'))[:12]}{origin}"
        )
    return "\n".join(lines)


def _distinct(about: Sequence[Mapping[str, Any]], name: str, length: int = 60) -> str:
    values = dict.fromkeys(str(p[name])[:length] for p in about if p.get(name))
    return ", ".join(values)


def _days(about: Sequence[Mapping[str, Any]]) -> str:
    days = sorted(str(p[name])[:10] for p in about for name in ("started", "finished") if p.get(name))
    return "–" if not days else days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
