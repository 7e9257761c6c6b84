"""Running an experiment: datasets first, then every trial that has no row yet, again until it wants no more."""

import os
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvax.collection import preset_settings, read_recording
from uvax.data import load
from uvax.envs import GoToDoor
from uvax.errors import InvalidInput
from uvax.experiments import analysis
from uvax.experiments.estimates import Estimates, in_words
from uvax.experiments.executors import Executor, LocalExecutor
from uvax.experiments.experiment import Experiment, Scope, Settings
from uvax.experiments.jobs import Job, collect_job, trial_job
from uvax.experiments.rows import RowStore, Trial
from uvax.experiments.runner import Summary, contained_in, missing, reuse, run_jobs
from uvax.experiments.view import live_view

DATA_FILE = "data.safetensors"
ACTIONS = "actions"  # folder of the recordings, within that of the rows


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
        return self.data / _data_name(size, preset) / DATA_FILE

    def recording(self, size: int, preset: str) -> Path | None:
        """The actions of that dataset, if they are kept beside the rows: data that need not be collected again."""
        path = self.results / ACTIONS / f"{_data_name(size, preset)}.safetensors"
        return path if path.exists() else None


@dataclass(frozen=True)
class Plan:
    """What is to be done. Without the datasets the trials cannot be named yet; `trials` then has placeholders."""

    experiment: Experiment
    scope: Scope
    places: Places
    collect: tuple[int, ...]  # sizes without a dataset
    recordings: Mapping[int, Path]  # those of them whose actions are recorded
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
        how = {
            "collected": [size for size in self.collect if size not in self.recordings],
            f"made again from {self.places.results / ACTIONS}": list(self.recordings),
        }
        for done, sizes in how.items():
            if sizes:
                listed = ", ".join(map(str, sizes))
                said.append(f"First the datasets of size {listed} are {done} into {self.places.data}.")
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
        slots = 1 if self.experiment.exclusive else executor.capacity
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
    recordings = {size: path for size in absent if (path := places.recording(size, scope.preset))}
    checksums = dict.fromkeys(absent, "to be collected")
    checksums |= {size: _recorded_checksum(path, size, scope.preset) for size, path in recordings.items()}
    checksums |= {size: _checksum(places.dataset(size, scope.preset), size) for size in sizes if size not in absent}
    wanted = experiment.trials(scope, checksums, _own(rows, experiment))
    lacking = tuple(missing(wanted, rows))
    if not lacking:  # nothing needs the data
        absent, recordings = (), {}
    return Plan(
        experiment,
        scope,
        places,
        absent,
        recordings,
        tuple(wanted),
        lacking,
        Estimates(rows),
        tuple(problems),
    )


def run(
    plan: Plan, executor: Executor, *, retries: int = 2, nice: int = 0, say: Callable[[str], None] = print
) -> Summary:
    """Collect what is missing and run every missing trial."""
    experiment, scope, places = plan.experiment, plan.scope, plan.places
    if not plan.missing:
        return Summary()
    if plan.collect:
        jobs = [
            collect_job(
                size,
                preset=scope.preset,
                folder=places.dataset(size, scope.preset).parent,
                work=places.work,
                recording=plan.recordings.get(size),
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
    trials = _Trials(plan, checksums, nice)
    summary = Summary()
    if jobs := trials.next():
        with live_view(experiment.name) as show:
            summary = run_jobs(
                jobs,
                executor,
                results=places.results,
                estimates=plan.estimates,
                show=show,
                retries=retries,
                more=trials.next,
            )
    if trials.taken:
        say(f"Rows taken over from other experiments and from larger ensembles: {trials.taken}.")
    return summary


class _Trials:
    """The trials to run, as the rows there are make them known."""

    def __init__(self, plan: Plan, checksums: Mapping[int, str], nice: int):
        self._plan, self._checksums, self._nice = plan, checksums, nice
        self._command = shlex.join(["uvax", *map(_short, sys.argv[1:])])
        self._given: set[str] = set()
        self.taken = 0  # rows that were there already, in other experiments and in larger ensembles

    def next(self, failed: Set[str] = frozenset()) -> list[Job]:
        """Those that are wanted now and were not given before."""
        left = [trial for trial in self._missing() if trial.id not in failed]
        later = contained_in(left)
        new = [trial for trial in left if trial.id not in later | self._given]
        self._given |= {trial.id for trial in new}
        return list(map(self._job, new))

    def _missing(self) -> list[Trial]:
        experiment, places = self._plan.experiment, self._plan.places
        while True:
            rows, _problems = read_rows(places.results)
            wanted = missing(experiment.trials(self._plan.scope, self._checksums, _own(rows, experiment)), rows)
            left = reuse(wanted, rows, RowStore(places.results))
            if len(left) == len(wanted):
                return left
            self.taken += len(wanted) - len(left)  # and what is wanted may depend on them

    def _job(self, trial: Trial) -> Job:
        plan = self._plan
        data = plan.places.dataset(trial.config["size"], plan.scope.preset) if plan.experiment.needs_data else None
        return trial_job(
            trial,
            title=analysis.title_of(trial),
            work=plan.places.work,
            data=data,
            command=self._command,
            nice=self._nice,
        )


def _own(rows: Sequence[dict[str, Any]], experiment: Experiment) -> list[dict[str, Any]]:
    return [row for row in rows if row["experiment"] == experiment.name]


def _data_name(size: int, preset: str) -> str:
    return f"size{size}" if preset == "cpu" else f"{preset}-size{size}"


def _recorded_checksum(path: Path, size: int, preset: str) -> str:
    """The checksum of the dataset that a recording makes, which must be the preset's."""
    recording = read_recording(path)
    usual = preset_settings(preset, size=size)
    if recording.header["environment"] != GoToDoor(size=size).params() or recording.settings != usual:
        raise InvalidInput(
            f"{path} records a collection with other settings than preset {preset} has for size {size}; "
            "move it away, and the data are collected"
        )
    return recording.checksum


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
