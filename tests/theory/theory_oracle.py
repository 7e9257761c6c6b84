"""The oracle's test vectors, unpacked into the arguments of `uvax.theory`."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uvax.theory import Kernel, kernels

DATA = Path(__file__).parent.parent / "data" / "oracle"


class Case(NamedTuple):
    name: str
    kernel: Kernel
    X: np.ndarray
    Y: np.ndarray
    P: np.ndarray
    reward: np.ndarray
    gamma: float
    values: dict[str, np.ndarray]

    def problem(self, test: np.ndarray) -> tuple[Any, ...]:
        """Arguments of td_posterior."""
        return self.kernel, self.X, self.Y, self.P, self.reward, self.gamma, test

    @property
    def dynamics(self) -> tuple[Any, ...]:
        """Arguments of stability."""
        return self.kernel, self.X, self.Y, self.P, self.gamma


def load(file: str) -> dict[str, np.ndarray]:
    with np.load(DATA / file) as archive:
        return dict(archive)


def cases(file: str, prefixes: list[str]) -> list[Case]:
    archive = load(file)
    found = []
    for prefix in prefixes:
        v = {key.removeprefix(prefix + "_"): value for key, value in archive.items() if key.startswith(prefix + "_")}
        kernel = partial(
            kernels,
            depth=int(v["depth"]),
            sigma_w=float(v["w_std"]),
            sigma_b=float(v["b_std"]),
            nonlinearity=str(v["phi"]),
        )
        found.append(Case(prefix, kernel, v["X"], v["Y"], v["P"], v["r"], float(v["gamma"]), v))
    return found


TD_CASES = cases("td_cases.npz", ["td0", "td1", "td2", "td3"])
CHAINS = cases("chain.npz", ["c0", "c1"])
FIXTURES = cases("fixtures.npz", ["F1_convergent", "F2_divergent", "F3_duplicate", "F4_nonPD_hurwitz"])


def by_name(case: Case) -> str:
    return case.name


def relative_to_max(got: np.ndarray, expected: np.ndarray) -> float:
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())
