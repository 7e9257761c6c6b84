"""`uvax collect`: make an offline dataset with the paper's online agent."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from uvax.collection import collect, preset_settings, replay
from uvax.commands.options import parse
from uvax.data import Dataset
from uvax.data.dataset import FILE_IN_FOLDER
from uvax.envs.go_to_door import GoToDoor
from uvax.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Options:
    out: str
    """folder for the dataset and, until it is finished, its checkpoints"""
    size: int = 5
    """largest width and height of the grid, walls included (the paper: 5 to 10)"""
    preset: str = "cpu"
    """smoke (seconds), cpu (minutes) or paper"""
    replay: str | None = None
    """file of recorded actions (actions.safetensors of an earlier collection): make its dataset again, to the last bit,
    in seconds; size, seed and settings are the recording's"""
    seed: int = 0
    resume: bool = False
    """go on with an interrupted collection; the result is the same to the last bit"""
    overwrite: bool = False
    """replace what is in the folder"""
    quiet: bool = False
    """no progress, no summary"""
    steps: int | None = None
    """transitions, instead of the preset's"""
    environments: int | None = None
    updates: int | None = None
    """gradient steps for each step of all environments"""
    epsilon_start: float | None = None
    epsilon_end: float | None = None
    epsilon_decay: float | None = None
    """share of the steps over which epsilon falls"""
    curriculum: float | None = None
    """share of the steps over which boards grow from the smallest to the full size"""
    width: int | None = None
    depth: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    gamma: float | None = None
    target_period: int | None = None
    target_lambda: float | None = None
    adam_epsilon: float | None = None


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, command="collect", description="Make an offline dataset with the online agent.")
    data = _collected(options) if options.replay is None else _replayed(options)
    if not options.quiet:
        console = Console()
        console.print(data.summary())
        score = data.header["greedy_policy_score"]
        console.print(
            f"Acting greedily on {score['episodes']:,} fresh episodes the collecting policy returns "
            f"{score['expert']:.2f} on south and west ({score['expert'] / score['expert_ceiling']:.0%} of the best "
            f"possible {score['expert_ceiling']:.2f}) and {score['other']:.2f} on north and east.",
            highlight=False,
        )
        console.print(f"Written to {options.out}/{FILE_IN_FOLDER}", highlight=False, soft_wrap=True)
    return 0


def _replayed(options: Options) -> Dataset:
    allowed = {"out", "replay", "resume", "overwrite", "quiet"}
    defaults = {f.name: f.default for f in dataclasses.fields(options) if f.name not in allowed}
    given = [name for name, value in defaults.items() if getattr(options, name) != value]
    if given:
        raise InvalidInput(
            f"--{given[0].replace('_', '-')} does not go with --replay, which takes everything from the recording"
        )
    assert options.replay is not None
    return replay(options.replay, out=options.out, resume=options.resume, overwrite=options.overwrite)


def _collected(options: Options) -> Dataset:
    env = GoToDoor(size=options.size)
    settings = preset_settings(options.preset, size=options.size)
    given = {name: value for name, value in vars(options).items() if value is not None}
    learner = {f.name: given[f.name] for f in dataclasses.fields(settings.dqn) if f.name in given}
    agent = {f.name: given[f.name] for f in dataclasses.fields(settings) if f.name in given and f.name != "steps"}
    settings = dataclasses.replace(settings, **agent, dqn=dataclasses.replace(settings.dqn, **learner))
    return collect(
        env,
        options.steps,
        seed=options.seed,
        settings=settings,
        out=options.out,
        resume=options.resume,
        overwrite=options.overwrite,
        progress=not options.quiet,
    )
