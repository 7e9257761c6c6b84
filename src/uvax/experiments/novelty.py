"""What RND's error sees, before any propagation: does it tell impossible tasks from well-known ones?

Not in the paper. DQN-RND-P stays far below the paper's numbers on large boards here. Everything that it knows about a
task comes from the error of u, so u is trained alone, without values, and its error at the first state of fresh boards
is compared between tasks whose door is not on the board and tasks that the data know well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from uvax.collection.agent import EXPERT_WALLS
from uvax.data import load
from uvax.data.transition import Spec, Transition
from uvax.envs import GoToDoor
from uvax.envs.go_to_door import WALLS
from uvax.estimators.base import Metrics, TrainState
from uvax.estimators.cached import Outputs
from uvax.estimators.checks import require_whole
from uvax.estimators.learning import Hyperparameters, half_square
from uvax.evaluation.rollouts import with_every_task
from uvax.evaluation.statistics import auroc
from uvax.experiments import analysis
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Chart, Section, Table
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.presets import build_estimator, preset_hyperparameters, preset_training
from uvax.experiments.rows import Trial
from uvax.experiments.trial import Progress, evaluation_key, learning_curve, timings
from uvax.training import fit

NAME = "novelty"
KIND = "novelty"
BOARDS = {"smoke": 50, "cpu": 500, "paper": 500}
EVALUATIONS = {"smoke": 2, "cpu": 15, "paper": 50}


@dataclass(frozen=True, kw_only=True)
class Distillation(Hyperparameters):
    """RND's u alone: regression on the frozen g at the data. Its uncertainty is the error, its value that negated."""

    heads: int = 512
    target_period: int = 0  # nothing bootstraps

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("heads", self.heads, 1)

    def init(self, spec: Spec, *, key: Array) -> TrainState:
        key_u, key_g = jax.random.split(key)
        u, g = (self.build_network(spec, self.heads, key=k) for k in (key_u, key_g))
        return self.init_state({"u": u}, {"g": g}, self.build_optimiser())

    def cache(self, state: TrainState, obs: PyTree, task: Array, action: Array, next_obs: PyTree) -> Outputs:
        return Outputs(state.frozen["g"].at(obs, task, action), None)

    def update(self, state: TrainState, batch: Transition, *, key: Array) -> tuple[TrainState, Metrics]:
        known = batch.cache or self.cache(state, batch.obs, batch.task, batch.action, batch.next_obs)

        def loss(params):
            return half_square(params["u"].at(batch.obs, batch.task, batch.action) - known.taken), {}

        return self.gradient_step(state, loss, self.build_optimiser())

    def value(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return -self.uncertainty(state, obs, task)

    def uncertainty(self, state: TrainState, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        difference = state.params["u"](obs, task) - state.frozen["g"](obs, task)
        return 0.5 * jnp.mean(difference * difference, axis=-1)


def variants(preset: str) -> list[dict[str, Any]]:
    """Changes to the preset: u's rate, then more heads, then the paper's width."""
    if preset == "smoke":
        return [{"learning_rate": 3e-4}]
    if preset == "paper":
        return [{"learning_rate": rate} for rate in (1e-4, 3e-4, 1e-3)]
    rates: list[dict[str, Any]] = [{"learning_rate": rate} for rate in (3e-4, 1e-3, 3e-3)]
    return [*rates, {"learning_rate": 3e-3, "heads": 512}, {"learning_rate": 1e-3, "heads": 512, "width": 512}]


def novelty_config(size: int, dataset: str, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a trial: steps as long as a training of the preset on this size."""
    place = f"{__name__}:{Distillation.__name__}"
    return {
        "kind": KIND,
        "preset": preset,
        "method": place,
        "size": size,
        "hyperparameters": preset_hyperparameters(preset, place, size, **{"target_period": 0, **changes}),
        "dataset": dataset,
        "steps": preset_training(preset, size).steps,
        "evaluations": EVALUATIONS[preset],
        "boards": BOARDS[preset],
    }


def perform(config: Mapping[str, Any], seed: int, *, data: Path, work: Path, progress: Progress) -> dict[str, Any]:
    """Train u and look at its error as it goes: `curve`, and the `last` of it."""
    estimator = build_estimator(config["hyperparameters"])
    env = GoToDoor(size=config["size"])
    boards = jax.vmap(lambda key: env.reset(key=key))(jax.random.split(evaluation_key(seed), config["boards"]))
    asked = with_every_task(env, boards)
    obs, task, wall = env.observe(asked), env.task(asked), np.asarray(env.target_wall(asked)).ravel()
    errors = jax.jit(lambda state: estimator.uncertainty(state, obs, task))

    def look(_estimator: Any, state: PyTree, step: int) -> dict[str, float]:
        found = told_apart(np.asarray(errors(state)).reshape(wall.size, -1), wall)
        progress(step / config["steps"], f"step {step:,} of {config['steps']:,}, AUROC {found['auroc']:.2f}")
        return {"return": found["auroc"], **found}

    progress(0.0, "compiling")
    trained = fit(
        estimator,
        load(data),
        config["steps"],
        seed=seed,
        evaluate=look,
        evaluations=config["evaluations"],
        out=work / "run",
        resume=True,
        progress=False,
    )
    rows = [row for row in trained.log if row["kind"] == "evaluation"]
    return {
        "status": str(trained.status),
        "last": rows[-1],
        "curve": learning_curve(trained.log),
        "seconds": timings(trained.log),
    }


def told_apart(error: Float[np.ndarray, "tasks A"], wall: Int[np.ndarray, " tasks"]) -> dict[str, float]:
    """Errors at the first state, by what the data know of the task.

    `auroc`: how often an impossible task has a larger error than a well-known one (half: chance), action by action,
    then the mean over actions. `known`, `random`, `impossible`: mean errors where the data have good behaviour, where
    they have random behaviour, and where there is no such door.
    """
    impossible, known = wall == len(WALLS), np.isin(wall, EXPERT_WALLS)
    either = impossible | known
    by_action = [auroc(column[either], impossible[either]) for column in error.T]
    return {
        "auroc": float(np.mean(by_action)),
        "known": float(error[known].mean()),
        "random": float(error[~either].mean()),
        "impossible": float(error[impossible].mean()),
    }


def scope(preset: str) -> Scope:
    sizes = (5,) if preset == "smoke" else (5, 10)
    return Scope(preset=preset, sizes=sizes, methods=("dqn-rnd",), seeds=1)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    return [
        Trial(NAME, novelty_config(size, datasets[size], scope.preset, changes), seed)
        for seed in range(scope.seeds)
        for size in scope.sizes
        for changes in variants(scope.preset)
    ]


def section(rows: Sequence[Row]) -> Section | None:
    own, notes = analysis.of_experiment(rows, NAME)
    if not own:
        return None
    groups, more = analysis.cells(own, "size", "width", "heads", "learning_rate")
    words = {key: f"rate {key[3]:g}, {key[2]} heads, width {key[1]}" for key in groups}
    series = [
        line
        for key in sorted(groups)
        if (line := analysis.mean_curve(groups[key], "auroc", words[key], group=f"size {key[0]}")) is not None
    ]
    introduction = (
        "Not in the paper. RND's u alone, trained as long as the methods of Table 1, and its error at the first state "
        "of fresh boards: AUROC of impossible tasks against those at the walls of good behaviour, 0.5 being chance. "
        f"{analysis.seeds_of(own)}."
    )
    body: list[list[Cell | str]] = []
    for key in sorted(groups):
        apart = analysis.over_seeds(groups[key], "last", "auroc")
        errors = [analysis.over_seeds(groups[key], "last", name).estimate for name in ("known", "random", "impossible")]
        ratio = errors[2] / errors[0]
        body.append(
            [
                Cell(str(key[0]), key[0]),
                words[key],
                analysis.interval_cell(apart),
                *(Cell(f"{value:.2g}", value) for value in errors),
                Cell(f"{ratio:.2f}", ratio),
            ]
        )
    table = Table(
        id="novelty-last",
        title="After the last step",
        columns=["size", "setting", "AUROC", "error: well known", "random behaviour", "impossible", "ratio"],
        rows=body,
        caption="Ratio: mean error of impossible tasks over that of well-known ones. DQN-RND-P adds up errors along "
        "the way to the door, and doors are at different distances: a small ratio is hidden by those.",
    )
    chart = Chart(
        id="novelty-auroc",
        title="Impossible tasks told from well-known ones",
        x_label="step",
        y_label="AUROC of u's error",
        series=series,
        alt="AUROC of the error of RND's u against training steps, a line for each rate, number of heads and width.",
        caption="Impossible against well-known tasks on fresh boards. Sizes have scales of their own.",
    )
    return Section(
        NAME,
        "What RND's error sees",
        [introduction, *notes, *more, chart, table],
        rows=[row["trial_id"] for row in own],
    )


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section)
