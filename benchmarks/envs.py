"""Steps per CPU-second of GoToDoor: uvax and navix with 1,000 environments each, Minigrid with one.

    python benchmarks/envs.py                                 # navix only if this Python can import it
    python benchmarks/envs.py --navix-python PATH_TO_PYTHON   # navix from another environment, in the same run

Every contender is a process of its own, with one XLA thread, that plays on request; the requests go round, so that
a busy moment of the machine hits all of them. Each plays random actions, builds the observation of every step and
starts a new episode when one ends after 50 steps. CPU time, not wall time, is counted, and the best round is
reported. One row for each size is appended to results/benchmarks/envs.jsonl.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_STEPS = 50
ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "PJRT_NPROC": "1", "OMP_NUM_THREADS": "1"}

Round = Callable[[], int]  # plays for a while and returns the number of steps


def uvax_round(size: int, environments: int, steps: int, *, batched: bool = True, staggered: bool = False) -> Round:
    import jax
    import jax.numpy as jnp

    from uvax.envs import GoToDoor

    env = GoToDoor(size=size, max_steps=MAX_STEPS)

    def advance(states: Any, actions: Any, key: Any) -> Any:
        if batched:
            return env.batch_step_autoreset(states, actions, key=key)
        each = jax.random.split(key, environments)
        return jax.vmap(lambda s, a, k: env.step_autoreset(s, a, key=k))(states, actions, each)

    @jax.jit
    def play(carry: Any, key: Any) -> Any:
        def body(carry: Any, key: Any) -> Any:
            states, _, returns = carry
            key_action, key_step = jax.random.split(key)
            actions = (jax.random.bits(key_action, (environments,)) % env.num_actions).astype(jnp.int32)
            states, _, step = advance(states, actions, key_step)
            return (states, env.observe(states), returns + step.reward), None

        return jax.lax.scan(body, carry, jax.random.split(key, steps))[0]

    states = env.batch_reset(environments, key=jax.random.key(0))
    if staggered:
        states = states._replace(time=jnp.arange(environments, dtype=jnp.int32) % MAX_STEPS)
    return _jax_round(play, (states, env.observe(states), jnp.zeros(environments)), environments * steps)


def navix_round(size: int, environments: int, steps: int) -> Round:
    import jax
    import jax.numpy as jnp
    import navix

    env = navix.make(f"Navix-GoToDoor-{size}x{size}-v0", max_steps=MAX_STEPS)
    actions = len(env.action_set)

    @jax.jit
    def play(timestep: Any, key: Any) -> Any:
        def body(timestep: Any, key: Any) -> Any:
            action = (jax.random.bits(key, (environments,)) % actions).astype(jnp.int32)
            return jax.vmap(env.step)(timestep, action), None

        return jax.lax.scan(body, timestep, jax.random.split(key, steps))[0]

    start = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), environments))
    return _jax_round(play, start, environments * steps)


def _jax_round(play: Callable[[Any, Any], Any], carry: Any, count: int) -> Round:
    import jax

    played = 0

    def round_() -> int:
        nonlocal carry, played
        played += 1
        carry = jax.block_until_ready(play(carry, jax.random.key(played)))
        return count

    return round_


def minigrid_round(size: int, environments: int, steps: int) -> Round:
    from minigrid.envs import GoToDoorEnv

    env = GoToDoorEnv(size=size, max_steps=MAX_STEPS)
    env.reset(seed=0)

    def round_() -> int:
        for action in env.np_random.integers(0, env.action_space.n, steps):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return steps

    return round_


# name -> how to play, package, environments, steps of one round (about half a second)
CONTENDERS: dict[str, tuple[Callable[..., Round], str, int, int]] = {
    "uvax": (uvax_round, "uvax", 1_000, 5_000),
    "uvax, an episode ends in every step": (
        lambda *args: uvax_round(*args, staggered=True), "uvax", 1_000, 1_000,
    ),
    "uvax, vmapped step_autoreset": (lambda *args: uvax_round(*args, batched=False), "uvax", 1_000, 1_000),
    "navix": (navix_round, "navix", 1_000, 200),
    "minigrid": (minigrid_round, "minigrid", 1, 5_000),
}  # fmt: skip


def serve(name: str, size: int) -> None:
    """A contender: compile, then play one round for each line on standard input."""
    make, package, environments, steps = CONTENDERS[name]
    play = make(size, environments, steps)
    play()
    versions = {p: importlib.metadata.version(p) for p in (package, "jax", "jaxlib", "numpy") if _installed(p)}
    print(json.dumps({"environments": environments, "versions": versions}), flush=True)
    for _ in sys.stdin:
        started = time.process_time()
        count = play()
        print(json.dumps(count / (time.process_time() - started)), flush=True)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class Contender:
    """The process of one contender, or the reason why it did not run."""

    def __init__(self, name: str, size: int, python: str | None):
        self.name, self.rates, self.about = name, [], None
        if python is None:
            self.process, self.reason = None, f"{CONTENDERS[name][1]} is not installed"
            return
        command = [python, __file__, "--serve", name, "--sizes", str(size)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, env={**os.environ, **ONE_THREAD}, **pipes)
        self.about, self.reason = self._answer(), None

    def play(self) -> None:
        if self.process is not None:
            print("go", file=self.process.stdin, flush=True)
            self.rates.append(self._answer())

    def close(self) -> dict[str, Any]:
        if self.process is None:
            return {"status": "not run", "reason": self.reason}
        self.process.communicate()
        return {
            "status": "run",
            "steps_per_cpu_second": round(max(self.rates)),
            "median": round(statistics.median(self.rates)),
            "rounds": [round(rate) for rate in self.rates],
            **self.about,
        }

    def _answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} failed: {self.process.stderr.read().strip().splitlines()[-1]}")
        return json.loads(line)


def compare(size: int, rounds: int, navix_python: str | None) -> dict[str, dict[str, Any]]:
    pythons: dict[str, str | None] = dict.fromkeys(CONTENDERS, sys.executable)
    pythons["navix"] = navix_python or (sys.executable if importlib.util.find_spec("navix") else None)
    if importlib.util.find_spec("minigrid") is None:
        pythons["minigrid"] = None
    contenders = [Contender(name, size, pythons[name]) for name in CONTENDERS]
    for _ in range(rounds):
        for contender in contenders:
            contender.play()
    return {contender.name: contender.close() for contender in contenders}


def show(size: int, found: dict[str, dict[str, Any]]) -> None:
    print(f"\n{f'GoToDoor, size {size}':40s} envs   M steps / CPU-second   uvax is faster by")
    ours = found["uvax"]["steps_per_cpu_second"]
    for name, row in found.items():
        if row["status"] == "not run":
            print(f"  {name:38s} not run: {row['reason']}")
        else:
            rate = row["steps_per_cpu_second"]
            print(f"  {name:36s} {row['environments']:6d} {rate / 1e6:22.4f} {ours / rate:18.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 8], help="grid sizes; navix has 5, 6 and 8")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--navix-python", metavar="PATH", help="a Python that has navix, if this one does not")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "envs.jsonl")
    parser.add_argument("--serve", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.sizes[0])
        return

    from uvax.experiments.rows import provenance
    from uvax.files import append_jsonl

    for size in args.sizes:
        started = time.time()
        found = compare(size, args.rounds, args.navix_python)
        show(size, found)
        ratios = {
            name: round(found["uvax"]["steps_per_cpu_second"] / row["steps_per_cpu_second"], 2)
            for name, row in found.items()
            if row["status"] == "run"
        }
        row = {
            "benchmark": "envs",
            "size": size,
            "max_steps": MAX_STEPS,
            "uvax_is_faster_by": ratios,
            "contenders": found,
        }
        append_jsonl(args.out, {**row, "load_average": os.getloadavg(), "provenance": provenance(started)})


if __name__ == "__main__":
    main()
