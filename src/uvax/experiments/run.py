"""Running an experiment: datasets first, then every trial that has no row yet, again until it wants no more."""

import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvax.data import load
from uvax.errors import InvalidInput
from uvax.experiments import analysis
from uvax.experiments.estimates import Estimates, in_words
from uvax.experiments.executors import Executor, LocalExecutor
from uvax.experiments.experiment import Experiment, Scope, Settings
from uvax.experiments.jobs import collect_job, trial_job
from uvax.experiments.rows import RowStore, Trial
from uvax.experiments.runner import Summary, contained_in, missing, reuse, run_jobs
from uvax.experiments.view import live_view

DATA_FILE = "data.safetensors"
_ROUNDS = 20  # an experiment that wants ever new trials is a bug


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things are: datasets, rows, and the work folders of running trials."""

    data: Path
    results: Path

    @property
    def work(self) -> Path:
        return self.results / ".work"

    def dataset(self, size: int, preset: str) -> Path:
        """The file of a size's dataset. The presets other than cpu have folders of their own."""
        return self.data / (f"size{size}" if preset == "cpu" else f"{preset}-size{size}") / DATA_FILE


@dataclass(frozen=True)
class Plan:
    """What is to be done. Without the datasets the trials cannot be named yet; `trials` then has placeholders."""

    experiment: Experiment
    scope: Scope
    places: Places
    collect: tuple[int, ...]  # sizes without a dataset
    trials: tuple[Trial, ...]
    missing: tuple[Trial, ...]
    estimates: Estimates
    problems: tuple[str, ...]

    def sentences(self, executor: Executor) -> list[str]:
        """What will run, how long it will take and where results go."""
        scope, name = self.scope, self.experiment.name
        said = [
            f"{name}, preset {scope.preset}: {len(self.trials)} trials, {len(self.trials) - len(self.missing)} of them "
            f"done, {len(self.missing)} to run on {executor.description}."
        ]
        if self.collect:
            sizes = ", ".join(map(str, self.collect))
            said.append(f"First the datasets of size {sizes} are collected into {self.places.data}.")
        said += self.experiment.notes(scope)
        if inside := contained_in(self.missing):
            said.append(f"Of them, ensembles inside larger ones, which take no time of their own: {len(inside)}.")
        if self.missing:
            said.append(self._time(executor))
        said.append(
            f"Rows go to {self.places.results / f'{name}.jsonl'}; running this again does only what is missing."
        )
        return said

    def _time(self, executor: Executor) -> str:
        slots = 1 if self.experiment.exclusive else max(1, executor.slots)
        inside = contained_in(self.missing)
        to_run = [trial for trial in self.missing if trial.id not in inside]
        seconds, unknown = self.estimates.total([trial.config for trial in to_run], slots=slots)
        if unknown == len(to_run):
            return "Expected time: unknown on this machine, the first trials will tell."
        also = f", besides {unknown} trials of which nothing is known yet" if unknown else ""
        return f"Expected time on this machine, from earlier rows: {in_words(seconds)}{also}."


def read_rows(results: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """All usable rows, and a sentence for each line that is not one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the problems are returned, and shown by whoever asked
        found = RowStore(results).read()
    return found.rows, found.problems


def make_plan(experiment: Experiment, settings: Settings, places: Places) -> Plan:
    """What running the experiment now would mean. Reads rows and datasets, runs nothing."""
    scope = experiment.scope(settings.preset).with_settings(settings)
    rows, problems = read_rows(places.results)
    sizes = scope.sizes if experiment.needs_data else ()
    absent = tuple(size for size in sizes if not places.dataset(size, scope.preset).exists())
    checksums = dict.fromkeys(absent, "to be collected")
    checksums |= {size: _checksum(places.dataset(size, scope.preset), size) for size in sizes if size not in absent}
    wanted = experiment.trials(scope, checksums, _own(rows, experiment))
    return Plan(
        experiment, scope, places, absent, tuple(wanted), tuple(missing(wanted, rows)), Estimates(rows), tuple(problems)
    )


def run(
    plan: Plan, executor: Executor, *, retries: int = 2, nice: int = 0, say: Callable[[str], None] = print
) -> Summary:
    """Collect what is missing and run every missing trial."""
    experiment, scope, places = plan.experiment, plan.scope, plan.places
    total = Summary()
    if plan.collect:
        jobs = [
            collect_job(
                size,
                preset=scope.preset,
                folder=places.dataset(size, scope.preset).parent,
                work=places.work,
                nice=nice,
            )
            for size in plan.collect
        ]
        # Datasets are made where they are kept, also when the trials run on a cluster.
        here = executor if isinstance(executor, LocalExecutor) else LocalExecutor(places.results)
        with live_view("datasets") as show:
            collected = run_jobs(
                jobs, here, results=places.results, estimates=plan.estimates, show=show, retries=retries
            )
        if collected.failed:
            return collected
    checksums = {}
    if experiment.needs_data:
        checksums = {size: _checksum(places.dataset(size, scope.preset), size) for size in scope.sizes}
    store = RowStore(places.results)
    command = shlex.join(["uvax", *map(_short, sys.argv[1:])])
    failed: set[str] = set()
    for _ in range(_ROUNDS):
        rows, _problems = read_rows(places.results)
        wanted = missing(experiment.trials(scope, checksums, _own(rows, experiment)), rows)
        left = reuse(wanted, rows, store)
        if taken := len(wanted) - len(left):
            say(f"Rows taken over from other experiments and from larger ensembles: {taken}.")
        left = [trial for trial in left if trial.id not in failed]
        later = contained_in(left)
        left = [trial for trial in left if trial.id not in later]
        if not left:
            if taken:
                continue
            break
        jobs = [
            trial_job(
                trial,
                title=analysis.title_of(trial),
                work=places.work,
                data=places.dataset(trial.config["size"], scope.preset) if experiment.needs_data else None,
                command=command,
                nice=nice,
            )
            for trial in left
        ]
        with live_view(experiment.name) as show:
            done = run_jobs(
                jobs, executor, results=places.results, estimates=plan.estimates, show=show, retries=retries
            )
        finished = {row["trial_id"] for row in read_rows(places.results)[0]}
        failed |= {trial.id for trial in left if trial.id not in finished}
        total.done += done.done
        total.failed += done.failed
    return total


def _own(rows: Sequence[dict[str, Any]], experiment: Experiment) -> list[dict[str, Any]]:
    return [row for row in rows if row["experiment"] == experiment.name]


def _checksum(path: Path, size: int) -> str:
    dataset = load(path)
    environment = dataset.header.get("environment") or {}
    if environment.get("size") != size:
        raise InvalidInput(
            f"{path} was collected at size {environment.get('size')}, but is to be the dataset of size {size}; "
            "move it away, or give another --data-dir"
        )
    return dataset.checksum


def _short(argument: str) -> str:
    """Without the folders of this machine, which mean nothing elsewhere."""
    return Path(argument).name if argument.startswith(os.sep) else argument
