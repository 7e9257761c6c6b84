"""How much more than its own arithmetic does the TD posterior cost? And does GMRES reach 20,000 transitions?

    python benchmarks/theory.py                    # direct solve, 5,000 transitions
    python benchmarks/theory.py --iterative 20000  # GMRES, beside the numbers of the direct solve where it fits

The yardstick is what the formula cannot do without: the product P Theta_YX where P is dense, one LU factorisation, the
triangular solves for the test points, and the products of the covariance. `ratio` is the solve over that sum; the goal
is 1.5. With check=True the proof of convergence is included: one Cholesky where Delta is positive definite, and about
four times the LU more where it has to be found in the inner product of Theta. Processor time over all threads, so that
other work on the machine counts little (set OPENBLAS_NUM_THREADS=1 while there is any: waiting threads spin); the best
of the repetitions. Rows are appended to results/benchmarks/theory.jsonl.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import lapack

from uvax.experiments.rows import provenance
from uvax.files import append_jsonl
from uvax.theory import Blocks, kernel_blocks, kernels, memory_needed, posterior_from_blocks, td_posterior
from uvax.theory.iterative import td_matrix_in_strips
from uvax.theory.spectrum import factorise

ROOT = Path(__file__).resolve().parents[1]
GAMMA = 0.9


def problem(n: int, tests: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points, next points spread like them, rewards and test points."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 20))
    y = 0.95 * x[rng.permutation(n)] + 0.1 * rng.normal(size=x.shape)
    return x, y, rng.normal(size=n), rng.normal(size=(tests, 20))


def dense_policy(n: int, seed: int = 1) -> np.ndarray:
    """Weights that no sparse format helps with."""
    p = np.random.default_rng(seed).random((n, n))
    return p / p.sum(axis=1, keepdims=True)


def best(run: Callable[[], object], repeat: int) -> float:
    """Smallest processor time of a few runs, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def arithmetic(blocks: Blocks, p: np.ndarray | None) -> None:
    """LU and products, nothing else."""
    bootstrapped = blocks.theta_yx if p is None else p @ blocks.theta_yx
    delta = blocks.theta_xx - GAMMA * bootstrapped
    lu, pivots, _ = lapack.dgetrf(delta.T, overwrite_a=1)
    z = lapack.dgetrs(lu, pivots, blocks.theta_tx.T)[0]
    w = z if p is None else p.T @ z
    z.T @ (blocks.k_xx @ z) + z.T @ (blocks.k_yx.T @ w) + w.T @ (blocks.k_yy @ w)
    blocks.k_tx @ z + blocks.k_ty @ w


def direct(n: int, tests: int, repeat: int) -> list[dict[str, Any]]:
    rows = []
    x, y, reward, test = problem(n, tests)
    kernel = partial(kernels, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu")
    print(f"{n} transitions, |Y| = {n}, {tests} test points, float64; {memory_needed(n, n, tests).sentence()}")
    # Next points at rest make Delta positive definite, next points spread like the points do not.
    for case, following in (("definite", 0.01 * y), ("indefinite", y)):
        start = time.process_time()
        blocks = kernel_blocks(kernel, x, following, test)
        kernel_seconds = time.process_time() - start
        print(f"{case}: kernel blocks {kernel_seconds:.2f} s, apart from what follows", flush=True)
        for name, p in (("P dense", dense_policy(n)), ("P=None", None)):
            needed = best(partial(arithmetic, blocks, p), repeat)
            for check in (False, True):
                post = posterior_from_blocks(blocks, p, reward, GAMMA, check=check)
                spent = best(partial(posterior_from_blocks, blocks, p, reward, GAMMA, check=check), repeat)
                print(
                    f"  {name:8s} check={check!s:5s} {spent:7.2f} s   LU and products {needed:6.2f} s   "
                    f"ratio {spent / needed:5.2f}   certified by {post.certified}",
                    flush=True,
                )
                rows.append(
                    {
                        "case": case,
                        "transitions": n,
                        "tests": tests,
                        "dense_policy": p is not None,
                        "check": check,
                        "certified": post.certified,
                        "kernel_seconds": kernel_seconds,
                        "needed_seconds": needed,
                        "seconds": spent,
                        "ratio": spent / needed,
                    }
                )
    return rows


def iterative(n: int, tests: int, compare: bool) -> list[dict[str, Any]]:
    x, y, reward, test = problem(n, tests)
    kernel = partial(kernels, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu")
    needed = memory_needed(n, n, tests, check=False)
    print(f"{n} transitions, {tests} test points: {needed.sentence()}", flush=True)
    wall, start = time.time(), time.process_time()
    post = td_posterior(kernel, x, y, None, reward, GAMMA, test, solver="gmres", check=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    spent, wall = time.process_time() - start, time.time() - wall
    print(f"GMRES {spent:.0f} s processor, {wall:.0f} s wall, peak {peak:.2f} GiB")
    row = {"case": "gmres", "transitions": n, "tests": tests, "seconds": spent, "wall": wall, "peak_gib": peak}
    if compare:
        # LU of the same matrix in place: the whole direct path would need eight times its memory.
        delta = td_matrix_in_strips(kernel, x, y, None, GAMMA, 0.0)
        exact = factorise(delta, overwrite=True).solve(kernel(test, x)[1].T, transposed=True).T
        for name, a, b in (("gain", post.gain, exact), ("mean", post.mean, exact @ reward)):
            row[f"{name}_difference"] = float(np.abs(a - b).max() / np.abs(b).max())
            print(f"{name}: largest difference to LU {row[f'{name}_difference']:.1e} of the largest entry")
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=5_000)
    parser.add_argument("--tests", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--iterative", type=int, metavar="N", help="run GMRES on N transitions instead")
    parser.add_argument("--compare", action="store_true", help="with --iterative: solve directly as well")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "theory.jsonl")
    arguments = parser.parse_args()
    started = time.time()
    if arguments.iterative:
        rows = iterative(arguments.iterative, min(arguments.tests, 10), arguments.compare)
    else:
        rows = direct(arguments.transitions, arguments.tests, arguments.repeat)
    about = {"benchmark": "theory", "load_average": os.getloadavg(), "provenance": provenance(started)}
    for row in rows:
        append_jsonl(arguments.out, {**about, **row})


if __name__ == "__main__":
    main()
