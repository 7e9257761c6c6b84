"""`uvax train`: one method on one dataset, with evaluations on the way."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from rich.console import Console

from uvax.commands.options import merge, parse, read_toml, to_toml, with_settings
from uvax.commands.runs import environment
from uvax.data import load
from uvax.envs import GoToDoor
from uvax.errors import InvalidInput
from uvax.estimators import METHODS, config, from_config
from uvax.evaluation import evaluate
from uvax.experiments.presets import preset_hyperparameters, preset_training
from uvax.experiments.trial import evaluation_key
from uvax.training import TrainingInterrupted, fit


@dataclass(frozen=True, kw_only=True)
class Options:
    method: str = "uvu"
    """dqn, bdqnp, bdqnp3, bdqnp15, bdqnp35, dqn-rnd, dqn-rnd-p or uvu"""
    data: str = ""
    """dataset: the folder that `uvax collect` made, or a file"""
    out: str = ""
    """folder for the run: configuration, log, checkpoints, trained models"""
    preset: str = "cpu"
    """smoke, cpu or paper: defaults of everything below"""
    config: str | None = None
    """TOML file with any of these settings; what is given on the command line wins"""
    print_config: bool = False
    """print the settings as TOML and stop"""
    seed: int = 0
    steps: int | None = None
    """gradient steps, instead of the preset's"""
    evaluations: int | None = None
    """evaluations on the way, equally spaced; 0: none"""
    evaluation_episodes: int | None = None
    resume: bool = False
    """go on with an interrupted run; the result is the same to the last bit"""
    overwrite: bool = False
    """replace the run in the folder"""
    quiet: bool = False
    """no progress"""
    tensorboard: bool = False
    """write TensorBoard files too (pip install uvax[tensorboard])"""


def main(argv: Sequence[str]) -> int:
    options, estimator = read(argv)
    if options.print_config:
        print(to_toml(_plain(options, estimator)), end="")
        return 0
    for name in ("data", "out"):
        if not getattr(options, name):
            raise InvalidInput(f"--{name} is missing (uvax train --help lists the options)")
    data = load(options.data)
    training = preset_training(options.preset, _board_size(data.header))
    evaluations = training.evaluations if options.evaluations is None else options.evaluations
    episodes = options.evaluation_episodes or training.evaluation_episodes
    hook = None
    if evaluations:
        env, key = environment(data.header, options.data), evaluation_key(options.seed)

        def hook(estimator: Any, state: Any, step: int) -> dict[str, float]:
            numbers = evaluate(estimator, state, env, key=key, episodes=episodes, reject=4)
            return {name: float(value) for name, value in jax.device_get(numbers).items()}

    try:
        trained = fit(
            estimator,
            data,
            options.steps or training.steps,
            seed=options.seed,
            evaluate=hook,
            evaluations=max(evaluations, 1),
            out=options.out,
            resume=options.resume,
            overwrite=options.overwrite,
            progress=not options.quiet,
            tensorboard=options.tensorboard,
        )
    except TrainingInterrupted as stop:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"uvax: {stop or 'interrupted'}; go on with the same command and --resume", highlight=False)
        return 130
    except InvalidInput as error:
        words = str(error).replace("resume=True", "--resume").replace("overwrite=True", "--overwrite")
        raise InvalidInput(words) from None
    if not options.quiet:
        said = Console(highlight=False, soft_wrap=True)
        said.print(str(trained.status))
        if hook is not None:
            said.print(f"Best evaluation: return {trained.best.score:.2f} at step {trained.best.step:,}.")
        said.print(f"Written to {options.out}; score it with: uvax evaluate --run {options.out}")
    return 0


def read(argv: Sequence[str]) -> tuple[Options, Any]:
    """Options and estimator: the command line over the TOML file over the preset."""
    first = Options(**_peek(argv, "method", "preset", "config", "data"))
    values = read_toml(first.config) if first.config else {}
    plain = {f.name for f in dataclasses.fields(Options)}
    first = merge(first, {k: v for k, v in values.items() if k in plain}, str(first.config))
    first = dataclasses.replace(first, **_peek(argv, "method", "preset", "config", "data"))
    size = _board_size(load(first.data, verify=False).header) if first.data else None
    if first.method not in METHODS:
        preset_hyperparameters(first.preset, first.method)  # says so, with the close ones
    estimator = from_config(preset_hyperparameters(first.preset, first.method, size))
    estimator = merge(estimator, {k: v for k, v in values.items() if k not in plain}, str(first.config))
    every = with_settings(Options, estimator)
    names = {f.name for f in dataclasses.fields(every)}
    default = every(**vars(first), **{k: v for k, v in vars(estimator).items() if k in names})
    description = f"Train one method on a dataset. Hyperparameters are those of {type(estimator).__name__}."
    given = parse(every, argv, command="train", description=description, default=default)
    chosen = {f.name: getattr(given, f.name) for f in dataclasses.fields(estimator) if hasattr(given, f.name)}
    options = Options(**{name: getattr(given, name) for name in plain})
    return options, dataclasses.replace(estimator, **chosen)


def _board_size(header: Mapping[str, Any]) -> int | None:
    """The size of GoToDoor's board, which presets go by."""
    described = header.get("environment") or {}
    return described.get("size") if described.get("name") == GoToDoor.name else None


def _peek(argv: Sequence[str], *names: str) -> dict[str, Any]:
    """The values of a few options before the rest can be parsed: they decide what the rest is."""
    found: dict[str, Any] = {}
    for at, word in enumerate(argv):
        for name in names:
            if word == f"--{name}" and at + 1 < len(argv):
                found[name] = argv[at + 1]
            elif word.startswith(f"--{name}="):
                found[name] = word.split("=", 1)[1]
    return found


def _plain(options: Options, estimator: Any) -> dict[str, Any]:
    hidden = ("print_config", "config", "resume", "overwrite")
    settings = {name: value for name, value in vars(options).items() if name not in hidden}
    hyperparameters = {k: v for k, v in config(estimator).items() if k not in ("class", "bootstrap")}
    return {**settings, **hyperparameters}
