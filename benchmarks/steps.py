"""One training step of every method, ready to be timed, and the arithmetic it needs. Used by `training.py`.

    python benchmarks/steps.py '{"method": "uvu", "width": 128, "heads": 64, "batch_size": 256, "seconds": 1}'

compiles that training, prints a line of JSON that says how much a step needs, and then answers every line of its input
with the measurements of one turn: the rate of the matrix product, and seconds per step. Each training has a process
of its own, as a user's has; those that are compared take turns (`training.py`).
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

OBS, TASK, ACTIONS = 35, 6, 4
METHODS = {"dqn": "dqn", "bdqnp": "bdqnp", "rnd": "dqn-rnd", "rnd-p": "dqn-rnd-p", "uvu": "uvu"}


def flop(method: str, **sizes: Any) -> float:
    """FLOP of the matrix products that one step needs; the rest (elementwise, optimiser, batch) counts as overhead."""
    return float(sum(2 * m * k * n for m, k, n in products(method, **sizes)))


def products(
    method: str,
    *,
    width: int = 512,
    heads: int = 512,
    batch_size: int = 512,
    members: int = 1,
    depth: int = 3,
    cache: str | None = "cache",
) -> list[tuple[int, int, int]]:
    """(m, k, n) of every matrix product m x k by k x n of one step.

    With `cache="cache"` all outputs of a frozen network are known, with "compact_cache" its outputs at (s, a) and its
    features at s', with None neither.
    """
    heads_of_g = 0 if cache == "cache" else 1
    found: list[tuple[int, int, int]] = []

    def layer(n_in: int, n_out: int, forward: int, gradients: int, *, of_input: bool = True) -> None:
        found.extend([(batch_size, n_in, n_out)] * forward)
        found.extend([(n_in, batch_size, n_out)] * gradients)
        found.extend([(batch_size, n_out, n_in)] * (gradients if of_input else 0))

    def trunk(forward: int, gradients: int) -> None:
        for n_in in (OBS, TASK):
            layer(n_in, width, forward, gradients, of_input=False)
        for _ in range(depth):
            layer(width, width, forward, gradients)

    def q(forward: int) -> None:
        trunk(forward, 1)
        layer(width, ACTIONS, forward, 1)

    for _ in range(members):
        q(3)
    if method in ("rnd", "rnd-p"):
        q(2)
        trunk(2 if method == "rnd-p" else 1, 1)
        layer(width, heads, 2 + heads_of_g if method == "rnd-p" else 1, 1)
    if method == "uvu":
        trunk(3, 1)
        layer(width, heads, 1, 1)
        layer(width, ACTIONS * heads, 2 + heads_of_g, 0)
    if cache is None and method in ("rnd", "rnd-p", "uvu"):
        layer(width, heads, 1, 0)
        trunk(1 if method == "rnd" else 2, 0)
    for _ in range(members if cache is None and method == "bdqnp" else 0):
        trunk(2, 0)
        layer(width, ACTIONS, 2, 0)
    return found


def arithmetic(shapes: list[tuple[int, int, int]], steps: int) -> Callable[[], Any]:
    """A function that computes these products `steps` times and nothing else, each with right-hand sides of its own."""
    import jax
    import jax.numpy as jnp

    keys = iter(jax.random.split(jax.random.key(0), 2 * len(shapes)))
    # One spare row: which rows are multiplied depends on the turn, or the products would be taken out of the loop.
    left = {(m, k): jax.random.normal(next(keys), (m + 1, k)) for m, k, _ in shapes}
    right = [jax.random.normal(next(keys), (k, n)) for _, k, n in shapes]

    @jax.jit
    def chunk(left: Any, right: Any) -> Any:
        def step(total: Any, i: Any) -> Any:
            rows = {mk: jax.lax.dynamic_slice_in_dim(x, i % 2, mk[0]) for mk, x in left.items()}
            out = [rows[m, k] @ b for (m, k, _), b in zip(shapes, right, strict=True)]
            return total + sum(x[0, 0] for x in jax.lax.optimization_barrier(out)), None

        return jax.lax.scan(step, jnp.float32(0), jnp.arange(steps, dtype=jnp.int32))[0]

    return lambda: jax.block_until_ready(chunk(left, right))


def training(
    method: str, steps: int, *, rows: int = 20_000, cache: str | None = "cache", **hyperparameters: Any
) -> tuple[Callable[[Any, int], Any], Any]:
    """(run, state): `run(state, i)` is the i-th chunk of `steps` steps, as `uvax.fit` runs them.

    `cache`: what is computed before of the frozen network, "cache" (its outputs), "compact_cache" (its features) or
    nothing.
    """
    import jax
    import numpy as np

    from uvax.data import Dataset
    from uvax.estimators import make
    from uvax.training.loop import Trainer

    estimator = make(METHODS[method], **hyperparameters)
    rng = np.random.default_rng(0)
    data = Dataset(
        obs=rng.integers(0, 5, (rows, OBS), np.int8),
        task=np.eye(TASK, dtype=np.int8)[rng.integers(0, TASK, rows)],
        # As uneven as the data of an agent: turns, steps forward and a few openings of doors.
        action=rng.choice(ACTIONS, rows, p=[0.25, 0.2, 0.35, 0.2]).astype(np.int32),
        reward=(rng.random(rows) < 0.1).astype(np.float32),
        terminated=np.zeros(rows, bool),
        truncated=np.ones(rows, bool),
        episode_start=np.ones(rows, bool),
        next_obs=rng.integers(0, 5, (rows, OBS), np.int8),
        header={"num_actions": ACTIONS},
    )
    trainer = Trainer(estimator, data, [0], stacked=False)
    state = trainer.init()
    if cache is not None and hasattr(estimator, cache):
        trainer.fill_cache(state, cache)

    def run(state: Any, i: int) -> Any:
        chunk = jax.block_until_ready(trainer.run(state, i * steps, steps))
        return chunk.state, chunk.loss

    return run, state


def reference(path: str) -> None:
    """Parameters, a batch and the loss of one step of UVU and BDQNP(3), for `torch_peer.py --check`."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from uvax.data.transition import Spec, Transition
    from uvax.estimators import make

    rng, stored = np.random.default_rng(0), {}
    spec = Spec(jax.ShapeDtypeStruct((OBS,), jnp.float32), TASK, ACTIONS)
    rows = 48
    batch = Transition(
        obs=jnp.asarray(rng.integers(0, 5, (rows, OBS)), jnp.float32),
        task=jnp.asarray(np.eye(TASK)[rng.integers(0, TASK, rows)], jnp.float32),
        action=jnp.asarray(rng.integers(0, ACTIONS, rows), jnp.int32),
        reward=jnp.asarray(rng.random(rows), jnp.float32),
        discount=jnp.full(rows, 0.9, jnp.float32),
        next_obs=jnp.asarray(rng.integers(0, 5, (rows, OBS)), jnp.float32),
    )
    for name, settings in {"uvu": {"heads": 24}, "bdqnp3": {}}.items():
        estimator = make(name, width=32, batch_size=rows, **settings)
        state = estimator.init(spec, key=jax.random.key(1))
        # A target of its own, or the roles of online and target parameters could be swapped unnoticed.
        state = state._replace(target=estimator.init(spec, key=jax.random.key(2)).params)
        _, metrics = estimator.update(state, batch, key=jax.random.key(3))
        stored[f"{name}/loss"] = np.asarray(metrics["loss"])
        stored |= {f"{name}/batch/{n}": np.asarray(x) for n, x in batch._asdict().items() if x is not None}
        for part in ("params", "target", "frozen"):
            tree = getattr(state, part)
            nets = tree if name == "uvu" else {f"q{k}": member for k, member in enumerate(tree.apart())}
            for net, value in nets.items():
                layers = {"encode_obs": value.encode_obs, "encode_task": value.encode_task, "head": value.head}
                layers |= {f"hidden{i}": layer for i, layer in enumerate(value.hidden)}
                for layer, dense in layers.items():
                    stored[f"{name}/{part}/{net}/{layer}.weight"] = np.asarray(dense.weight)
                    stored[f"{name}/{part}/{net}/{layer}.bias"] = np.asarray(dense.bias)
    np.savez(path, **stored)


class Rate:
    """The matrix-multiply rate of this process: the best of 512 x 512 x 512 and 512 x 512 x 2048 in float32.

    A window of seconds, as a call of training steps takes, is what such a call is compared with: on a shared machine a
    few milliseconds without interruption are easier to find. `peak` is the best of windows of four products.
    """

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        product = jax.jit(jnp.matmul)
        self._products = []
        for columns in (512, 2048):
            a = jax.random.normal(jax.random.key(0), (512, 512))
            b = jax.random.normal(jax.random.key(1), (512, columns))
            product(a, b).block_until_ready()
            self._products.append((lambda a=a, b=b: product(a, b), 2 * 512 * 512 * columns))
        self.peak = 0.0
        for _ in range(5):
            self.measure(0.0)

    def measure(self, seconds: float) -> float:
        """The better rate of a window of so many seconds for either product."""
        best = 0.0
        for product, work in self._products:
            begun, done = time.perf_counter(), 0
            now = begun
            while done == 0 or now - begun < seconds:
                start = now
                for _ in range(4):
                    out = product()
                out.block_until_ready()
                now = time.perf_counter()
                done += 4 * work
                self.peak = max(self.peak, 4 * work / (now - start))
            best = max(best, done / (now - begun))
        return best


def serve(method: str, *, seconds: float, alone: bool = False, **settings: Any) -> None:
    """Compile a training and say so; then a turn for every line of input: the matrix product, then a call of steps.

    A turn answers with the rate and the seconds per step; with `alone` also with the seconds that the products of a
    step take by themselves.
    """
    sizes = {key: settings[key] for key in ("width", "heads", "batch_size", "members", "cache") if key in settings}
    if method in ("dqn", "bdqnp"):
        settings.pop("heads", None)
    needed = flop(method, **sizes)
    rate = Rate()
    # Memory is allocated once for all steps of a call; with few of them that would be counted as their cost.
    # `fit` makes calls of up to 100 steps.
    steps = max(40, min(200, round(seconds * rate.peak / needed)))
    start = time.perf_counter()
    run, state = training(method, steps, **settings)
    state, _ = run(state, 0)
    build = time.perf_counter() - start
    products_alone = arithmetic(products(method, **sizes), steps) if alone else None
    if products_alone is not None:
        products_alone()
    print(json.dumps({"gflop": needed / 1e9, "steps": steps, "build_seconds": build}), flush=True)
    for turn, _ in enumerate(sys.stdin, start=1):
        found = {"gflop_per_second": rate.measure(seconds / 2) / 1e9}
        start = time.perf_counter()
        state, loss = run(state, turn)
        found["seconds"] = (time.perf_counter() - start) / steps
        if products_alone is not None:
            start = time.perf_counter()
            products_alone()
            found["products_seconds"] = (time.perf_counter() - start) / steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["peak_bytes"] = peak if sys.platform == "darwin" else peak * 1024
        print(json.dumps({**found, "peak_gflop_per_second": rate.peak / 1e9, "loss": float(loss[-1])}), flush=True)


def environment(threads: int) -> dict[str, str]:
    """The variables of a process with that many XLA threads."""
    variables = dict(os.environ)
    if threads == 1:
        variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        variables["PJRT_NPROC"] = variables["OMP_NUM_THREADS"] = "1"
    return variables


def main() -> None:
    settings = json.loads(sys.argv[1])
    if "reference" in settings:
        return reference(settings["reference"])
    core = settings.pop("core", None)
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    serve(**settings)


if __name__ == "__main__":
    main()
