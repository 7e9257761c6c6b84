"""`uvax inspect`: what is in a dataset or a run folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from uvax.commands.options import parse, to_toml
from uvax.commands.runs import CONFIG_FILE, read_run
from uvax.configs import flatten
from uvax.data import load


@dataclass(frozen=True)
class Options:
    path: Annotated[str, tyro.conf.Positional]
    """a dataset (file or folder) or a run folder"""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, command="inspect", description="Say what is in a dataset or run folder.")
    console = Console(highlight=False, soft_wrap=True)
    if (Path(options.path) / CONFIG_FILE).is_file():
        console.print(to_toml(flatten(read_run(options.path))), markup=False)
        return 0
    data = load(options.path)
    console.print(data.summary())
    console.print(to_toml(flatten(data.header)), markup=False)
    return 0
