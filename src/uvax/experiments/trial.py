"""The task-rejection trial: one method, one board size, one seed, from a dataset to a row (Section 5).

Nearly every experiment is a set of these. A trial is named by its configuration and seed; it trains in a work folder,
from which it goes on after a kill, and returns plain data.
"""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from uvax.data import Dataset, load
from uvax.envs import GoToDoor
from uvax.envs.go_to_door import WALLS
from uvax.envs.optimal import ceiling
from uvax.errors import InvalidInput
from uvax.evaluation import evaluate, final_evaluation
from uvax.experiments import nested
from uvax.experiments.explorer import explore
from uvax.experiments.presets import Training, build_estimator, changes, preset_hyperparameters, preset_training
from uvax.training import Evaluate, Fit, TrainingDiverged, fit
from uvax.training.folder import LOG
from uvax.training.log import RESERVED

KIND = "task_rejection"
Progress = Callable[[float, str], None]  # share done, and a few words

_EVALUATION = 20_250_500  # keys of evaluations have nothing to do with those of training, which are key(seed)
_EXPLORED_SEED = 0  # one seed is enough to look at
_SECONDS_BETWEEN_LOOKS = 2.0
_LAST_LINE = 16_384  # bytes that surely hold the last line of a log


def trial_config(
    method: str,
    size: int,
    dataset: str,
    *,
    preset: str = "cpu",
    hyperparameters: Mapping[str, Any] | None = None,
    training: Training | None = None,
    reject: int = 4,
    first_members: Sequence[int] = (),
) -> dict[str, Any]:
    """The whole configuration of a trial, as plain data: with the seed, it decides the result.

    `dataset` is the checksum of the data; `hyperparameters` are changes to the preset's; `first_members` of an ensemble
    are evaluated as ensembles of their own too.

        config = trial_config("uvu", 5, data.checksum, preset="smoke", hyperparameters={"width": 64})
    """
    return {
        "kind": KIND,
        "preset": preset,
        "method": method,
        "size": int(size),
        "reject": reject,
        "hyperparameters": preset_hyperparameters(preset, method, int(size), **(hyperparameters or {})),
        "dataset": dataset,
        **dataclasses.asdict(training or preset_training(preset, int(size))),
        **({nested.FIRST: list(first_members)} if first_members else {}),
    }


def evaluation_key(seed: int) -> Array:
    """The key of a trial's evaluations: the same boards for every method and every evaluation of a seed.

    Seeds have different boards, so that an interval over seeds covers the luck of the boards as well.
    """
    return jax.random.fold_in(jax.random.key(_EVALUATION), seed)


def run_trial(
    config: Mapping[str, Any],
    seed: int,
    dataset: Dataset,
    *,
    work: Path | str | None = None,
    progress: Progress | None = None,
    model: Path | str | None = None,
) -> dict[str, Any]:
    """Train, evaluate on the way, and evaluate the best checkpoint again on fresh boards.

    With `work`, the folder holds the checkpoints: called again after a kill, the trial goes on from the last one and
    ends with the same result. `model` is where to save the best checkpoint for inference. The result:

        status       "finished", or "diverged ..." with the numbers of the state before
        changes      the hyperparameters that differ from the preset's, as it was when the trial ran
        best         the highest evaluation during training: its step and the numbers of `uvax.evaluation.evaluate`
        last         the last evaluation, likewise
        final        the best checkpoint on fresh boards: `TaskRejection.row()`
        curve        a column for each number of the evaluations, and the losses since the one before
        seconds      compile, train, evaluate, per_step
        ceiling      the best possible return: mean, by wall
        dataset      what the data are
        explorer     value and uncertainty over a few boards (seed 0 of the preset's own settings only)
        smaller      by the number of members, the results of the ensembles of `first_members`
    """
    if dataset.checksum != config["dataset"]:
        raise InvalidInput(
            f"the trial belongs to the dataset {str(config['dataset'])[:12]}, but was given {dataset.checksum[:12]}"
        )
    env = GoToDoor(size=config["size"])
    estimator = build_estimator(config["hyperparameters"])
    key = evaluation_key(seed)

    tell = progress or _silent
    inner = nested.Nested(config, dataset.spec, seed, None if work is None else Path(work))

    def numbers(estimator: Any, state: PyTree) -> dict[str, float]:
        found = evaluate(
            estimator, state, env, key=key, episodes=config["evaluation_episodes"], reject=config["reject"]
        )
        return {name: float(value) for name, value in jax.device_get(found).items()}

    def score(estimator: Any, state: PyTree, step: int) -> dict[str, float]:
        found = numbers(estimator, state)
        tell(step / config["steps"], f"step {step:,} of {config['steps']:,}, return {found['return']:.2f}")
        return {**found, **inner.look(estimator, state, step, numbers)}

    def ended(best: Fit | None, log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        rows = [row for row in log if row["kind"] == "evaluation"]
        final = None
        if rows and best is not None:
            final = final_evaluation(
                best.estimator, best.state, env, key=key, episodes=config["final_episodes"], reject=config["reject"]
            ).row()
        return {
            "best": next((row for row in rows if best is not None and row["step"] == best.steps), None),
            "last": rows[-1] if rows else None,
            "final": final,
            "curve": learning_curve(log),
            "seconds": timings(log),
        }

    tell(0.0, "compiling, and evaluating what is frozen")
    trained = _train(estimator, dataset, config, seed, score, work)
    tell(1.0, f"{config['final_episodes']:,} fresh boards")
    if model is not None:
        trained.at_best().save(model, overwrite=True)
    best_possible = ceiling(env)
    result = {
        "status": str(trained.status),
        "changes": changes(config),
        "notes": list(trained.notes),
        **ended(trained.at_best(), inner.without(trained.log)),
        "ceiling": {
            "mean": best_possible.mean,
            **dict(zip(WALLS, np.asarray(best_possible.by_wall).tolist(), strict=True)),
        },
        "dataset": describe_dataset(dataset),
    }
    if inner.members:
        result[nested.SMALLER] = inner.results(trained.log, ended)
    if seed == _EXPLORED_SEED and not result["changes"]:
        result["explorer"] = explore(estimator, trained.best.state, env)
    return result


def perform(config: Mapping[str, Any], seed: int, *, data: Path, work: Path, progress: Progress) -> dict[str, Any]:
    """The trial as a worker runs it: the dataset from its file, the run in a folder of its own."""
    with following(work / "run", config["steps"], progress):
        return run_trial(config, seed, load(data), work=work / "run", progress=progress)


@contextlib.contextmanager
def following(run: Path, steps: int, progress: Progress) -> Iterator[None]:
    """Tell the progress between evaluations too, which can be hours apart: from the last line of the run's log."""
    ended, log = threading.Event(), run / LOG

    def follow() -> None:
        seen = 0
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                with open(log, "rb") as file:
                    file.seek(max(0, log.stat().st_size - _LAST_LINE))
                    row = json.loads(file.read().splitlines()[-1])
                if row["kind"] == "train" and seen < row["step"] < steps:
                    seen = row["step"]
                    progress(seen / steps, f"step {seen:,} of {steps:,}")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _silent(done: float, text: str) -> None:
    pass


def _train(
    estimator: Any,
    dataset: Dataset,
    config: Mapping[str, Any],
    seed: int,
    score: Evaluate,
    work: Path | str | None,
) -> Fit:
    """`fit`, resumed where a work folder has a beginning. Training that diverges is a result, not an accident."""
    try:
        return fit(
            estimator,
            dataset,
            config["steps"],
            seed=seed,
            evaluate=score,
            evaluations=config["evaluations"],
            out=work,
            resume=work is not None,
            progress=False,
        )
    except TrainingDiverged as diverged:
        return diverged.fit


def learning_curve(log: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A column for each number of the evaluations, and the training metrics averaged since the one before.

    `step`, then `return`, `attempt_impossible`, ...; metrics are called `train_loss`, `train_q`, ...
    """
    points: list[dict[str, Any]] = []
    since: list[Mapping[str, Any]] = []
    for row in log:
        if row["kind"] == "train":
            since.append(row)
            continue
        point = {name: value for name, value in row.items() if name not in ("seed", "kind")}
        for name in since[-1] if since else {}:
            values = [r[name] for r in since if r.get(name) is not None]
            if name not in RESERVED and values:
                point[f"train_{name}"] = float(np.mean(values))
        points.append(point)
        since = []
    names = dict.fromkeys(name for point in points for name in point)
    return {name: [_short(point.get(name)) for point in points] for name in names}


def timings(log: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Where the time went, from the clock in the log.

    `per_step` is the median over chunks, so that other work on the machine and compilation do not count;
    `compile` is what the first chunk and the first evaluation took longer than the others.
    """
    chunks: list[tuple[int, float]] = []
    evaluations: list[float] = []
    step, clock = 0, 0.0
    for row in log:
        spent, clock = row["seconds"] - clock, row["seconds"]
        if row["kind"] == "train":
            chunks.append((row["step"] - step, spent))
            step = row["step"]
        else:
            evaluations.append(spent)
    if not chunks:
        return {"compile": None, "train": None, "evaluate": None, "per_step": None, "total": clock}
    per_step = float(np.median([spent / steps for steps, spent in chunks[1:] or chunks]))
    each = float(np.median(evaluations[1:] or evaluations)) if evaluations else 0.0
    first_chunk = max(0.0, chunks[0][1] - chunks[0][0] * per_step)
    first_evaluation = max(0.0, evaluations[0] - each) if evaluations else 0.0
    return {
        "compile": round(first_chunk + first_evaluation, 3),
        "train": round(clock - sum(evaluations) - first_chunk, 3),
        "evaluate": round(sum(evaluations) - first_evaluation, 3),
        "per_step": per_step,
        "total": clock,
    }


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """What a row says about its data, besides the checksum in its configuration."""
    header = dataset.header
    return {
        "transitions": len(dataset),
        "seed": header.get("seed"),
        "environment": header.get("environment"),
        "collection": header.get("collection"),
        "greedy_policy_score": header.get("greedy_policy_score"),
    }


def _short(value: Any) -> Any:
    """Six significant digits: a curve is looked at, not computed with."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
