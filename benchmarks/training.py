"""How fast training is, as ratios to what the machine can do and to the peers, all measured in one run.

    python benchmarks/training.py                              # everything; run nothing else meanwhile
    python benchmarks/training.py --quick                      # small rounds, no large ensembles: a first look
    python benchmarks/training.py --only uvu peers             # some of the sections
    python benchmarks/training.py --torch-python PATH          # PyTorch from another environment

Each bar is a ratio of two numbers of this run. Every training is a process of its own, as a user's is; those of a
section take turns, in each of which the matrix product is timed too, and the best of the turns counts. Rows are
appended to results/benchmarks/training.jsonl with the times of all turns, the growth figure is written beside them.
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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import steps

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "benchmarks"
PAPER = {"width": 512, "heads": 512, "batch_size": 512}
CPU = {"width": 128, "heads": 64, "batch_size": 256}
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Bar = dict[str, Any]


def bar(name: str, value: float | None, limit: float | None, *, at_least: bool = False, **details: Any) -> Bar:
    """One ratio against its bar, if it has one; a value of None was not run."""
    passed = None if value is None or limit is None else bool(value >= limit if at_least else value <= limit)
    return {"name": name, "value": value, "bar": limit, "at_least": at_least, "passed": passed, **details}


class Program:
    """A process that gets ready, and then answers every line of its input with the measurements of a turn."""

    def __init__(self, command: list[str], threads: int):
        self._command = command
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command,
            env=steps.environment(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.about = self._answer()
        except BaseException:  # Ctrl-C while it compiles
            self.close()
            raise

    def turn(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise SystemExit(f"{' '.join(self._command[:2])} failed:\n{self._errors.read()[-2000:]}")
        return json.loads(line)


def ours(args: argparse.Namespace, *, threads: int = CORES, **settings: Any) -> Callable[[], Program]:
    """A training of uvax with these settings of `steps.serve`, to be started."""
    settings = {"seconds": args.seconds, **settings}
    return lambda: Program([sys.executable, str(ROOT / "benchmarks" / "steps.py"), json.dumps(settings)], threads)


def in_turns(
    programs: dict[str, Callable[[], Program]], args: argparse.Namespace, *, rounds: int | None = None
) -> dict[str, dict[str, Any]]:
    """What the programs say of themselves, and the best of their turns: the shortest times and the highest rates."""
    rounds = rounds or args.rounds
    with ExitStack() as stack:
        running: dict[str, Program] = {}
        for name, start in programs.items():
            tell(f"starting {name}")
            running[name] = start()
            stack.callback(running[name].close)
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
        begun = time.perf_counter()
        for i in range(rounds):
            # Forwards and backwards, so that nobody always has the same neighbour.
            for name in list(running) if i % 2 == 0 else reversed(running):
                turns[name].append(running[name].turn())
                time.sleep(0.3)  # waiting threads of PyTorch go on turning for 0.2 s
            left = (time.perf_counter() - begun) / (i + 1) * (rounds - i - 1)
            tell(f"round {i + 1} of {rounds}, {left / 60:.0f} min left in this section")
    tell("")
    found = {}
    for name, each in turns.items():
        best: dict[str, Any] = dict(running[name].about)
        for key in each[0]:
            values = [turn[key] for turn in each]
            best[key] = values[-1] if key == "loss" else min(values) if key.endswith("seconds") else max(values)
        if "gflop" in best:
            best["ratio"] = best["seconds"] * best["gflop_per_second"] / best["gflop"]
        found[name] = {**best, "turns": [float(f"{turn['seconds']:.5g}") for turn in each]}
    return found


def tell(text: str) -> None:
    """What is being done, in one line that is written over, for somebody who watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _json(command: list[str], threads: int) -> Any:
    done = subprocess.run(command, env=steps.environment(threads), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def uvu(args: argparse.Namespace) -> list[Bar]:
    """UVU and the other methods with one trunk at paper scale, against their arithmetic."""
    methods = {m: {**PAPER, "method": m} for m in ("uvu", "dqn", "rnd", "rnd-p")}
    methods["uvu-features"] = {**PAPER, "method": "uvu", "cache": "compact_cache"}
    methods["uvu-nothing"] = {**PAPER, "method": "uvu", "cache": None}
    found = in_turns({name: ours(args, alone=True, **settings) for name, settings in methods.items()}, args)
    # The bar counts a step that knows g's features and computes its heads, at (s, a) too. Ours knows those.
    counted = (steps.flop("uvu", cache="compact_cache") + 2 * 512**3) / 1e9
    without = steps.flop("uvu", cache=None) / 1e9
    bars = []
    for m, text, gflop in (
        ("uvu-features", "features of g", counted),
        ("uvu", "outputs of g", counted),
        ("uvu-nothing", "nothing", without),
    ):
        r = found[m]
        name = f"uvu, paper scale, {text} kept: time / {gflop:.1f} GFLOP"
        bars.append(bar(name, r["seconds"] * r["gflop_per_second"] / gflop, 1.15, **r))
    for m, r in found.items():
        bars.append(bar(f"{m}, paper scale: time / arithmetic of its own", r["ratio"], 1.3, **r))
        # What of this is the products themselves: they do not reach the best rate inside a program.
        products = r["products_seconds"] * r["gflop_per_second"] / r["gflop"]
        bars.append(bar(f"{m}, paper scale: its matrix products alone / arithmetic of its own", products, 1.3))
    return bars


def peers(args: argparse.Namespace) -> list[Bar]:
    """BDQNP against its arithmetic, and against BDQNP(3)."""
    sizes = (3,) if args.quick else (3, 15, 35)
    found = in_turns({f"bdqnp{k}": ours(args, method="bdqnp", members=k, **PAPER) for k in sizes}, args)
    three = found["bdqnp3"]
    bars = [bar("bdqnp3, paper scale: time / needed arithmetic", three["ratio"], 1.3, **three)]
    for k, limit in ((15, 5.5), (35, 12.5)):
        row = found.get(f"bdqnp{k}")
        ratio = None if row is None else row["seconds"] / three["seconds"]
        bars.append(bar(f"bdqnp{k} / bdqnp3, paper scale: time", ratio, limit, **(row or {})))
    return bars


def small(args: argparse.Namespace) -> list[Bar]:
    """The cpu preset: overhead of one single-threaded process, and how to use all cores."""
    methods = {m: {**CPU, "method": m} for m in ("dqn", "rnd", "rnd-p", "uvu")}
    methods |= {f"bdqnp{k}": {**CPU, "method": "bdqnp", "members": k} for k in ((3,) if args.quick else (3, 15))}
    one_thread = {m: ours(args, threads=1, core=0, alone=True, **settings) for m, settings in methods.items()}
    found = in_turns({**one_thread, "uvu, all threads": ours(args, **methods["uvu"])}, args)
    together = found.pop("uvu, all threads")["seconds"]
    bars = [
        # Against its own products and not the best rate: products of this size do not reach that.
        bar(
            f"{m}, cpu preset, one thread: share of a step outside its matrix products",
            1 - r["products_seconds"] / r["seconds"],
            0.15,
            **r,
        )
        for m, r in found.items()
    ]
    # One process on each core, all at the same time.
    alone = [ours(args, threads=1, core=core, **methods["uvu"]) for core in range(CORES)]
    with ThreadPoolExecutor(CORES) as pool:
        each = list(pool.map(lambda start: in_turns({"uvu": start}, args)["uvu"]["seconds"], alone))
    rate = sum(1 / seconds for seconds in each)
    name = f"uvu, cpu preset: steps/s of {CORES} one-thread processes / one with {CORES} threads"
    bars.append(bar(name, rate * together, 1.0, at_least=True, steps_per_second=rate))
    return bars


def parts(args: argparse.Namespace) -> list[Bar]:
    """What of a step of UVU at the cpu preset goes away with one thing left out, as shares of the whole step."""
    whole = {**CPU, "method": "uvu"}
    without = {
        "the l2 norms": {"normalise": False},
        "Adam (SGD instead)": {"optimiser": "sgd"},
        "rows from beyond the cache (2,000 transitions)": {"rows": 2_000},
    }
    programs = {name: ours(args, threads=1, core=0, **whole, **left_out) for name, left_out in without.items()}
    found = in_turns({"whole": ours(args, threads=1, core=0, **whole), **programs}, args)
    seconds = found["whole"]["seconds"]
    return [
        bar(
            f"uvu, cpu preset, one thread, without {name}: saved",
            1 - found[name]["seconds"] / seconds,
            None,
            whole_seconds=seconds,
            whole_turns=found["whole"]["turns"],
            **found[name],
        )
        for name in without
    ]


def memory(args: argparse.Namespace) -> list[Bar]:
    """Peak resident memory at paper scale, each method alone, against the bytes it must hold."""
    members = (3,) if args.quick else (3, 15)
    methods: dict[str, dict[str, Any]] = {m: {**PAPER, "method": m} for m in ("dqn", "rnd", "rnd-p", "uvu")}
    methods |= {f"bdqnp{k}": {**PAPER, "method": "bdqnp", "members": k} for k in members}
    bars = []
    for name, settings in methods.items():
        peak = in_turns({name: ours(args, seconds=0.1, **settings)}, args, rounds=1)[name]["peak_bytes"]
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
        # A slope needs no long turns.
        programs = {
            n: ours(args, threads=1, core=0, seconds=min(1.0, args.seconds), **settings)
            for n, settings in methods.items()
        }
        values = in_turns(programs, args)
        times = [values[str(n)]["seconds"] for n in sizes]
        work = [values[str(n)]["gflop"] for n in sizes]
        span = math.log(sizes[-1] / sizes[0])
        slope, expected = math.log(times[-1] / times[0]) / span, math.log(work[-1] / work[0]) / span
        curves[axis] = (sizes, times, work, slope, expected)
        details = {"slope": slope, "expected": expected, "sizes": sizes, "seconds": times, "gflop": work}
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
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    # One scale of time for all panels, or a rise of a few percent would look like one of a few times.
    figure, panels = plt.subplots(1, len(curves), figsize=(3 * len(curves), 3), sharey=True, constrained_layout=True)
    for panel, (axis, (sizes, times, work, slope, expected)) in zip(panels, curves.items(), strict=True):
        panel.loglog(sizes, [1e3 * t for t in times], "o-", label="measured")
        panel.loglog(sizes, [1e3 * times[0] * w / work[0] for w in work], "--", label="arithmetic")
        panel.set(xlabel=axis, title=f"slope {slope:.2f}, arithmetic {expected:.2f}")
        panel.set_xticks(sizes, [f"{n:,}" for n in sizes])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
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
        train = in_turns({"uvu": ours(args, method="uvu", **settings)}, args)["uvu"]["seconds"]
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
    peer = [python, str(ROOT / "benchmarks" / "torch_peer.py")]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "reference.npz")
        command = [sys.executable, str(ROOT / "benchmarks" / "steps.py"), json.dumps({"reference": path})]
        subprocess.run(command, check=True)
        _json([*peer, "--check", path], CORES)

    def theirs(m: str, kept: str, way: str) -> Callable[[], Program]:
        return lambda: Program([*peer, "--serve", m, kept, way, "--steps", "50"], CORES)

    programs = {
        ("uvu", "outputs"): ours(args, method="uvu", **PAPER),
        ("uvu", "features"): ours(args, method="uvu", cache="compact_cache", **PAPER),
        ("bdqnp3", "outputs"): ours(args, method="bdqnp", members=3, **PAPER),
    }
    ways = {
        "plain": ("eager",),
        "outputs": ("eager", "compiled"),
        "features": ("eager", "compiled", "heads of g apart"),
    }
    programs |= {
        (m, kept, way): theirs(m, kept, way)
        for m, kept, _ in wanted
        for way in ways[kept]
        if way == "eager" or not args.quick
    }
    found = in_turns({", ".join(key): start for key, start in programs.items()}, args)
    bars = []
    for m, kept, limit in wanted:
        mine = found[f"{m}, {'outputs' if kept == 'plain' else kept}"]
        each = {way: found[f"{m}, {kept}, {way}"]["seconds"] for way in ways[kept] if f"{m}, {kept}, {way}" in found}
        best = min(each.values())
        details = {**mine, "torch_seconds": best, "torch_each": each}
        bars.append(bar(names[m, kept], best / mine["seconds"], limit, at_least=True, **details))
    return bars


SECTIONS: dict[str, Callable[[argparse.Namespace], list[Bar]]] = {
    f.__name__: f for f in (uvu, peers, small, parts, evaluation, startup, memory, growth, torch)
}


def show(section: str, bars: list[Bar]) -> None:
    print(f"\n{section}")
    for row in bars:
        value = "not run" if row["value"] is None else f"{row['value']:.3g}"
        limit = "" if row["bar"] is None else f"{'>=' if row['at_least'] else '<='} {row['bar']:.3g}"
        verdict = {None: "", True: "ok", False: "MISSED"}[row["passed"]]
        print(f"  {row['name']:76s} {value:>8s}  {limit}  {verdict}".rstrip(), flush=True)


def main() -> None:
    from uvax.experiments.rows import provenance
    from uvax.files import append_jsonl

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short rounds, no large ensembles")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=None, help="turns to take the best of")
    parser.add_argument("--torch-python", default=None, help="a Python that has PyTorch")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 10)
    # About 50 steps of UVU in a call (`fit` makes up to 100): each call costs nearly a step, for its memory.
    args.seconds = 0.3 if args.quick else 3.0
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
    try:
        main()
    except KeyboardInterrupt:
        print("\ninterrupted; the rows of finished sections are kept", file=sys.stderr)
        raise SystemExit(130) from None
