"""Will TD by gradient descent converge on this dataset? The spectrum of Delta on a sample of its transitions."""

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Complex, Float, Int

from uvax.data import Dataset
from uvax.errors import InvalidInput, unknown_name
from uvax.estimators.checks import require, require_nonnegative, require_one_of, require_positive, require_whole
from uvax.experiments.content import Cell, Table
from uvax.theory import Kernel, Stability, empirical_kernel, kernels, stability


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is sampled, bootstrapped from and measured."""

    samples: int = 500  # transitions
    policy: str = "uniform"  # "uniform", "data" or "run:PATH"
    kernel: str = "network"  # "network": empirical NTK of the paper's network; "analytic": an infinitely wide MLP
    gamma: float = 0.9
    ridge: float = 0.0
    learning_rate: float | None = None  # of gradient descent on the mean loss; None: only the largest that converges
    width: int = 256  # of the network
    depth: int = 3
    normalise: bool = True
    sigma_w: float = math.sqrt(2.0)  # of the analytic kernel
    sigma_b: float = 0.1
    modes: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "width", "depth", "modes"):
            require_whole(name, getattr(self, name), 1)
        require_one_of("kernel", self.kernel, ("network", "analytic"))
        require(0.0 <= self.gamma < 1.0, "gamma", self.gamma, "a number in [0, 1)")
        require_nonnegative("ridge", self.ridge)
        require_positive("sigma_w", self.sigma_w)
        require_nonnegative("sigma_b", self.sigma_b)
        if self.learning_rate is not None:
            require_positive("learning_rate", self.learning_rate)
        if self.policy not in ("uniform", "data") and not self.policy.startswith("run:"):
            raise unknown_name("policy", self.policy, ("uniform", "data", "run:PATH"))


@dataclass(frozen=True)
class Diagnosis:
    """The report of `uvax.theory.stability` and what it was made from."""

    settings: Settings
    stability: Stability
    rows: Int[np.ndarray, " N"]  # of the dataset
    actions: Int[np.ndarray, " N"]
    tasks: Float[np.ndarray, "N Z"]
    terminated: int

    @property
    def max_learning_rate(self) -> float:
        """Largest step of gradient descent on the mean loss, as `fit` has it."""
        return self.stability.max_learning_rate * len(self.rows)

    def sentences(self) -> list[str]:
        """The verdict, in order of importance."""
        s, n = self.stability, len(self.rows)
        found = [s.status.replace("TD ", "Semi-gradient TD by gradient descent ", 1), *s.advice]
        if s.converges and math.isfinite(s.max_learning_rate):
            rate = self.settings.learning_rate or 0.5 * self.max_learning_rate
            steps = math.log(2.0) * n / (rate * s.rate)
            found.append(
                f"Gradient descent on the mean loss converges for learning rates below {self.max_learning_rate:.3g}; "
                f"at {rate:.3g} the slowest error halves every {steps:,.0f} steps."
            )
        found.append("This is about plain gradient descent without a target network; Adam and target networks differ.")
        return found

    def numbers(self) -> dict[str, Any]:
        """What the table shows, as plain data."""
        s = self.stability
        return {
            "transitions": len(self.rows),
            "duplicates": s.duplicates,
            "terminated": self.terminated,
            "rank": s.rank,
            "status": s.kind.replace("_", " "),
            "converges": s.converges,
            "leftmost real part": s.rate,
            "largest modulus": float(np.abs(s.reduced_eigenvalues).max(initial=0.0)),
            "eigenvalues with negative real part": int((s.reduced_eigenvalues.real < 0).sum()),
            "smallest eigenvalue of the symmetric part": s.reduced_symmetric_min,
            "Gershgorin bounds": list(s.gershgorin),
            "condition number": s.condition,
            "largest learning rate (mean loss)": self.max_learning_rate,
            "decided by": s.method,
        }

    def modes(self) -> Table:
        """The slowest or unstable directions: what pattern of TD errors they are."""
        body: list[list[Cell | str]] = []
        s = self.stability
        for index in range(s.modes.shape[1]):
            value, weight = s.reduced_eigenvalues[index], np.abs(s.modes[:, index]) ** 2
            if value.imag < 0 and index + 1 < s.modes.shape[1]:
                continue  # the other one of the pair comes next
            weight = weight / weight.sum()
            top = np.argsort(-weight)[:3]
            body.append(
                [
                    f"{value.real:.3g}{f' ± {abs(value.imag):.2g}i' if abs(value.imag) > 1e-12 * abs(value) else ''}",
                    "grows" if value.real < 0 else f"{1 / value.real:.3g}" if value.real > 0 else "stays",
                    Cell(f"{1 / np.sum(weight**2):.0f}", float(1 / np.sum(weight**2))),
                    ", ".join(f"{a}: {weight[self.actions == a].sum():.0%}" for a in np.unique(self.actions)),
                    self._tasks(weight),
                    ", ".join(f"{self.rows[i]} ({weight[i]:.0%})" for i in top),
                ]
            )
        return Table(
            "modes",
            "Slowest or unstable directions of the TD error",
            ["eigenvalue", "decay time", "transitions in it", "by action", "by task", "largest (dataset row)"],
            body,
            caption="Decay time in units of gradient flow on the summed loss; shares are of the squared pattern.",
        )

    def _tasks(self, weight: np.ndarray) -> str:
        one_hot = self.tasks.shape[1] > 1 and bool(
            np.all(np.isin(self.tasks, (0, 1)) & (self.tasks.sum(1) == 1)[:, None])
        )
        if not one_hot:
            return "-"
        return ", ".join(f"{z}: {share:.0%}" for z, share in enumerate(weight @ self.tasks) if share >= 0.005)


def run(settings: Settings, data: Dataset, *, say: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Sample, bootstrap, measure.

    diagnosis = run(Settings(policy="data"), uvax.load("data/size5"))
    """
    rng = np.random.default_rng(settings.seed)
    usable = np.arange(len(data))
    if settings.policy == "data":
        # Where an episode was cut there is no next action to look up; where it ended none is needed.
        usable = np.flatnonzero(data.next_action()[1] | data.terminated)
        if not len(usable):
            raise InvalidInput(
                "policy 'data' needs transitions whose next action is in the data; pass --policy uniform"
            )
    rows = np.sort(rng.choice(usable, size=min(settings.samples, len(usable)), replace=False))
    say(f"{len(rows)} of {len(data):,} transitions, next actions by {settings.policy}, kernel: {settings.kernel}")
    weights = _next_action_weights(settings, data, rows)
    obs, next_obs, task = (np.asarray(a[rows], dtype=np.float64) for a in (data.obs, data.next_obs, data.task))
    taken = np.eye(data.num_actions)[data.action[rows]]
    build = _network if settings.kernel == "network" else _analytic
    kernel, x, y, p = build(settings, data, (obs, task, taken), (next_obs, task, weights))
    rate = None if settings.learning_rate is None else settings.learning_rate / len(rows)
    report = stability(kernel, x, y, p, settings.gamma, ridge=settings.ridge, learning_rate=rate, modes=settings.modes)
    return Diagnosis(settings, report, rows, data.action[rows], task, int(data.terminated[rows].sum()))


def _next_action_weights(settings: Settings, data: Dataset, rows: np.ndarray) -> Float[np.ndarray, "N A"]:
    """Probabilities of the next actions, times the transition's own discount: zero where the episode terminated."""
    actions = data.num_actions
    if settings.policy == "uniform":
        weights = np.full((len(rows), actions), 1.0 / actions)
    elif settings.policy == "data":
        weights = np.eye(actions)[data.next_action()[0][rows]]
    else:
        weights = np.eye(actions)[_greedy(settings.policy.removeprefix("run:"), data, rows)]
    discount = np.ones(len(data)) if data.discount is None else data.discount
    return weights * np.where(data.terminated[rows], 0.0, discount[rows])[:, None]


def _greedy(path: str, data: Dataset, rows: np.ndarray) -> Int[np.ndarray, " N"]:
    from uvax.training import load_fit

    if not Path(path).exists():
        raise InvalidInput(f"policy 'run:{path}': there is no such run; pass a folder of uvax train or a saved fit")
    trained = load_fit(path)
    if (trained.spec.task_dim, trained.spec.num_actions) != (data.spec.task_dim, data.spec.num_actions):
        raise InvalidInput(f"the run {path} was trained for other tasks or actions than this dataset has")
    return np.asarray(trained.value(data.next_obs[rows], data.task[rows])).argmax(axis=-1)


Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # observations, tasks, weights over actions


def _network(
    settings: Settings, data: Dataset, here: Parts, there: Parts
) -> tuple[Kernel, np.ndarray, np.ndarray, Any]:
    """The paper's network at initialisation, one head: a point is a state, a task and weights over actions.

    f = sum_a w_a Q(s, a, z), so that the expected next value is one point and a terminal one (w = 0) has no gradient.
    """
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from uvax.nets import Conditioned

    net = Conditioned(
        data.spec,
        1,
        width=settings.width,
        depth=settings.depth,
        normalise=settings.normalise,
        key=jax.random.key(settings.seed),
    )
    params, static = eqx.partition(net, eqx.is_inexact_array)
    ends = np.cumsum([here[0].shape[1], here[1].shape[1]])

    def apply(params: Any, point: Any) -> Any:
        obs, task, weight = jnp.split(point, ends)
        return weight @ eqx.combine(params, static)(obs, task)[:, 0]

    kernel = empirical_kernel(apply, params, workspace=2**30)
    return kernel, np.concatenate(here, axis=1), np.concatenate(there, axis=1), None


def _analytic(
    settings: Settings, data: Dataset, here: Parts, there: Parts
) -> tuple[Kernel, np.ndarray, np.ndarray, Any]:
    """An infinitely wide MLP f(s, a, z): next points are all actions of positive probability, weighted by P."""
    kernel = partial(
        kernels, depth=settings.depth, sigma_w=settings.sigma_w, sigma_b=settings.sigma_b, nonlinearity="relu"
    )
    row, action = np.nonzero(there[2])
    if not len(row):  # everything terminates; a next point of no weight keeps the shapes
        row, action = np.zeros(1, int), np.zeros(1, int)
    y = np.concatenate([there[0][row], np.eye(data.num_actions)[action], there[1][row]], axis=1)
    shape = (len(there[0]), len(row))
    p = sp.csr_array((there[2][row, action], (row, np.arange(len(row)))), shape=shape)
    return kernel, np.concatenate([here[0], here[2], here[1]], axis=1), y, p


def spectrum_figure(diagnosis: Diagnosis) -> Any:
    """The eigenvalues of Delta in the complex plane, as a matplotlib figure."""
    from matplotlib.figure import Figure

    values: Complex[np.ndarray, " R"] = diagnosis.stability.reduced_eigenvalues
    bad = values.real < 0
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis = figure.subplots()
    axis.axvline(0.0, color="#888888", linewidth=1)
    axis.scatter(values.real[~bad], values.imag[~bad], s=14, color="#0072b2", label="decays")
    if bad.any():
        axis.scatter(values.real[bad], values.imag[bad], s=26, marker="x", color="#d55e00", label="grows")
    scale = float(np.abs(values).max(initial=0.0)) or 1.0
    # Most eigenvalues are tiny beside the largest: linear near zero, logarithmic beyond. A power of ten as the border
    # leaves zero the only tick of the linear part.
    smallest = max(float(np.abs(values.real[values.real != 0]).min(initial=scale)), 1e-6 * scale)
    border = 10.0 ** np.ceil(np.log10(smallest))
    axis.set_xscale("symlog", linthresh=border)
    if np.abs(values.imag).max(initial=0.0) > 10 * border:
        axis.set_yscale("symlog", linthresh=border)
    axis.set_xlabel("real part: rate of decay")
    axis.set_ylabel("imaginary part")
    verdict = diagnosis.stability.status.split(":")[0]
    verdict = verdict if "transitions" in verdict else f"{verdict} ({len(diagnosis.rows)} transitions)"
    axis.set_title("\n".join(textwrap.wrap(verdict, 85)), fontsize=9)
    axis.legend()
    return figure
