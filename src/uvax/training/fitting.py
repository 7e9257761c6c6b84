"""`fit`: the one training loop, for every method."""

import contextlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, TypedDict, Unpack, overload

import jax
import numpy as np

import uvax
from uvax.data.dataset import Dataset
from uvax.errors import InvalidInput
from uvax.files import PathLike
from uvax.training.fitted import Fit, describe
from uvax.training.folder import RunFolder
from uvax.training.log import Log, check_tensorboard
from uvax.training.loop import Trainer
from uvax.training.progress import make_progress
from uvax.training.run import Evaluate, Run
from uvax.training.schedule import Schedule, make_schedule


class Options(TypedDict, total=False):
    """The keyword arguments of `fit` but `seeds`, for type checkers; their meaning and defaults are in `fit`."""

    seed: int
    evaluate: Evaluate | None
    evaluations: int
    score: str
    out: PathLike | None
    resume: bool
    overwrite: bool
    progress: bool
    log_every: int | None
    tensorboard: bool
    checkpoint_seconds: float
    cache_bytes: int
    explosion: float
    devices: Sequence[jax.Device] | None


@overload
def fit(estimator: Any, dataset: Dataset, steps: int, *, seeds: None = None, **options: Unpack[Options]) -> Fit: ...
@overload
def fit(estimator: Any, dataset: Dataset, steps: int, *, seeds: int, **options: Unpack[Options]) -> list[Fit]: ...
def fit(
    estimator: Any,
    dataset: Dataset,
    steps: int,
    *,
    seed: int = 0,
    seeds: int | None = None,
    evaluate: Evaluate | None = None,
    evaluations: int = 50,
    score: str = "return",
    out: PathLike | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    log_every: int | None = None,
    tensorboard: bool = False,
    checkpoint_seconds: float = 60.0,
    cache_bytes: int = 4 * 2**30,
    explosion: float = 1e6,
    devices: Sequence[jax.Device] | None = None,
) -> Fit | list[Fit]:
    """Train `estimator` on `dataset` for `steps` updates.

        fit = uvax.fit(uvax.UVU(heads=128, width=256), data, steps=20_000, seed=0)
        fit.value(obs, task), fit.uncertainty(obs, task)

    The batch of step i is drawn from (seed, i), with replacement; `estimator.batch_size=None` takes all transitions
    in every step. Steps run in compiled chunks of `log_every` (by default at most 100), and between chunks the host
    logs, evaluates and saves. Cost: the estimator's arithmetic; the dataset is on the device once, as it came.

    `evaluate(estimator, state, step)` is called after `evaluations` equally spaced steps, the last one included; the
    entry `score` of its result decides which state is `Fit.best`.

    With `out`, a folder gets `config.json`, `log.jsonl`, a checkpoint every `checkpoint_seconds`, and in the end
    `model.safetensors` and `best.safetensors`. `resume=True` continues such a folder to the same bits as an
    uninterrupted run, starts when there is nothing yet, and loads a finished one; other settings are refused.

    `seeds=n` trains with seed, ..., seed + n - 1 at once, vmapped, and returns n fits.

    A loss that is not finite, or beyond `explosion` times its first value (taken as at least 1), raises
    `TrainingDiverged`, whose `fit` holds the last good state. With several seeds the others go on; the status of the
    lost one says so, as does a warning, and only when all are lost is it raised. Ctrl-C ends the chunk, saves, and
    raises `TrainingInterrupted`; a second one stops at once.

    `cache_bytes` bounds the memory for what is computed once and kept for every transition (`estimator.cache`, else
    `estimator.compact_cache`), which is used where it saves more than it costs.
    `devices` divides every batch among several devices.
    """
    _check_arguments(locals())
    if tensorboard:
        check_tensorboard()
    steps, seed = int(steps), int(seed)
    all_seeds = [seed] if seeds is None else list(range(seed, seed + seeds))
    schedule = make_schedule(steps, evaluations if evaluate else 0, log_every)
    trainer = Trainer(estimator, dataset, all_seeds, stacked=seeds is not None, devices=devices)
    cache = trainer.choose_cache(steps, cache_bytes)
    with contextlib.ExitStack() as stack:
        folder = None
        if out is not None:
            config = _config(estimator, dataset, schedule, seed, seeds, score if evaluate else None, cache)
            folder = trainer.processes.on_first(lambda: RunFolder(out, config, resume=resume, overwrite=overwrite))
        if folder is not None:
            stack.callback(folder.close)
        run = Run(trainer, schedule, evaluate, score, folder, explosion, _largest_reward(dataset))
        run.begin()
        log = Log(
            folder.log if folder else None,
            tensorboard=folder.tensorboard if folder and tensorboard else None,
            keep_until=run.step,
        )
        stack.callback(log.close)
        shown = make_progress(progress and trainer.processes.first, type(estimator).__name__, run.step, steps)
        stack.callback(shown.close)
        fits = run.to_the_end(log, shown, cache=cache, checkpoint_seconds=checkpoint_seconds)
    return fits if seeds is not None else fits[0]


def _config(
    estimator: Any,
    dataset: Dataset,
    schedule: Schedule,
    seed: int,
    seeds: int | None,
    score: str | None,
    cache: str | None,
) -> dict[str, Any]:
    return {
        "estimator": describe(estimator),
        "dataset": {"checksum": dataset.checksum, "rows": len(dataset), "header": dict(dataset.header)},
        "steps": schedule.steps,
        "seed": seed,
        "seeds": seeds,
        "log_every": schedule.chunk,
        "evaluations": len(schedule.evaluations),
        "score": score,
        "cache": cache,  # equal to rounding only, so a resumed run must do the same
        "versions": {
            "uvax": uvax.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("jax", "jaxlib", "equinox", "optax", "numpy")},
            "platform": jax.default_backend(),
        },
    }


def _largest_reward(dataset: Dataset) -> float:
    return float(np.abs(dataset.reward).max())


def _check_arguments(given: Mapping[str, Any]) -> None:
    estimator, dataset = given["estimator"], given["dataset"]
    missing = [
        name
        for name in ("init", "update", "value", "uncertainty", "gamma", "batch_size")
        if not hasattr(estimator, name)
    ]
    if missing or isinstance(estimator, type):
        raise InvalidInput(
            f"estimator is {estimator!r}, which lacks {', '.join(missing) or 'an instance: call the class'};"
            " expected one such as uvax.UVU(), or your own as in uvax.estimators.base"
        )
    if not isinstance(dataset, Dataset):
        raise InvalidInput(
            f"dataset is of type {type(dataset).__name__}; expected a Dataset, from uvax.load, uvax.collect,"
            " uvax.from_arrays or uvax.from_minari"
        )
    if not 0.0 <= estimator.gamma <= 1.0:
        raise InvalidInput(f"the estimator's gamma is {estimator.gamma!r}; expected a number in [0, 1]")
    for name, least in (("steps", 1), ("seed", 0), ("seeds", 1), ("evaluations", 1), ("log_every", 1)):
        value = given[name]
        optional = name in ("seeds", "log_every")
        if value is None and optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InvalidInput(f"{name} is {value!r}; expected an integer of at least {least}")
    if given["seed"] + (given["seeds"] or 1) > 2**31:
        raise InvalidInput(f"seed is {given['seed']}; expected seeds below 2**31")
    if given["steps"] >= 2**31:
        raise InvalidInput(f"steps is {given['steps']}; expected less than 2**31")
    if given["resume"] and given["overwrite"]:
        raise InvalidInput("resume and overwrite are both True; choose one: continue the run, or replace it")
    if given["out"] is None:
        for name in ("resume", "overwrite", "tensorboard"):
            if given[name]:
                raise InvalidInput(f"{name}=True needs a folder: pass out='runs/...'")
    for name in ("checkpoint_seconds", "cache_bytes"):
        if not given[name] >= 0:
            raise InvalidInput(f"{name} is {given[name]!r}; expected at least 0")
    if not given["explosion"] > 1:
        raise InvalidInput(f"explosion is {given['explosion']!r}; expected a factor above 1 (inf: no limit)")
