"""`uvax experiment chain`: the chain of Section 3 with its figures, and how networks compare with Theorem 1."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uvax.commands import experiment
from uvax.commands.options import parse
from uvax.commands.tables import rich_table
from uvax.experiments.experiment import MODULES


@dataclass(frozen=True, kw_only=True)
class Options:
    preset: str = "cpu"
    """smoke (a minute), cpu (a few minutes on two cores) or paper"""
    chains: tuple[str, ...] = ("c0",)
    """c0 (one-hot states, one hidden layer, gamma 0.9), c1 (states as a number, three layers, gamma 0.7) or both"""
    seeds: int | None = None
    """number of seeds, instead of the preset's"""
    results: str = "results"
    """folder of the rows; finished trials in it are kept. Figures go to its subfolder chain"""
    workers: int | None = None
    """trials at a time; the default is one for each core"""
    threads: int = 1
    """threads of each trial"""
    retries: int = 2
    """attempts after a crash before a trial counts as failed"""
    nice: int = 0
    """lower the priority of the trials by this much"""
    dry_run: bool = False
    """say what would run, how long it would take and where results go, and stop"""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, command="experiment chain", description=f"{MODULES['chain'][1]}.")
    from rich.console import Console

    from uvax.experiments import chain
    from uvax.experiments.content import Table
    from uvax.experiments.run import read_rows
    from uvax.report.build import write_figures

    common = {name: value for name, value in asdict(options).items() if name != "chains"}
    code = experiment.run_experiment(chain.experiment(options.chains), experiment.Options(**common))
    if code or options.dry_run:
        return code
    found = chain.section(read_rows(Path(options.results))[0])
    assert found is not None  # every trial has its row
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for item in found.items:
        if isinstance(item, Table):
            console.print(rich_table(item))
    for sentence in found.summary.split("; "):
        console.print(sentence, markup=False)
    folder = Path(options.results) / "chain"
    print(f"{len(write_figures([found], folder))} figures, PNG and SVG, in {folder}", file=sys.stderr)
    return 0
