"""`uvax experiment NAME`: run the trials behind a table or figure of the paper."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uvax.commands.options import parse
from uvax.errors import InvalidInput, unknown_name
from uvax.experiments import experiment as experiments

_DESCRIPTION = "Run the trials behind a table or figure of the paper; finished ones are kept."


@dataclass(frozen=True, kw_only=True)
class Options:
    preset: str = "cpu"
    """smoke (seconds per trial), cpu (minutes) or paper"""
    sizes: tuple[int, ...] | None = None
    """board sizes, instead of the experiment's own"""
    methods: tuple[str, ...] | None = None
    """methods, instead of the experiment's own"""
    seeds: int | None = None
    """number of seeds, instead of the experiment's own"""
    data_dir: str = "data"
    """folder of the datasets, one for each size; a missing one is collected first"""
    results: str = "results"
    """folder of the rows"""
    executor: str = "local"
    """local (processes of this machine) or ray"""
    workers: int | None = None
    """local: trials at a time; the default is one for each core"""
    threads: int = 1
    """local: threads of each trial"""
    address: str | None = None
    """ray: address of a running cluster; without one, a cluster of this machine is started"""
    cpus_per_trial: float = 1.0
    """ray: CPUs that a trial reserves"""
    gpus_per_trial: float = 0.0
    """ray: GPUs that a trial reserves"""
    retries: int = 2
    """attempts after a crash before a trial counts as failed"""
    nice: int = 0
    """local: lower the priority of the trials by this much"""
    dry_run: bool = False
    """say what would run, how long it would take and where results go, and stop"""


def main(argv: Sequence[str]) -> int:
    name, rest = _name(argv)
    if name == "chain":  # has choices of its own, and prints and draws what it found
        from uvax.commands import chain

        return chain.main(rest)
    module = experiments.module(name)
    options = parse(Options, rest, command=f"experiment {name}", description=f"{experiments.MODULES[name][1]}.")
    return run_experiment(module.EXPERIMENT, options)


def _name(argv: Sequence[str]) -> tuple[str, list[str]]:
    listing = "\n".join(f"  {name:<12}{text}" for name, (_, text) in experiments.MODULES.items())
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: uvax experiment NAME [options]\n\n{_DESCRIPTION}\n\nexperiments:\n{listing}\n")
        print("uvax experiment NAME --help says what it takes.")
        raise SystemExit(0 if argv else 2)
    if argv[0].startswith("-"):
        raise InvalidInput(f"the name of the experiment comes first: one of {', '.join(experiments.MODULES)}")
    if argv[0] not in experiments.MODULES:
        raise unknown_name("experiment", argv[0], experiments.MODULES)
    return argv[0], list(argv[1:])


def run_experiment(experiment: experiments.Experiment, options: Options) -> int:
    """Run what is missing; the exit code."""
    from uvax.experiments.run import Places, make_plan, run

    settings = experiments.Settings(
        preset=options.preset, sizes=options.sizes, methods=options.methods, seeds=options.seeds
    )
    places = Places(data=Path(options.data_dir), results=Path(options.results))
    plan = make_plan(experiment, settings, places)
    for problem in plan.problems:
        _say(f"left out: {problem}")
    executor = _executor(experiment, options, places)
    try:
        for sentence in plan.sentences(executor):
            _say(sentence)
        if options.dry_run:
            return 0
        summary = run(plan, executor, retries=options.retries, nice=options.nice, say=_say)
    except KeyboardInterrupt:
        _say("stopped; what was finished is kept, and the same command goes on from the last checkpoints")
        return 130
    finally:
        executor.stop()
    for sentence in summary.failed:
        _say(sentence)
    if summary.failed:
        _say(f"{len(summary.failed)} trials failed; the same command tries them again")
        return 1
    _say(f"{summary.done} trials done; see them with: uvax report {options.results} -o report.html")
    return 0


def _executor(experiment: experiments.Experiment, options: Options, places):
    if options.executor == "ray":
        from uvax.experiments.ray_executor import RayExecutor

        return RayExecutor(
            places.results, address=options.address, cpus=options.cpus_per_trial, gpus=options.gpus_per_trial
        )
    if options.executor != "local":
        raise unknown_name("executor", options.executor, ("local", "ray"))
    from uvax.experiments.executors import LocalExecutor

    if experiment.exclusive:
        return LocalExecutor(places.results, workers=1, threads=os.cpu_count() or 1)
    return LocalExecutor(places.results, workers=options.workers, threads=options.threads)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
