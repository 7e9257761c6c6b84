"""`uvax theory verify | diagnose`: Theorem 1 on networks, and convergence of TD on a dataset."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.table import Table as RichTable

from uvax.commands.options import parse
from uvax.commands.tables import rich_table
from uvax.errors import unknown_name
from uvax.experiments.content import Table

_COMMANDS = {
    "verify": "train networks of growing width on the chain and compare them with Theorem 1",
    "diagnose": "say whether TD by gradient descent converges on a dataset, how fast, and what is slow or unstable",
}


@dataclass(frozen=True, kw_only=True)
class Verify:
    preset: str = "cpu"
    """smoke (seconds), cpu (about ten minutes on one core) or paper"""
    methods: tuple[str, ...] = ("ensemble", "uvu")
    """ensemble, uvu or both"""
    seeds: int | None = None
    """number of seeds, instead of the preset's"""
    out: str = "results"
    """folder of the rows; finished trials in it are kept. Figures go to its subfolder theory"""


@dataclass(frozen=True, kw_only=True)
class Diagnose:
    data: str
    """a dataset: file or folder"""
    samples: int = 500
    """transitions to sample; the time grows with the third power"""
    policy: str = "uniform"
    """next actions: uniform, data (as taken in the dataset) or run:PATH (greedy in a trained run)"""
    kernel: str = "network"
    """network (empirical NTK of the paper's network at initialisation) or analytic (infinitely wide MLP)"""
    gamma: float = 0.9
    """discount"""
    ridge: float = 0.0
    """Delta + ridge I: weight decay towards the initial parameters"""
    learning_rate: float | None = None
    """of gradient descent on the mean loss; without one, the largest that converges is given"""
    width: int = 256
    """of the network"""
    depth: int = 3
    """hidden layers"""
    normalise: bool = True
    """the l2 normalisations of the paper's network"""
    sigma_w: float = 2.0**0.5
    """of the analytic kernel"""
    sigma_b: float = 0.1
    """of the analytic kernel"""
    modes: int = 5
    """how many slow or unstable directions to list"""
    seed: int = 0
    """of the sample and of the network"""
    out: str | None = None
    """folder for diagnosis.json and the plot of the spectrum (PNG and SVG)"""


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        listing = "\n".join(f"  {name:<12}{text}" for name, text in _COMMANDS.items())
        print(f"usage: uvax theory COMMAND [options]\n\nTD learning in the infinite-width limit.\n\n{listing}\n")
        print("uvax theory COMMAND --help says what it takes.")
        return 0 if argv else 2
    commands: dict[str, Callable[[Sequence[str]], int]] = {"verify": _verify, "diagnose": _diagnose}
    if argv[0] not in commands:
        raise unknown_name("command of uvax theory", argv[0], commands)
    return commands[argv[0]](argv[1:])


def _verify(argv: Sequence[str]) -> int:
    options = parse(Verify, argv, command="theory verify", description=f"{_COMMANDS['verify'].capitalize()}.")
    from uvax.experiments.theory_verify import Settings, run, section
    from uvax.report.build import write_figures

    settings = Settings(preset=options.preset, methods=options.methods, seeds=options.seeds)
    found = section(run(settings, options.out))
    assert found is not None  # there is at least one trial
    console = Console(highlight=False)
    for item in found.items:
        if isinstance(item, Table):
            console.print(rich_table(item))
    for sentence in found.summary.split("; "):
        console.print(sentence)
    written = write_figures([found], Path(options.out) / "theory")
    _say(f"{len(written)} figures in {Path(options.out) / 'theory'}; uvax report {options.out} makes the page")
    return 0


def _diagnose(argv: Sequence[str]) -> int:
    options = parse(Diagnose, argv, command="theory diagnose", description=f"{_COMMANDS['diagnose'].capitalize()}.")
    from uvax.data import load
    from uvax.experiments.theory_diagnose import Settings, run, spectrum_figure

    settings = Settings(**{f.name: getattr(options, f.name) for f in fields(Settings)})
    diagnosis = run(settings, load(options.data), say=_say)
    console = Console(highlight=False, soft_wrap=True)
    for sentence in diagnosis.sentences():
        console.print(sentence, markup=False)
    numbers = RichTable(show_header=False)
    for name, value in diagnosis.numbers().items():
        numbers.add_row(name, _short(value))
    console.print(numbers)
    console.print(rich_table(diagnosis.modes()))
    if options.out is not None:
        _write(Path(options.out), diagnosis, spectrum_figure(diagnosis))
    return 0


def _write(folder: Path, diagnosis: Any, figure: Any) -> None:
    from uvax.files import make_folder, write_atomic, write_json_atomic
    from uvax.report.figures import rendered

    values = diagnosis.stability.reduced_eigenvalues
    content = {
        "settings": vars(diagnosis.settings),
        "sentences": diagnosis.sentences(),
        "numbers": {name: _finite(value) for name, value in diagnosis.numbers().items()},
        "eigenvalues": {"real": values.real.tolist(), "imaginary": values.imag.tolist()},
        "rows": diagnosis.rows.tolist(),
    }
    make_folder(folder)
    write_json_atomic(folder / "diagnosis.json", content)
    for kind in ("png", "svg"):
        write_atomic(folder / f"spectrum.{kind}", partial(_fill, rendered(figure, kind)), overwrite=True)
    _say(f"written: {folder / 'diagnosis.json'}, {folder / 'spectrum.png'}, {folder / 'spectrum.svg'}")


def _fill(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _finite(value: Any) -> Any:
    """NaN and infinity are not JSON."""
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
