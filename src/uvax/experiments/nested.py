"""Small ensembles inside a large one: training BDQNP(35) trains BDQNP(15) and BDQNP(3) of the same seed on the way.

Members learn independently (`BDQNP.first`), so a trial whose configuration has `first_members` evaluates the ensembles
of its first members beside its own and gives their results too, each with a best checkpoint of its own. A runner that
wants both trains once and takes the smaller ones over.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from uvax.data.transition import Spec
from uvax.estimators import METHODS
from uvax.training import Fit, load_fit
from uvax.training.fitted import Best, Status

Row = Mapping[str, Any]
FIRST = "first_members"
SMALLER = "smaller"  # of a result: members -> the result of that ensemble

Score = Callable[[Any, PyTree], dict[str, float]]  # estimator, state -> numbers of an evaluation


class Nested:
    """Evaluations of the ensembles of a trial's first members, and their best states.

    The numbers go into the run's log, under names of their own. A best state is in `folder` as soon as it is found: a
    trial that is killed and goes on evaluates the same states again, to the same numbers, and keeps the same ones.
    """

    def __init__(self, config: Mapping[str, Any], spec: Spec, seed: int, folder: Path | None) -> None:
        self.members = tuple(config.get(FIRST, ()))
        self._spec, self._seed, self._folder = spec, seed, folder
        self._best: dict[int, Fit] = {}
        for members in self.members:
            path = self._path(members)
            if path is not None and path.exists():
                self._best[members] = load_fit(path)

    def look(self, estimator: Any, state: PyTree, step: int, score: Score) -> dict[str, float]:
        """Evaluate each of them; the numbers for the log."""
        found: dict[str, float] = {}
        for members in self.members:
            small, small_state = estimator.first(state, members)
            numbers = score(small, small_state)
            found |= {_name(members, name): value for name, value in numbers.items()}
            known = self._best.get(members)
            if known is None or numbers["return"] > (known.best.score or 0.0):
                best = Best(small_state, step, numbers["return"])
                status = Status("finished", step, f"the best of the evaluations up to step {step:,}")
                self._best[members] = fit = Fit(small, small_state, self._spec, step, self._seed, status, best)
                if (path := self._path(members)) is not None:
                    fit.save(path, overwrite=True)
        return found

    def results(self, log: Iterable[Row], finish: Callable[[Fit | None, list[Row]], dict[str, Any]]) -> dict[str, Any]:
        """members -> what `finish(best fit, the ensemble's own log)` says; times are those of the large ensemble."""
        rows = list(log)
        return {str(m): {**finish(self._best.get(m), self._of(m, rows)), "seconds": {}} for m in self.members}

    def without(self, log: Iterable[Row]) -> list[Row]:
        """The log of the large ensemble alone."""
        others = tuple(_name(members, "") for members in self.members)
        return [{name: value for name, value in row.items() if not name.startswith(others)} for row in log]

    def _of(self, members: int, log: Iterable[Row]) -> list[Row]:
        start = _name(members, "")
        return [
            {name: row[name] for name in ("kind", "step", "seed", "seconds")}
            | {name.removeprefix(start): value for name, value in row.items() if name.startswith(start)}
            for row in log
            if row["kind"] == "evaluation"
        ]

    def _path(self, members: int) -> Path | None:
        return None if self._folder is None else self._folder / f"first{members}.safetensors"


def _name(members: int, name: str) -> str:
    return f"first{members}_{name}"


def configurations(config: Mapping[str, Any]) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """(members, configuration) of the other trials whose results a trial also gives; None: itself, without them."""
    if not config.get(FIRST):
        return
    plain = {name: value for name, value in config.items() if name != FIRST}
    yield None, plain
    for members in config[FIRST]:
        method = f"bdqnp{members}" if f"bdqnp{members}" in METHODS else "bdqnp"
        hyperparameters = {**config["hyperparameters"], "members": members}
        yield members, {**plain, "method": method, "hyperparameters": hyperparameters}


def contained(row: Row) -> Iterator[Row]:
    """The rows that a row also stands for, with the provenance of the training they come from."""
    for members, config in configurations(row["config"]):
        result = {name: value for name, value in row["result"].items() if name != SMALLER}
        if members is not None:
            small = (row["result"].get(SMALLER) or {}).get(str(members))
            if small is None:
                continue
            result = {**result, **small}
            result.pop("explorer", None)  # of the large ensemble
        yield {**row, "config": config, "result": result}
