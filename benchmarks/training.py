"""How fast training is, as ratios to what the machine can do and to the peers, all measured in one run.

    python benchmarks/training.py                              # everything; run nothing else meanwhile
    python benchmarks/training.py --quick                      # small rounds, no large ensembles: a first look
    python benchmarks/training.py --only uvu peers             # some of the sections
    python benchmarks/training.py --torch-python PATH          # PyTorch from another environment

Each bar is a ratio of two numbers of this run. Every group of methods is a process of its own (XLA fixes its threads
when it starts) in which the methods and the matrix product take turns; the best of the rounds counts. Rows are
appended to results/benchmarks/training.jsonl, the growth figure is written beside them.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import steps

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "benchmarks"
PAPER = {"width": 512, "heads": 512, "batch_size": 512}
CPU = {"width": 128, "heads": 64, "batch_size": 256}
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Bar = dict[str, Any]


def bar(name: str, value: float | None, limit: float, *, at_least: bool = False, **details: Any) -> Bar:
    """One ratio against its bar; a value of None was not run."""
    passed = None if value is None else bool(value >= limit if at_least else value <= limit)
    return {"name": name, "value": value, "bar": limit, "at_least": at_least, "passed": passed, **details}


def worker(methods: dict[str, dict[str, Any]], args: argparse.Namespace, *, threads: int = CORES, **settings: Any):
    """A process of `steps.py` that measures these methods."""
    settings = {"rounds": args.rounds, "seconds": args.seconds, "methods": methods, **settings}
    return _json([sys.executable, str(ROOT / "benchmarks" / "steps.py"), json.dumps(settings)], threads)


def _json(command: list[str], threads: int) -> Any:
    done = subprocess.run(command, env=steps.environment(threads), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def uvu(args: argparse.Namespace) -> list[Bar]:
    """UVU and the other methods with one trunk at paper scale, against their arithmetic."""
    methods = {m: dict(PAPER) for m in ("uvu", "dqn", "rnd", "rnd-p")}
    methods["uvu-features"] = {**PAPER, "method": "uvu", "cache": "compact_cache"}
    methods["uvu-nothing"] = {**PAPER, "method": "uvu", "cache": None}
    found = worker(methods, args, alone=True)
    rate, peak = found["gflop_per_second"], found["peak_gflop_per_second"]
    rates = {"gflop_per_second": rate, "peak_gflop_per_second": peak}
    # The bar counts a step that knows g's features and computes its heads, at (s, a) too. Ours knows those.
    counted = (steps.flop("uvu", cache="compact_cache") + 2 * 512**3) / 1e9
    without = steps.flop("uvu", cache=None) / 1e9
    bars = []
    for m, text, gflop in (
        ("uvu-features", "features of g", counted),
        ("uvu", "outputs of g", counted),
        ("uvu-nothing", "nothing", without),
    ):
        r = found["methods"][m]
        name = f"uvu, paper scale, {text} kept: time / {gflop:.1f} GFLOP"
        bars.append(bar(name, r["seconds"] * rate / gflop, 1.15, **rates, **r))
    for m, r in found["methods"].items():
        bars.append(bar(f"{m}, paper scale: time / arithmetic of its own", r["ratio"], 1.3, **rates, **r))
        # What of this is the products themselves: they do not reach the best rate inside a program.
        products = r["products_seconds"] * rate / r["gflop"]
        bars.append(bar(f"{m}, paper scale: its matrix products alone / arithmetic of its own", products, 1.3))
    return bars


def peers(args: argparse.Namespace) -> list[Bar]:
    """BDQNP against its arithmetic, and against BDQNP(3)."""
    sizes = (3,) if args.quick else (3, 15, 35)
    methods = {f"bdqnp{k}": {**PAPER, "method": "bdqnp", "members": k} for k in sizes}
    found = worker(methods, args)
    values = found["methods"]
    three = values["bdqnp3"]
    rate = found["gflop_per_second"]
    bars = [bar("bdqnp3, paper scale: time / needed arithmetic", three["ratio"], 1.3, gflop_per_second=rate, **three)]
    for k, limit in ((15, 5.5), (35, 12.5)):
        row = values.get(f"bdqnp{k}")
        ratio = None if row is None else row["seconds"] / three["seconds"]
        bars.append(bar(f"bdqnp{k} / bdqnp3, paper scale: time", ratio, limit, **(row or {})))
    return bars


def small(args: argparse.Namespace) -> list[Bar]:
    """The cpu preset: overhead of one single-threaded process, and how to use all cores."""
    names = ("dqn", "rnd", "rnd-p", "uvu")
    methods = {m: dict(CPU) for m in names} | {"bdqnp3": {**CPU, "method": "bdqnp", "members": 3}}
    if not args.quick:
        methods["bdqnp15"] = {**CPU, "method": "bdqnp", "members": 15}
    alone = worker(methods, args, threads=1, core=0, alone=True)
    bars = [
        # Against its own products and not the best rate: products of this size do not reach that.
        bar(
            f"{m}, cpu preset, one thread: share of a step outside its matrix products",
            1 - r["products_seconds"] / r["seconds"],
            0.15,
            **r,
        )
        for m, r in alone["methods"].items()
    ]
    one = {"uvu": dict(CPU)}
    together = worker(one, args)["methods"]["uvu"]["seconds"]
    with ThreadPoolExecutor(CORES) as pool:
        each = list(pool.map(lambda core: worker(one, args, threads=1, core=core), range(CORES)))
    rate = sum(1 / run["methods"]["uvu"]["seconds"] for run in each)
    name = f"uvu, cpu preset: steps/s of {CORES} one-thread processes / one with {CORES} threads"
    bars.append(bar(name, rate * together, 1.0, at_least=True, steps_per_second=rate))
    return bars


def memory(args: argparse.Namespace) -> list[Bar]:
    """Peak resident memory at paper scale, each method alone, against the bytes it must hold."""
    members = (3,) if args.quick else (3, 15)
    methods = {m: dict(PAPER) for m in ("dqn", "rnd", "rnd-p", "uvu")}
    methods |= {f"bdqnp{k}": {**PAPER, "method": "bdqnp", "members": k} for k in members}
    bars = []
    for name, settings in methods.items():
        peak = worker({name: settings}, args, rounds=1, seconds=0.1)["peak_bytes"]
        bars.append(bar(f"{name}, paper scale: peak resident memory [GiB]", peak / 2**30, 4.0))
    return bars


def growth(args: argparse.Namespace) -> list[Bar]:
    """Time per step against one size at a time; the slope in log-log beside the slope of the arithmetic."""
    import math

    base = {"width": 256, "heads": 128, "batch_size": 256}
    axes: dict[str, tuple[str, str, tuple[int, ...]]] = {
        "heads": ("uvu", "heads", (64, 128, 256, 512)),
        "width": ("uvu", "width", (128, 256, 512)),
        "batch": ("uvu", "batch_size", (128, 256, 512, 1024)),
        "members": ("bdqnp", "members", (2, 4, 8)),
        "dataset": ("uvu", "rows", (10_000, 100_000, 1_000_000)),
    }
    bars, curves = [], {}
    for axis, (method, key, sizes) in axes.items():
        sizes = sizes[:: len(sizes) - 1] if args.quick else sizes
        methods = {
            str(n): {**base, "method": method, key: n, "cache": None if axis == "dataset" else "cache"} for n in sizes
        }
        # A slope needs no long windows: with those of the other sections it took 15 of 53 minutes.
        values = worker(methods, args, threads=1, core=0, seconds=min(2.0, args.seconds))["methods"]
        times = [values[str(n)]["seconds"] for n in sizes]
        work = [values[str(n)]["gflop"] for n in sizes]
        span = math.log(sizes[-1] / sizes[0])
        slope, expected = math.log(times[-1] / times[0]) / span, math.log(work[-1] / work[0]) / span
        curves[axis] = (sizes, times, work, slope, expected)
        details = {"slope": slope, "expected": expected, "sizes": sizes, "seconds": times}
        bars.append(
            bar(
                f"{method} against {axis}: slope {slope:.2f} - expected {expected:.2f}",
                slope - expected,
                0.15,
                **details,
            )
        )
    if not args.no_save:
        _figure(curves, RESULTS / "training_growth.png")
    return bars


def _figure(curves: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    # One scale of time for all panels, or a rise of a few percent would look like one of a few times.
    figure, panels = plt.subplots(1, len(curves), figsize=(3 * len(curves), 3), sharey=True, constrained_layout=True)
    for panel, (axis, (sizes, times, work, slope, expected)) in zip(panels, curves.items(), strict=True):
        panel.loglog(sizes, [1e3 * t for t in times], "o-", label="measured")
        panel.loglog(sizes, [1e3 * times[0] * w / work[0] for w in work], "--", label="arithmetic")
        panel.set(xlabel=axis, title=f"slope {slope:.2f}, arithmetic {expected:.2f}")
        panel.set_xticks(sizes, [f"{n:,}" for n in sizes])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(ScalarFormatter())
        panel.yaxis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("ms per step")
    panels[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


EVALUATION = """
import json, time, jax
from uvax.envs import GoToDoor
from uvax.evaluation.protocol import evaluate
from uvax.estimators import UVU
from uvax.data.transition import Spec
import jax.numpy as jnp
estimator, env = UVU(width={width}, heads={heads}), GoToDoor(size=5)
state = estimator.init(Spec(jax.ShapeDtypeStruct((35,), jnp.float32), 6, 4), key=jax.random.key(0))
best = None
for i in range({rounds} + 1):
    start = time.perf_counter()
    jax.block_until_ready(evaluate(estimator, state, env, key=jax.random.key(i), episodes=2000))
    seconds = time.perf_counter() - start
    best = seconds if i <= 1 else min(best, seconds)
print(json.dumps(best))
"""


def evaluation(args: argparse.Namespace) -> list[Bar]:
    """2,000 episodes of task rejection against 100 training steps."""
    bars = []
    for name, settings in (("cpu preset", CPU), ("paper scale", PAPER)):
        train = worker({"uvu": dict(settings)}, args)["methods"]["uvu"]["seconds"]
        code = EVALUATION.format(rounds=args.rounds, **{k: settings[k] for k in ("width", "heads")})
        play = _json([sys.executable, "-c", code], CORES)
        bars.append(bar(f"uvu, {name}: 2,000 episodes / 100 steps", play / (100 * train), 1.0, seconds=play))
    return bars


FIRST_STEP = """
import sys, jax
# As the command line does it.
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
import numpy as np, uvax
rng = np.random.default_rng(0)
n = 5_000
data = uvax.from_arrays(
    rng.integers(0, 5, (n, 35)).astype(np.int8), rng.integers(0, 4, n).astype(np.int32), rng.random(n, np.float32),
    rng.integers(0, 5, (n, 35)).astype(np.int8), terminated=np.zeros(n, bool), num_actions=4,
    task=np.eye(6, dtype=np.int8)[rng.integers(0, 6, n)],
)
uvax.fit(uvax.UVU({settings}), data, steps=1, seed=0, progress=False)
"""


def startup(args: argparse.Namespace) -> list[Bar]:
    """`uvax --help`, which must not import jax, and a process from its start to its first training step."""

    def seconds(*command: str) -> float:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
        return time.perf_counter() - start

    bars = [bar("uvax --help [s]", min(seconds("-m", "uvax.cli", "--help") for _ in range(args.rounds)), 0.5)]
    for name, settings in (("cpu preset", CPU), ("paper scale", PAPER)):
        code = FIRST_STEP.format(settings=", ".join(f"{key}={value}" for key, value in settings.items()))
        with tempfile.TemporaryDirectory() as cache:
            cold = seconds("-c", code, cache)
            warm = min(seconds("-c", code, cache) for _ in range(2))
        name = f"uvu, {name}: start to first step, warm compilation cache [s]"
        bars.append(bar(name, warm, 10.0, cold_seconds=cold))
    return bars


def torch(args: argparse.Namespace) -> list[Bar]:
    """The same steps in PyTorch, plain and at its best."""
    python = args.torch_python or (sys.executable if importlib.util.find_spec("torch") else None)
    # (method, what both keep of the frozen networks, bar); "plain": theirs keeps nothing, ours all it can.
    wanted = (
        ("uvu", "plain", 1.8),
        ("uvu", "outputs", 1.2),
        ("uvu", "features", 1.2),
        ("bdqnp3", "plain", 1.0),
        ("bdqnp3", "outputs", 1.0),
    )
    names = {
        (m, kept): f"{m}, paper scale: PyTorch {kept if kept == 'plain' else f'best, {kept} kept'} / uvax, time"
        for m, kept, _ in wanted
    }
    if python is None:
        return [bar(names[m, kept], None, limit, at_least=True) for m, kept, limit in wanted]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "reference.npz")
        command = [sys.executable, str(ROOT / "benchmarks" / "steps.py"), json.dumps({"reference": path})]
        subprocess.run(command, check=True)
        peer = [python, str(ROOT / "benchmarks" / "torch_peer.py"), "--rounds", str(args.rounds), "--check", path]
        # Half of our rounds before theirs and half after, so that a quiet minute of the machine favours nobody.
        methods = {
            "uvu": dict(PAPER),
            "uvu-features": {**PAPER, "method": "uvu", "cache": "compact_cache"},
            "bdqnp3": {**PAPER, "method": "bdqnp", "members": 3},
        }
        half = max(1, args.rounds // 2)
        before = worker(methods, args, rounds=half)["methods"]
        steps_each = before["uvu"]["steps"]
        theirs = _json([*peer, "--steps", str(steps_each), *["--no-compile"] * args.quick], CORES)
        after = worker(methods, args, rounds=half)["methods"]
    bars = []
    for m, kept, limit in wanted:
        ours = "uvu-features" if kept == "features" else m
        seconds = min(before[ours]["seconds"], after[ours]["seconds"])
        details = {"seconds": seconds, "torch_seconds": theirs[m][kept], "torch_each": theirs[m]["each"]}
        bars.append(bar(names[m, kept], theirs[m][kept] / seconds, limit, at_least=True, **details))
    return bars


SECTIONS: dict[str, Callable[[argparse.Namespace], list[Bar]]] = {
    f.__name__: f for f in (uvu, peers, small, evaluation, startup, memory, growth, torch)
}


def show(section: str, bars: list[Bar]) -> None:
    print(f"\n{section}")
    for row in bars:
        value = "not run" if row["value"] is None else f"{row['value']:.3g}"
        sign = ">=" if row["at_least"] else "<="
        verdict = {None: "", True: "ok", False: "MISSED"}[row["passed"]]
        print(f"  {row['name']:76s} {value:>8s}  {sign} {row['bar']:.3g}  {verdict}", flush=True)


def main() -> None:
    from uvax.experiments.rows import provenance
    from uvax.files import append_jsonl

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short rounds, no large ensembles")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=None, help="rounds to take the best of")
    parser.add_argument("--torch-python", default=None, help="a Python that has PyTorch")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 10)
    # At least 50 steps of UVU in a call (`fit` makes up to 100): each call costs nearly a step, for its memory.
    args.seconds = 0.3 if args.quick else 8.0
    started = time.time()
    here, load = provenance(started), os.getloadavg()
    print(f"{here['cpu']}, {CORES} cores, load {load[0]:.2f}, commit {here['commit']}")
    for section in args.only:
        bars = SECTIONS[section](args)
        show(section, bars)
        if not args.no_save:
            for row in bars:
                about = {"benchmark": "training", "section": section, "quick": args.quick, "cores": CORES}
                source = {"load_average": load, "provenance": provenance(started)}
                append_jsonl(RESULTS / "training.jsonl", {**about, **row, **source})


if __name__ == "__main__":
    main()
