"""`uvax evaluate`: task rejection with a trained run, on fresh boards."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from uvax.commands.options import parse
from uvax.commands.runs import environment, read_run
from uvax.configs import read_json
from uvax.errors import InvalidInput, unknown_name
from uvax.evaluation import task_rejection
from uvax.files import write_json_atomic
from uvax.training import load_fit

_MODELS = {"best": "best.safetensors", "last": "model.safetensors"}


@dataclass(frozen=True, kw_only=True)
class Options:
    run: str
    """folder of a finished `uvax train`"""
    episodes: int = 2_000
    """fresh boards to play"""
    reject: int = 4
    """tasks to reject of six"""
    which: str = "best"
    """best: the checkpoint with the highest evaluation; last: the end of training"""
    seed: int = 1
    """which boards; the same for every method"""
    overwrite: bool = False
    """play again even if this evaluation is already there"""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, command="evaluate", description="Score a trained run by task rejection.")
    if options.which not in _MODELS:
        raise unknown_name("checkpoint", options.which, _MODELS)
    config = read_run(options.run)
    env = environment(config["dataset"]["header"], options.run)
    folder = Path(options.run)
    out = folder / f"evaluation-{options.which}-{options.episodes}-{options.reject}-{options.seed}.json"
    console = Console(highlight=False, soft_wrap=True)
    if out.exists() and not options.overwrite:
        console.print(f"Already evaluated; --overwrite plays again. From {out}:")
        console.print_json(json.dumps(read_json(out)))
        return 0
    model = folder / _MODELS[options.which]
    if not model.exists():
        raise InvalidInput(f"{options.run} is not finished (no {model.name}); go on with uvax train ... --resume")
    result = task_rejection(load_fit(model), env, options.reject, options.episodes, options.seed)
    console.print(result)
    write_json_atomic(out, {"options": vars(options), "result": result.row()})
    console.print(f"Written to {out}")
    return 0
