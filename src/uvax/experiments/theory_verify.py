"""Do networks of finite width do what Theorem 1 says? Ensembles and UVU on the chain, against the closed form.

Every network is compared with what the theory makes of its *own* initial outputs: the analytic infinite-width kernel
and the exact formula for the same number and size of gradient steps. Such a paired comparison has no sampling error of
the initial draws. What is left is the effect of finite width.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from uvax.data import Dataset, from_arrays
from uvax.envs.chain import Chain
from uvax.errors import InvalidInput, unknown_name
from uvax.estimators import BDQNP, UVU, Policy
from uvax.experiments.analysis import Row
from uvax.experiments.content import Section
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rows import RowStore, Trial
from uvax.theory import (
    Kernel,
    TDPosterior,
    ensemble_law,
    head_law,
    kernel_blocks,
    kernels,
    posterior_from_blocks,
    stability,
)
from uvax.training import Fit, fit
from uvax.training.loop import Trainer

NAME = "verify"
KIND = "uvax.experiments.theory_verify:perform"
GROUP = 4  # networks or heads behind one estimate of the variance in the quantile plot

Progress = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The chain, the network and the training, the same for all widths."""

    length: int = 10
    gamma: float = 0.9
    depth: int = 1
    sigma_w: float = 1.5
    sigma_b: float = 0.1
    train_z: tuple[float, ...] = (0.0, 0.5, 1.0)
    test_z: int = 11  # values of z from 0 to 1 at which the surface is evaluated
    steps: int = 2_500

    @property
    def kernel(self) -> Kernel:
        """The analytic kernels of the network."""
        return partial(kernels, depth=self.depth, sigma_w=self.sigma_w, sigma_b=self.sigma_b, nonlinearity="relu")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a preset covers."""

    widths: tuple[int, ...]
    members: int
    heads: tuple[int, ...]
    seeds: int
    problem: Problem = Problem()


SIZES = {
    "smoke": Sizes(widths=(32, 128), members=8, heads=(4,), seeds=1, problem=Problem(length=4, test_z=3, steps=300)),
    "cpu": Sizes(widths=(32, 128, 512, 2048), members=32, heads=(8, 32, 128), seeds=3),
    "paper": Sizes(widths=(32, 128, 512, 2048, 8192), members=128, heads=(8, 32, 128, 512), seeds=5),
}


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    """One ensemble per width and seed, one UVU model per width, number of heads and seed; narrow ones first."""
    sizes = SIZES[scope.preset]
    common = {"kind": KIND, "preset": scope.preset, **asdict(sizes.problem)}
    found = []
    for width in sizes.widths:
        for seed in range(scope.seeds):
            if "ensemble" in scope.methods:
                found.append(
                    Trial(NAME, {**common, "method": "ensemble", "width": width, "count": sizes.members}, seed)
                )
            if "uvu" in scope.methods:
                found += [
                    Trial(NAME, {**common, "method": "uvu", "width": width, "count": heads}, seed)
                    for heads in sizes.heads
                ]
    return found


def scope(preset: str) -> Scope:
    if preset not in SIZES:
        raise unknown_name("preset", preset, SIZES)
    return Scope(preset=preset, sizes=(), methods=("ensemble", "uvu"), seeds=SIZES[preset].seeds)


def perform(
    config: Mapping[str, Any], seed: int, *, data: Path | None, work: Path | None, progress: Progress
) -> dict[str, Any]:
    """Train one ensemble or UVU model and compare it with the theory.

    The result: `ratio` of variances (network over theory, both from the same initial outputs, averaged over the
    surface) with its jackknife `ratio_error`; `error`, the root mean square of what the theory mispredicts over that
    of what training changed; `unpaired`, the ratio to the theory's own variance; `limit_gap`, how far the variance
    after these steps is from t = infinity; `estimates` of the variance from groups of four, over the theory's, at the
    point where it is largest.
    """
    reference = Reference.make(Problem(**{name: _tuple(config[name]) for name in asdict(Problem())}))
    compare = {"ensemble": _ensemble, "uvu": _uvu}.get(config["method"])
    if compare is None:
        raise unknown_name("method", str(config["method"]), ("ensemble", "uvu"))
    real, predicted, moved = compare(reference, config["width"], config["count"], seed, progress)
    return {
        "status": "finished",
        **_comparison(config["method"], reference, real, predicted, moved),
        "variance": np.mean(_spread(config["method"], real), axis=0).tolist(),
        "theory_variance": reference.posterior.variance.tolist(),
        "learning_rate": reference.learning_rate,
    }


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Reference:
    """The chain's data, the points of comparison and the closed form for them."""

    problem: Problem
    chain: Chain
    data: Dataset
    points: tuple[np.ndarray, np.ndarray, np.ndarray]  # test, X, Y
    posterior: TDPosterior  # after the steps
    limit: TDPosterior
    learning_rate: float  # of the summed loss

    @classmethod
    def make(cls, problem: Problem, *, onehot: bool = True) -> "Reference":
        chain = Chain(length=problem.length, onehot=onehot)
        x, y, p, reward = chain.td_problem(problem.train_z)
        test = chain.grid(np.linspace(0.0, 1.0, problem.test_z))
        # Half of the largest step that converges, so that networks near the limit are safely stable too.
        rate = 0.5 * stability(problem.kernel, x, y, p, problem.gamma).max_learning_rate
        blocks = kernel_blocks(problem.kernel, x, y, test)
        return cls(
            problem,
            chain,
            from_arrays(**chain.data(problem.train_z)._asdict(), num_actions=2),
            (test, x, y),
            posterior_from_blocks(blocks, p, reward, problem.gamma, steps=problem.steps, learning_rate=rate),
            posterior_from_blocks(blocks, p, reward, problem.gamma),
            rate,
        )

    def settings(self, width: int) -> dict[str, Any]:
        """Hyperparameters of Theorem 1: full batch, plain gradient descent, stop-gradient, expected next values."""
        p = self.problem
        return {
            "width": width,
            "depth": p.depth,
            "network": "mlp",
            "parametrisation": "ntk",
            "sigma_w": p.sigma_w,
            "sigma_b": p.sigma_b,
            "gamma": p.gamma,
            "batch_size": None,
            "optimiser": "sgd",
            # The estimators' loss is a mean over transitions, the theorem's a sum.
            "learning_rate": self.learning_rate * len(self.data),
            "target_period": 0,
            "bootstrap": Policy(self.chain.next_probs, name="chain"),
        }

    def outputs(self, network: Any) -> list[Float[np.ndarray, "H P"]]:
        """Outputs of all heads or members on the test points, X and Y."""
        width = self.chain.obs_dim
        found = []
        for points in self.points:
            obs, task = (jnp.asarray(part, jnp.float32) for part in (points[:, :width], points[:, -1:]))
            action = jnp.asarray(points[:, width:-1].argmax(axis=1), jnp.int32)
            found.append(np.asarray(network.at(obs, task, action), dtype=np.float64).T)
        return found

    def train(self, estimator: Any, seed: int, progress: Progress) -> tuple[Any, Any]:
        """The state before and after training."""
        before = Trainer(estimator, self.data, [seed], stacked=False).init()
        return before, self.fit(estimator, seed, progress).state

    def fit(self, estimator: Any, seed: int, progress: Progress, *, work: Path | None = None) -> Fit:
        """The estimator, trained on the chain for the problem's steps; with `work`, from the last checkpoint in it."""
        steps = self.problem.steps

        def tell(_estimator: Any, _state: Any, step: int) -> dict[str, float]:
            progress(step / steps, f"step {step:,} of {steps:,}")
            return {"return": 0.0}

        return fit(
            estimator,
            self.data,
            steps,
            seed=seed,
            evaluate=tell,
            evaluations=min(10, steps),
            out=None if work is None else work / "fit",
            resume=work is not None,
            progress=False,
        )


Outputs = Float[np.ndarray, "H T"]


def _ensemble(
    reference: Reference, width: int, members: int, seed: int, progress: Progress
) -> tuple[Outputs, Outputs, float]:
    """Trained and predicted outputs of the members, and how far training moved them."""
    estimator = BDQNP(**reference.settings(width), members=members, prior_scale=0.0)
    before, after = reference.train(estimator, seed, progress)
    start = reference.outputs(before.params)
    predicted = reference.posterior.evolve(*start)
    return reference.outputs(after.params)[0], predicted, _rms(predicted - start[0])


def _uvu(reference: Reference, width: int, heads: int, seed: int, progress: Progress) -> tuple[Outputs, Outputs, float]:
    """Trained and predicted errors u - g of the heads, and how far training moved u."""
    settings = reference.settings(width)
    estimator = UVU(**settings, heads=heads, uvu_learning_rate=settings["learning_rate"], q_width=8)
    before, after = reference.train(estimator, seed, progress)
    start, g = reference.outputs(before.params["u"]), reference.outputs(before.frozen["g"])
    reward = reference.posterior.synthetic_reward(g[1], g[2])
    predicted = reference.posterior.evolve(*start, reward=reward)
    return reference.outputs(after.params["u"])[0] - g[0], predicted - g[0], _rms(predicted - start[0])


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _spread(method: str, outputs: Outputs) -> Outputs:
    """Every network's own contribution to the variance estimate: the estimate is its mean."""
    if method == "uvu":
        return 0.5 * outputs**2
    return (outputs - outputs.mean(axis=0)) ** 2 * (len(outputs) / (len(outputs) - 1))


def _comparison(method: str, reference: Reference, real: Outputs, predicted: Outputs, moved: float) -> dict[str, Any]:
    def ratio(keep: np.ndarray) -> float:
        return float(_spread(method, real[keep]).mean() / _spread(method, predicted[keep]).mean())

    count = len(real)
    everyone = np.arange(count)
    # Leaving out one network at a time; one alone has no variance.
    left_out = np.array([ratio(np.delete(everyone, i)) for i in everyone]) if count > 2 else np.array([math.nan])
    variance, limit = reference.posterior.variance, reference.limit.variance
    point = int(variance.argmax())
    groups = real[: count - count % GROUP, point].reshape(-1, GROUP)
    if method == "uvu":
        law, estimates = head_law(variance[point], GROUP), 0.5 * np.mean(groups**2, axis=1)
    else:
        law, estimates = ensemble_law(variance[point], GROUP), groups.var(axis=1, ddof=1)
    return {
        "ratio": ratio(everyone),
        "ratio_error": float(np.sqrt((count - 1) * np.mean((left_out - left_out.mean()) ** 2))),
        "error": _rms(real - predicted) / moved,
        "unpaired": float(_spread(method, real).mean() / variance.mean()),
        "limit_gap": float(variance.mean() / limit.mean() - 1.0),
        "limit_gap_largest": float(np.abs(variance - limit).max() / limit.max()),
        "estimates": (estimates / variance[point]).tolist(),
        "dof": law.dof,
    }


def section(rows: Sequence[Row]) -> Section | None:
    from uvax.experiments.theory_section import verify_section

    return verify_section(rows, NAME)


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section, needs_data=False)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a verification covers; None: the preset's own choice."""

    preset: str = "cpu"
    methods: tuple[str, ...] = ("ensemble", "uvu")
    seeds: int | None = None

    def __post_init__(self) -> None:
        if self.preset not in SIZES:
            raise unknown_name("preset", self.preset, SIZES)
        for method in self.methods:
            if method not in ("ensemble", "uvu"):
                raise unknown_name("method", method, ("ensemble", "uvu"))
        if self.seeds is not None and self.seeds < 1:
            raise InvalidInput(f"seeds is {self.seeds}; expected the number of seeds, at least 1")


def run(settings: Settings, out: Path | str, *, progress: bool = True) -> list[Row]:
    """Run what is missing in the folder `out`, one trial after the other, and return all rows of the preset.

    rows = run(Settings(preset="smoke"), "results")
    """
    store = RowStore(Path(out))
    chosen = Scope(
        preset=settings.preset,
        sizes=(),
        methods=settings.methods,
        seeds=settings.seeds or SIZES[settings.preset].seeds,
    )
    wanted = trials(chosen, {}, [])
    left = [trial for trial in wanted if trial.id not in store.finished()]
    with _progress(left, progress) as tell:
        for index, trial in enumerate(left):
            fresh = Trial(NAME, trial.config, trial.seed)  # started now
            result = perform(trial.config, trial.seed, data=None, work=None, progress=partial(tell, index))
            store.append(fresh.row(result))
    ids = {trial.id for trial in wanted}
    return [row for row in store.read().rows if row["trial_id"] in ids]


@contextmanager
def _progress(left: Sequence[Trial], shown: bool) -> Iterator[Callable[[int, float, str], None]]:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TimeElapsedColumn

    with Bar(
        *Bar.get_default_columns(), TimeElapsedColumn(), console=Console(file=sys.stderr), disable=not shown
    ) as bar:
        # Cost grows with the width, so that is what the bar counts.
        weights = [trial.config["width"] + 100 for trial in left]
        task = bar.add_task("verify", total=sum(weights) or 1, completed=0 if left else 1)

        def tell(index: int, share: float, words: str) -> None:
            config = left[index].config
            title = f"{config['method']} {config['count']}, width {config['width']}, {words}"
            bar.update(task, completed=sum(weights[:index]) + share * weights[index], description=title)

        yield tell
