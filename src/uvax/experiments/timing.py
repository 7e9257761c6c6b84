"""The step-time trial: what a gradient step and a whole run cost, and how much memory they take."""

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from uvax.data import Dataset
from uvax.envs import GoToDoor
from uvax.estimators import config as describe
from uvax.evaluation import evaluate
from uvax.experiments.presets import build_estimator
from uvax.training.loop import Trainer

KIND = "step_time"
_ROWS = 50_000  # enough that batches do not come from the processor's cache
_CHUNK_SECONDS = 2.0
# Steps of a chunk, at least: `fit` makes up to 100 in a call, and what a call costs once is no cost of a step.
_SMALLEST = 10


def timing_config(estimator: Any, method: str, *, preset: str, cached: bool, seconds: float) -> dict[str, Any]:
    """The configuration of a measurement of at least `seconds` of steady state.

    `cached`: whether what training never changes (outputs of the priors, of g) is computed before.
    """
    return {
        "kind": KIND,
        "preset": preset,
        "method": method,
        "hyperparameters": describe(estimator),
        "cached": cached,
        "measure_seconds": seconds,
        "rows": _ROWS,
        "evaluation_episodes": 1_000,
    }


def perform(
    config: Mapping[str, Any],
    seed: int,
    *,
    data: Path | None,
    work: Path,
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Measure. Chunks of two seconds, or ten steps, are run and timed one by one after everything is compiled.

    `per_step` is the median over chunks, `fastest` and `slowest` the quartiles; `compile` the first call of each
    compiled length beyond its run time; `memory` the peak of the process, data and compiler included.
    """
    estimator = build_estimator(config["hyperparameters"])
    env = GoToDoor(size=10)
    dataset = random_dataset(env, config["rows"], seed)
    progress(0.0, "compiling")
    trainer = Trainer(estimator, dataset, [seed], stacked=False)
    state = trainer.init()
    begin = time.perf_counter()
    cache = trainer.choose_cache() if config["cached"] else None
    if cache is not None:
        trainer.fill_cache(state, cache)
        jax.block_until_ready(trainer._cache)
    fill = time.perf_counter() - begin

    state, first = _timed(trainer, state, 0, _SMALLEST)
    state, again = _timed(trainer, state, _SMALLEST, _SMALLEST)
    length = int(np.clip(_CHUNK_SECONDS * _SMALLEST / again, _SMALLEST, 200))
    done = 2 * _SMALLEST
    state, second = _timed(trainer, state, done, length)
    done += length
    times: list[float] = []
    while sum(times) < config["measure_seconds"] or len(times) < 5:
        state, spent = _timed(trainer, state, done, length)
        done += length
        times.append(spent)
        share = min(sum(times) / config["measure_seconds"], len(times) / 5)
        progress(min(share, 0.99), f"{1e3 * times[-1] / length:.3g} ms per step")
    each = np.asarray(times) / length
    evaluation = _evaluation_seconds(estimator, state, env, config["evaluation_episodes"])
    return {
        "status": "finished",
        "per_step": float(np.median(each)),
        "fastest": float(np.quantile(each, 0.25)),
        "slowest": float(np.quantile(each, 0.75)),
        "compile": max(0.0, first - again) + max(0.0, second - float(np.median(times))),
        "fill_cache": 0.0 if cache is None else fill,
        "cached": cache is not None,
        "evaluation": evaluation,
        "steps_measured": len(times) * length,
        "parameters": _count(state.params),
        "frozen_parameters": _count(state.frozen),
        "state_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        "memory": peak_memory(),
        "threads": _threads(),
        "device": jax.devices()[0].device_kind,
    }


def random_dataset(env: GoToDoor, rows: int, seed: int) -> Dataset:
    """Transitions of a uniform policy from fresh boards: the right shapes and dtypes, which is all that time needs."""

    @jax.jit
    def draw(key: Array) -> tuple[Array, ...]:
        board, act, luck = jax.random.split(key, 3)
        states = env.batch_reset(rows, key=board)
        action = jax.random.randint(act, (rows,), 0, env.num_actions)
        _, after, step = env.batch_step_autoreset(states, action, key=luck)
        return env.observe(states), env.task(states), action, step.reward, step.terminated, env.observe(after)

    obs, task, action, reward, terminated, next_obs = jax.device_get(draw(jax.random.key(seed)))
    return Dataset(
        obs=obs,
        task=task.astype(np.int8),
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=np.ones(rows, bool),
        episode_start=np.ones(rows, bool),
        next_obs=next_obs,
        header={"num_actions": env.num_actions, "environment": env.params(), "created_by": "uvax runtime"},
    )


def peak_memory() -> int:
    """Bytes, the largest the process has been."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _timed(trainer: Trainer, state: PyTree, first: int, length: int) -> tuple[PyTree, float]:
    begin = time.perf_counter()
    chunk = jax.block_until_ready(trainer.run(state, first, length))
    return chunk.state, time.perf_counter() - begin


def _evaluation_seconds(estimator: Any, state: PyTree, env: GoToDoor, episodes: int) -> float:
    """One evaluation during training, compiled before."""
    times = []
    for i in range(2):
        begin = time.perf_counter()
        jax.block_until_ready(evaluate(estimator, state, env, key=jax.random.key(i), episodes=episodes))
        times.append(time.perf_counter() - begin)
    return times[-1]


def _count(tree: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree) if hasattr(leaf, "size"))


def _threads() -> int:
    return int(os.environ.get("NPROC") or os.cpu_count() or 1)
