"""Run by test_devices.py in processes of their own: the number of devices is settled when jax starts."""

import json
import sys

import jax
import numpy as np

from conftest import Linear, random_dataset
from uvax.errors import UvaxError
from uvax.estimators import UVU
from uvax.training import fit

STEPS = 20


def value(estimator, state, step):
    data = random_dataset(3)
    return {"return": float(np.mean(estimator.value(state, data.obs, np.asarray(data.task, np.float32))))}


def numbers(trained) -> list[float]:
    leaves = jax.tree.leaves(jax.device_get(trained.state))
    return [float(x) for leaf in leaves for x in np.asarray(leaf, np.float64).reshape(-1)]


def simulated() -> dict:
    """One process with eight devices: states after training on none in particular, 2, 4 and 8 of them."""
    data = random_dataset(160)
    methods = {
        "linear": Linear(),
        "whole dataset": Linear(batch_size=None),
        "uvu": UVU(width=16, heads=4, depth=1, batch_size=32),
    }
    options = {"steps": STEPS, "log_every": 10, "progress": False}
    results = {}
    for name, method in methods.items():
        for count in (0, 2, 4, 8) if name == "linear" else (0, 4):
            devices = jax.devices()[:count] or None
            results[f"{name} {count}"] = numbers(fit(method, data, **options, devices=devices))
    results["seeds 0"] = numbers(fit(Linear(), data, **options, seeds=2)[1])
    results["seeds 2"] = numbers(fit(Linear(), data, **options, seeds=2, devices=jax.devices()[:2])[1])
    return results


def distributed(rank: int, port: int, folder: str, way: str) -> dict:
    """One of two processes with two devices each."""
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=rank)
    stop_at = 10 if way == "stop" else None

    def evaluate(estimator, state, step):
        if step == stop_at:
            raise InterruptedError
        return value(estimator, state, step)

    try:
        trained = fit(
            Linear(),
            random_dataset(160),
            STEPS,
            out=folder,
            resume=way == "resume",
            evaluate=evaluate,
            evaluations=4,
            checkpoint_seconds=0.0,
            progress=False,
            devices=jax.devices(),
        )
    except InterruptedError:
        return {"stopped": True}
    except UvaxError as error:
        return {"error": str(error)}
    return {"state": numbers(trained), "best": trained.best.step, "devices": jax.device_count()}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments:
        rank, port, folder, way = arguments
        print(json.dumps(distributed(int(rank), int(port), folder, way)))
    else:
        print(json.dumps(simulated()))
