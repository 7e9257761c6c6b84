"""Kill a training with SIGKILL again and again, resume it each time, and compare the bits with an undisturbed run.

    python tools/soak.py                    # 50 kills, a row in results/soak/fit.jsonl
    python tools/soak.py --kills 5 --method dqn --out ""

A kill comes after zero to five more checkpoints, at a random moment or within a save. A run that finishes before its
kill is compared, and the next one begins in a new folder. The exit code says whether all were equal.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS, CHUNK, EVALUATIONS = 240, 10, 12


def child(folder: str, method: str) -> None:
    """One training to its end, resumed where there is something to resume."""
    import jax
    import numpy as np

    import uvax
    from uvax.data import from_arrays
    from uvax.estimators import make

    rng = np.random.default_rng(0)
    rows = 300
    data = from_arrays(
        rng.integers(0, 5, (rows, 4)).astype(np.int8),
        rng.integers(0, 3, rows),
        rng.normal(size=rows).astype(np.float32),
        rng.integers(0, 5, (rows, 4)).astype(np.int8),
        terminated=rng.random(rows) < 0.1,
        task=np.eye(2, dtype=np.int8)[rng.integers(0, 2, rows)],
        num_actions=3,
    )
    estimator = make(method, width=16, depth=1, batch_size=32, target_period=25)

    def evaluate(estimator, state, step):
        # Up and down, so that the best is neither the first nor the last and is lost and found again.
        value = jax.numpy.mean(estimator.value(state, data.obs[:8], data.task[:8].astype(np.float32)))
        return {"return": float(np.sin(step / 30.0)) + 1e-3 * float(value)}

    print("ready", flush=True)
    uvax.training.fit(
        estimator,
        data,
        STEPS,
        seed=3,
        out=folder,
        resume=True,
        evaluate=evaluate,
        evaluations=EVALUATIONS,
        log_every=CHUNK,
        checkpoint_seconds=0.0,
        progress=False,
    )


def start(folder: Path, method: str, cache: Path) -> subprocess.Popen:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),  # filled by the undisturbed run: a restart costs a second
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, __file__, "--child", str(folder), "--method", method]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    process.communicate()
    if process.returncode:
        raise SystemExit(f"the training ended with exit code {process.returncode}")


def kill(process: subprocess.Popen, folder: Path, rng: random.Random) -> bool:
    """Kill it after a few more checkpoints, at a random moment or within a save; False if it had finished by then."""
    assert process.stdout is not None
    process.stdout.readline()
    more, in_a_save, pause = rng.randrange(6), rng.random() < 0.5, rng.uniform(0.0, 0.3)
    before = _newest(folder)
    while process.poll() is None and _newest(folder) < before + more * CHUNK:
        time.sleep(0.001)
    while process.poll() is None and in_a_save and not any((folder / "checkpoints").glob(".tmp-*")):
        time.sleep(0.001)
    time.sleep(pause / 4 if in_a_save else pause)
    process.send_signal(signal.SIGKILL)  # does nothing to a process that has ended
    process.communicate()
    return process.returncode == -signal.SIGKILL


def fingerprint(folder: Path) -> dict[str, str]:
    """Everything a run leaves behind that must be equal: models, checkpointed arrays, the log but its times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for row in lines:
        del row["seconds"]
    prints = {"log": hashlib.sha256(json.dumps(lines).encode()).hexdigest()}
    for name in ("model.safetensors", "best.safetensors"):
        prints[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    for name in (f"step-{STEPS:010d}",):
        prints[name] = json.loads((folder / "checkpoints" / name / "uvax.json").read_bytes())["content"]
    return prints


def soak(kills: int, method: str, seed: int, *, say=print) -> dict:
    """Kill `kills` times; the row for the table, with `differences` empty when all is well."""
    rng = random.Random(seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        undisturbed = root / "undisturbed"
        finish(start(undisturbed, method, root / "cache"))
        expected = fingerprint(undisturbed)
        differences: list[str] = []
        done, runs, at_steps = 0, 0, []
        while done < kills:
            folder = root / f"run-{runs}"
            while done < kills and kill(start(folder, method, root / "cache"), folder, rng):
                done += 1
                at_steps.append(_newest(folder))
                say(f"kill {done}: the newest checkpoint is of step {at_steps[-1]}", flush=True)
            finish(start(folder, method, root / "cache"))
            _compare(f"run {runs}", fingerprint(folder), expected, differences)
            runs += 1
    return {
        "kills": done,
        "runs": runs,
        "method": method,
        "steps": STEPS,
        "seed": seed,
        "killed_at": at_steps,
        "differences": differences,
        "seconds": round(time.monotonic() - begun, 1),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _newest(folder: Path) -> int:
    return max((int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("step-*")), default=0)


def _compare(name: str, got: dict[str, str], expected: dict[str, str], differences: list[str]) -> None:
    differences += [f"{name}: {part}" for part in expected if got[part] != expected[part]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--method", default="uvu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", default=str(ROOT / "results" / "soak" / "fit.jsonl"), help="file for the row; '' for none"
    )
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.method)
        return 0
    started = time.time()
    row = soak(options.kills, options.method, options.seed)
    print(json.dumps(row))
    if options.out:
        from uvax.experiments.rows import provenance
        from uvax.files import append_jsonl

        append_jsonl(options.out, {**row, "provenance": provenance(started)})
    return 1 if row["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
