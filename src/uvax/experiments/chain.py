"""Section 3 and Appendix B.3 on the chain: tabular UVU, the surfaces of an ensemble and of UVU, and RND.

All networks are in the setting of Theorem 1, so that the closed form stands beside them. A surface is [z, state], for
action a, the only one in the data; the policy for z takes b, which nobody has tried, with probability 1 - z.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from uvax.envs.chain import A, B
from uvax.errors import unknown_name
from uvax.estimators import BDQNP, RND, UVU
from uvax.experiments import chain_tables
from uvax.experiments.analysis import Row
from uvax.experiments.content import Section
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rows import Trial
from uvax.experiments.theory_verify import Problem, Reference
from uvax.theory import stability, td_posterior
from uvax.training import Fit

NAME = "chain"
METHODS = ("tabular", "theory", "ensemble", "uvu", "dqn-rnd", "dqn-rnd-p")

# RND's errors fall below what an untrained intrinsic Q starts with; only a scale makes them count (see `RND`).
INTRINSIC_SCALE = 10.0

Progress = Callable[[float, str], None]
Surface = Float[np.ndarray, "z s"]


@dataclass(frozen=True, kw_only=True)
class Setting(Problem):
    """A chain with its networks and data: `onehot` states, or the single number s / (length - 1)."""

    onehot: bool = True


# c0 is the default. The surfaces of c1 are less smooth, and its networks deeper: narrower ones take longer than c0's.
CHAINS = {
    "c0": Setting(steps=2_000),
    "c1": Setting(gamma=0.7, depth=3, train_z=(0.0, 0.25, 0.5, 0.75, 1.0), onehot=False, steps=2_000),
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a preset covers. `width` is that of an ensemble's member and of RND's networks, `trunk` that of UVU's.

    All heads of UVU share one draw of the finite-width kernel, which members average over, and are coupled through it.
    So the trunk is wider: 128 heads of width 4096 take less than half the time of 128 networks of width 512.
    """

    members: int
    heads: int
    width: int
    trunk: int


SIZES = {
    "smoke": {name: Sizes(members=8, heads=8, width=32, trunk=64) for name in CHAINS},
    "cpu": {
        "c0": Sizes(members=128, heads=128, width=512, trunk=4096),
        "c1": Sizes(members=128, heads=128, width=128, trunk=1024),
    },
    "paper": {name: Sizes(members=128, heads=128, width=2048, trunk=8192) for name in CHAINS},
}
SEEDS = {"smoke": 1, "cpu": 3, "paper": 5}


def setting(chain: str, preset: str) -> Setting:
    """The chain of that name at a preset's size."""
    if chain not in CHAINS:
        raise unknown_name("chain", chain, CHAINS)
    return replace(CHAINS[chain], length=4, test_z=3, steps=200) if preset == "smoke" else CHAINS[chain]


def experiment(chains: Sequence[str] = ("c0",)) -> Experiment:
    """The experiment on some of the chains."""
    for chain in chains:
        setting(chain, "cpu")
    return Experiment(
        name=NAME, scope=_scope, trials=partial(_trials, tuple(chains)), section=section, needs_data=False
    )


def _scope(preset: str) -> Scope:
    if preset not in SIZES:
        raise unknown_name("preset", preset, SIZES)
    return Scope(preset=preset, sizes=(), methods=METHODS, seeds=SEEDS[preset])


def _trials(chains: Sequence[str], scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    """The tables and the closed forms once, networks for every seed."""
    found = [Trial(NAME, tables_config(scope.preset), 0)]
    for chain in chains:
        found.append(Trial(NAME, trial_config("theory", chain, scope.preset), 0))
        for method in ("ensemble", "uvu", "dqn-rnd", "dqn-rnd-p"):
            config = trial_config(method, chain, scope.preset)
            found += [Trial(NAME, config, seed) for seed in range(scope.seeds)]
    return found


def tables_config(preset: str = "cpu", *, length: int = 5, leaves: int = 3) -> dict[str, Any]:
    """Four tables on a chain of five states, gamma 0.7, and a policy that takes b in s_3; as many sweeps as states."""
    shape = {"length": length, "leaves": leaves, "gamma": 0.7, "tables": 4, "steps": length}
    return {"kind": chain_tables.KIND, "preset": preset, "method": "tabular", **shape}


def trial_config(method: str, chain: str = "c0", preset: str = "cpu", **changes: Any) -> dict[str, Any]:
    """The configuration of a trial on a chain; `changes` are of the setting, `count` (members or heads) or `width`."""
    kinds = {"theory": "closed_form", "ensemble": "ensemble", "uvu": "uvu", "dqn-rnd": "rnd", "dqn-rnd-p": "rnd"}
    if method not in kinds:
        raise unknown_name("method", method, kinds)
    sizes = SIZES[preset][chain]
    size: dict[str, int] = {}
    if method != "theory":
        count = sizes.members if method == "ensemble" else sizes.heads
        size = {"count": count, "width": sizes.trunk if method == "uvu" else sizes.width}
    place = {"kind": f"{__name__}:{kinds[method]}", "preset": preset, "method": method, "chain": chain}
    return {**place, **asdict(setting(chain, preset)), **size, **changes}


def closed_form(
    config: Mapping[str, Any], seed: int, *, data: Path | None, work: Path | None, progress: Progress
) -> dict[str, Any]:
    """Theorem 1 at t = infinity: mean and variance for both actions; with gamma = 0 its variance is RND's error."""
    own = _setting(config)
    reference = Reference.make(own, onehot=own.onehot)
    x, y, p, reward = reference.chain.td_problem(own.train_z)
    found: dict[str, Any] = {}
    for action, suffix in ((A, ""), (B, "_b")):
        points = reference.chain.grid(_z(own), action)
        posterior = td_posterior(own.kernel, x, y, p, reward, own.gamma, points)
        myopic = td_posterior(own.kernel, x, y, p, reward, 0.0, points)
        surfaces = {"uncertainty": posterior.variance, "value": posterior.mean, "error": myopic.variance}
        found |= {name + suffix: _surface(values, own) for name, values in surfaces.items()}
    spectrum = stability(own.kernel, x, y, p, own.gamma)
    return {
        "status": "finished",
        **{name: values.tolist() for name, values in found.items()},
        "slowest": float(spectrum.eigenvalues.real.min()),
        "symmetric_min": float(spectrum.symmetric_min),
        "learning_rate": reference.learning_rate,
    }


def ensemble(
    config: Mapping[str, Any], seed: int, *, data: Path | None, work: Path | None, progress: Progress
) -> dict[str, Any]:
    """The variance of an ensemble of universal Q-functions, without priors beside their own initialisation."""
    own = _setting(config)
    reference = Reference.make(own, onehot=own.onehot)
    estimator = BDQNP(**reference.settings(config["width"]), members=config["count"], prior_scale=0.0)
    return _compared(reference, own, reference.fit(estimator, seed, progress, work=work))


def uvu(
    config: Mapping[str, Any], seed: int, *, data: Path | None, work: Path | None, progress: Progress
) -> dict[str, Any]:
    """Half the squared errors of UVU, averaged over its heads."""
    own = _setting(config)
    reference = Reference.make(own, onehot=own.onehot)
    settings = reference.settings(config["width"])
    estimator = UVU(**settings, heads=config["count"], uvu_learning_rate=settings["learning_rate"])
    return _compared(reference, own, reference.fit(estimator, seed, progress, work=work))


def rnd(
    config: Mapping[str, Any], seed: int, *, data: Path | None, work: Path | None, progress: Progress
) -> dict[str, Any]:
    """RND's errors and the intrinsic Q, in units of those errors: what the estimator gives over `intrinsic_scale`."""
    own = _setting(config)
    reference = Reference.make(own, onehot=own.onehot)
    settings = reference.settings(config["width"])
    estimator = RND(
        **settings,
        heads=config["count"],
        rnd_learning_rate=settings["learning_rate"],
        prior=config["method"] == "dqn-rnd-p",
        intrinsic_scale=INTRINSIC_SCALE,
    )
    trained = reference.fit(estimator, seed, progress, work=work)
    obs, task = _inputs(reference)
    error = np.asarray(estimator.error(trained.state, jnp.asarray(obs), jnp.asarray(task)), np.float64)
    surfaces = _surfaces(own, trained, obs, task, scale=INTRINSIC_SCALE) | {
        "error": _surface(error[:, A], own),
        "error_b": _surface(error[:, B], own),
    }
    limit = _surface(reference.limit.variance, own)
    return {
        "status": str(trained.status),
        **{name: _digits(values) for name, values in surfaces.items()},
        "correlation": correlation(surfaces["uncertainty"], limit),
        "intrinsic_scale": INTRINSIC_SCALE,
    }


def _compared(reference: Reference, own: Setting, trained: Fit) -> dict[str, Any]:
    """The surfaces, and how that of action a compares with the closed form.

    `ratio` is of means over the surface; `at_steps` the same against the closed form after the same steps;
    `covered` the largest uncertainty at z = 1, where the data determine every value, over the largest of all.
    """
    surfaces = _surfaces(own, trained, *_inputs(reference))
    found = surfaces["uncertainty"]
    limit, finite = (_surface(posterior.variance, own) for posterior in (reference.limit, reference.posterior))
    return {
        "status": str(trained.status),
        **{name: _digits(values) for name, values in surfaces.items()},
        "correlation": correlation(found, limit),
        "ratio": float(found.mean() / limit.mean()),
        "at_steps": float(found.mean() / finite.mean()),
        "difference": float(np.abs(found - limit).max() / limit.max()),
        "covered": float(found[-1].max() / found.max()),
    }


def correlation(first: Surface, second: Surface) -> float:
    """Pearson's, over all points of two surfaces; of a constant one 0."""
    a, b = first.ravel() - first.mean(), second.ravel() - second.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def _setting(config: Mapping[str, Any]) -> Setting:
    values = {field.name: config[field.name] for field in fields(Setting)}
    return Setting(**values | {"train_z": tuple(values["train_z"])})


def _z(own: Setting) -> np.ndarray:
    return np.linspace(0.0, 1.0, own.test_z)


def _inputs(reference: Reference) -> tuple[np.ndarray, np.ndarray]:
    """Observations and tasks of the surface, z-major."""
    points, width = reference.points[0], reference.chain.obs_dim
    return points[:, :width].astype(np.float32), points[:, -1:].astype(np.float32)


def _surfaces(
    own: Setting, trained: Fit, obs: np.ndarray, task: np.ndarray, *, scale: float = 1.0
) -> dict[str, Surface]:
    uncertainty = np.asarray(trained.uncertainty(obs, task), np.float64) / scale
    value = np.asarray(trained.value(obs, task), np.float64)
    return {
        "uncertainty": _surface(uncertainty[:, A], own),
        "uncertainty_b": _surface(uncertainty[:, B], own),
        "value": _surface(value[:, A], own),
    }


def _surface(values: Float[np.ndarray, " N"], own: Setting) -> Surface:
    return values.reshape(own.test_z, own.length)


def _digits(values: Surface) -> list[list[float]]:
    """Five significant digits: a row is read by people too."""
    return [[float(f"{v:.5g}") for v in line] for line in values]


def section(rows: Sequence[Row]) -> Section | None:
    from uvax.experiments.chain_section import chain_section

    return chain_section(rows, NAME)


EXPERIMENT = experiment()
