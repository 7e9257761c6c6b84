"""Table 1 ("gotodoor"): task rejection on sizes 5 to 10 with seven methods, the paper's numbers beside ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from uvax.experiments import paper
from uvax.experiments.analysis import Row
from uvax.experiments.content import Section
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rejection import rejection_section
from uvax.experiments.rows import Trial
from uvax.experiments.trial import trial_config

NAME = "table1"
# One training of the largest ensemble gives the smaller ones of the paper too, and those of the ablation.
LARGEST, FIRST_MEMBERS = "bdqnp35", (2, 3, 15)


def scope(preset: str) -> Scope:
    if preset == "smoke":
        return Scope(preset=preset, sizes=(5,), methods=("dqn", "bdqnp3", "uvu"), seeds=2)
    return Scope(preset=preset, sizes=paper.SIZES, methods=paper.METHODS, seeds=10 if preset == "paper" else 3)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    """Seeds outermost, so that an unfinished table has all its cells before it has all its seeds."""

    def config(method: str, size: int) -> dict[str, Any]:
        first = FIRST_MEMBERS if method == LARGEST else ()
        return trial_config(method, size, datasets[size], preset=scope.preset, first_members=first)

    return [
        Trial(NAME, config(method, size), seed)
        for seed in range(scope.seeds)
        for size in scope.sizes
        for method in scope.methods
    ]


def section(rows: Sequence[Row]) -> Section | None:
    return rejection_section(rows, NAME, "Task rejection (Table 1)")


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section)
