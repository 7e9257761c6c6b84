"""`uvax demo`: the paper's effect in minutes, from nothing to a report."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from uvax.commands.options import parse
from uvax.errors import InvalidInput
from uvax.experiments import analysis
from uvax.experiments.executors import LocalExecutor
from uvax.experiments.experiment import Settings
from uvax.experiments.run import Places, make_plan, read_rows, run
from uvax.experiments.table1 import EXPERIMENT

_METHODS = ("dqn", "bdqnp3", "uvu")
_REPORT = "report.html"


@dataclass(frozen=True, kw_only=True)
class Options:
    out: str = "demo"
    """folder for the dataset, the rows and the report"""
    preset: str = "cpu"
    """cpu (minutes) or smoke (seconds: shows that everything runs, learns nothing)"""
    size: int = 5
    seeds: int = 1
    workers: int | None = None
    """trials at a time; the default is one for each core"""
    resume: bool = False
    """go on with what is in the folder; what is finished is not done again"""


def main(argv: Sequence[str]) -> int:
    description = "Collect a dataset, train DQN, BDQNP(3) and UVU on it, score them by task rejection, write a report."
    options = parse(Options, argv, command="demo", description=description)
    folder = Path(options.out)
    if folder.exists() and any(folder.iterdir()) and not options.resume:
        raise InvalidInput(f"{folder} exists; go on with --resume, or choose another folder with --out")
    begun = time.monotonic()
    places = Places(data=folder / "data", results=folder / "results")
    settings = Settings(preset=options.preset, sizes=(options.size,), methods=_METHODS, seeds=options.seeds)
    plan = make_plan(EXPERIMENT, settings, places)
    executor = LocalExecutor(places.results, workers=options.workers)
    try:
        for sentence in plan.sentences(executor):
            _say(sentence)
        summary = run(plan, executor, say=_say)
    except KeyboardInterrupt:
        _say(f"uvax: stopped; go on with: uvax demo --out {options.out} --resume")
        return 130
    finally:
        executor.stop()
    if summary.failed:
        for sentence in summary.failed:
            _say(sentence)
        return 1
    rows, problems = read_rows(places.results)
    for problem in problems:
        _say(f"left out: {problem}")
    Console().print(_table(rows, options))
    report = _write_report(rows, folder / _REPORT, options)
    print(f"\nThe report is in {report}: open it in a browser. {(time.monotonic() - begun) / 60:.1f} minutes.")
    return 0


def _table(rows: list[dict], options: Options) -> Table:
    """The headline: what each method returned on fresh boards, and why."""
    ceiling = rows[0]["result"]["ceiling"]["mean"]
    table = Table(
        title=f"Task rejection, GoToDoor size {options.size}: best checkpoint on fresh boards",
        caption=f"The best possible return is {ceiling:.2f}. Shares are of the tasks the agent chose to attempt.",
    )
    names = ("method", "return", "expert walls", "other walls", "impossible")
    for name in names:
        table.add_column(name, justify="left" if name == "method" else "right")
    for method in analysis.ordered_methods({row["config"]["method"] for row in rows}):
        mine = [row for row in rows if row["config"]["method"] == method]
        finals = [row["result"]["final"] for row in mine]

        def mean(of, finals=finals) -> float:
            return sum(of(final) for final in finals) / len(finals)

        table.add_row(
            method,
            f"{mean(lambda f: f['return']):.2f}",
            f"{mean(lambda f: f['attempt_south'] + f['attempt_west']):.0%}",
            f"{mean(lambda f: f['attempt_north'] + f['attempt_east']):.0%}",
            f"{mean(lambda f: f['attempt_impossible']):.1%}",
        )
    return table


def _write_report(rows: list[dict], path: Path, options: Options) -> Path:
    from uvax.report import build

    build(rows, path, title=f"uvax demo: GoToDoor size {options.size}")
    return path


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
