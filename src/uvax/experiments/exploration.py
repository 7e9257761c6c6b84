"""How much of the data explores, and what the methods then make of them.

Not in the paper, which says that the collecting agent is epsilon-greedy and not by which schedule. Exploration decides
how well the data know the walls at which a random policy acts. RND's error is about what the data know, not about what
can be learned from them, so DQN-RND-P should prefer those walls the more, the more the data explore there.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uvax.collection import CollectionSettings, collect, preset_settings
from uvax.collection.agent import EXPERT_WALLS
from uvax.data import Dataset
from uvax.envs import GoToDoor
from uvax.envs.go_to_door import WALLS
from uvax.experiments import analysis, paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Cell, Section, Table
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rows import Trial
from uvax.experiments.trial import Progress, following, run_trial, trial_config

NAME = "exploration"
KIND = "exploration"
OTHER_WALLS = tuple(wall for i, wall in enumerate(WALLS) if i not in EXPERT_WALLS)
_COLLECTION = 0.3  # of a trial's time, about, for the progress


def schedules(preset: str) -> list[dict[str, Any]]:
    """Changes to the preset's collection, from the most exploration to the least; the first is the preset's own.

    The last takes twice as many steps: with less the agent hardly learns.
    """
    if preset == "smoke":
        return [{}, {"epsilon_decay": 0.2}]
    steps = preset_settings(preset, size=5).steps
    return [{}, {"epsilon_decay": 0.2}, {"epsilon_decay": 0.1, "epsilon_end": 0.01, "steps": 2 * steps}]


def explored(settings: Mapping[str, Any]) -> float:
    """The share of all actions that are drawn at random."""
    start, end, decay = (settings[f"epsilon_{name}"] for name in ("start", "end", "decay"))
    return decay * (start + end) / 2 + (1 - decay) * end


def exploration_config(method: str, size: int, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a trial. Its data are its own, collected with its seed, so there is no checksum in it."""
    plain = dataclasses.asdict(dataclasses.replace(preset_settings(preset, size=size), **changes))
    config = trial_config(method, size, "", preset=preset)
    return {
        **{name: value for name, value in config.items() if name != "dataset"},
        "kind": KIND,
        "collection": {name: value for name, value in plain.items() if name != "dqn"},
    }


def perform(
    config: Mapping[str, Any], seed: int, *, data: Path | None, work: Path, progress: Progress
) -> dict[str, Any]:
    """Collect, train, evaluate: the result of a task-rejection trial, and what the data cover."""
    usual = preset_settings(config["preset"], size=config["size"])
    settings = CollectionSettings(**config["collection"], dqn=usual.dqn)
    dataset = collect(
        GoToDoor(size=config["size"]),
        settings=settings,
        seed=seed,
        out=work / "data",
        resume=(work / "data").exists(),
        progress=lambda report: progress(_COLLECTION * report.done, str(report)),
    )

    def tell(done: float, words: str) -> None:
        progress(_COLLECTION + (1 - _COLLECTION) * done, words)

    task_rejection = {**config, "dataset": dataset.checksum}
    with following(work / "run", config["steps"], tell):
        result = run_trial(task_rejection, seed, dataset, work=work / "run", progress=tell)
    result.pop("explorer", None)  # the explorer shows Table 1's
    return {**result, "checksum": dataset.checksum, "coverage": coverage(dataset)}


def coverage(dataset: Dataset) -> dict[str, int]:
    """Distinct pairs of observation and task, by the wall of the task's door."""
    return {part.name: part.distinct for part in dataset.summary().parts["wall"]}


def scope(preset: str) -> Scope:
    return Scope(preset=preset, sizes=(5,), methods=("dqn-rnd-p", "uvu"), seeds=1 if preset == "smoke" else 3)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    return [
        Trial(NAME, exploration_config(method, size, scope.preset, changes), seed)
        for seed in range(scope.seeds)
        for size in scope.sizes
        for method in scope.methods
        for changes in schedules(scope.preset)
    ]


def section(rows: Sequence[Row]) -> Section | None:
    own, notes = analysis.of_experiment(rows, NAME)
    if not own:
        return None
    groups: dict[tuple[int, str, float], list[Row]] = {}
    for row in own:
        key = (row["config"]["size"], row["config"]["method"], explored(row["config"]["collection"]))
        groups.setdefault(key, []).append(row)
    sizes = sorted({size for size, _, _ in groups})
    body = [
        _line(size, method, share, groups[size, method, share])
        for size in sizes
        for method in analysis.ordered_methods({m for s, m, _ in groups if s == size})
        for share in sorted((e for s, m, e in groups if (s, m) == (size, method)), reverse=True)
    ]
    introduction = (
        "Not in the paper, which does not say by which schedule the collecting agent explores. Every seed collects "
        f"data of its own, so the intervals cover that too. {analysis.seeds_of(own)}."
    )
    table = Table(
        id="exploration-scores",
        title="Return by how much of the data explores",
        columns=[
            "size",
            "method",
            "random actions",
            "seeds",
            "return",
            "paper",
            f"at {' and '.join(OTHER_WALLS)}",
            "impossible",
            f"known at {' and '.join(OTHER_WALLS)}",
            "collector",
        ],
        rows=body,
        caption="Return: best checkpoint on fresh boards, with 90% Student-t intervals over seeds. At "
        f"{' and '.join(OTHER_WALLS)}: share of attempts at the walls of random behaviour. Known: distinct pairs of "
        "observation and task that the data have of these walls. Collector: return of the collecting policy without "
        "exploration at the other two walls.",
    )
    return Section(
        NAME,
        "How much of the data explores",
        [introduction, *notes, table],
        rows=[row["trial_id"] for row in own],
    )


def _line(size: int, method: str, share: float, rows: Sequence[Row]) -> list[Cell | str]:
    fresh = analysis.over_seeds(rows, "final", "return")
    others = sum(analysis.over_seeds(rows, "final", f"attempt_{wall}").estimate for wall in OTHER_WALLS)
    impossible = analysis.over_seeds(rows, "final", "attempt_impossible").estimate
    known = sum(analysis.over_seeds(rows, "coverage", wall).estimate for wall in OTHER_WALLS)
    expert = analysis.over_seeds(rows, "dataset", "greedy_policy_score", "expert").estimate
    published = paper.TABLE1.get(size, {}).get(method)
    return [
        Cell(str(size), size),
        paper.label(method),
        Cell(f"{share:.0%}", share),
        Cell(str(len(rows)), len(rows)),
        analysis.interval_cell(fresh),
        Cell(f"{published[0]:.2f}", published[0], "quiet") if published else Cell("–", None, "quiet"),
        Cell(analysis.share(others), others),
        Cell(analysis.share(impossible), impossible),
        Cell(f"{known:,.0f}", known),
        Cell(f"{expert:.2f}", expert),
    ]


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section, needs_data=False)
