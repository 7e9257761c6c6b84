"""What an experiment is: settings -> trials -> rows -> a section with tables and figures."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uvax.errors import InvalidInput, unknown_name
from uvax.experiments.content import Section
from uvax.experiments.presets import check_method, preset
from uvax.experiments.rows import Trial

Row = dict[str, Any]

# name -> module and what it reproduces; a module has `EXPERIMENT` and `section(rows)`
MODULES = {
    "table1": ("uvax.experiments.table1", "Table 1: task rejection, seven methods, sizes 5 to 10"),
    "width": ("uvax.experiments.width", "Figure 'gotodoor' (a): return against network width"),
    "runtime": ("uvax.experiments.runtime", "Figure 'gotodoor' (b): time of ensembles and of UVU"),
    "search": ("uvax.experiments.search", "Table 'hpsearchspace': the search for hyperparameters"),
    "ablation": ("uvax.experiments.ablation", "heads and members, bootstrapping, normalisation, rejections"),
    "novelty": ("uvax.experiments.novelty", "what RND's error sees: impossible tasks told from well-known ones"),
    "exploration": ("uvax.experiments.exploration", "how much of the data explores, and what methods make of them"),
    "board": ("uvax.experiments.board", "Figure 'gotodoor' (c): a GoToDoor board, drawn by Minigrid"),
    "chain": ("uvax.experiments.chain", "Section 3: tabular and neural UVU on a chain MDP"),
    "verify": ("uvax.experiments.theory_verify", "Theorem 1 and its corollaries on networks of growing width"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run of an experiment is told; None: the experiment's own choice for the preset."""

    preset: str = "cpu"
    sizes: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    seeds: int | None = None

    def __post_init__(self) -> None:
        preset(self.preset)
        if self.seeds is not None and self.seeds < 1:
            raise InvalidInput(f"seeds is {self.seeds}; expected the number of seeds, at least 1")
        for size in self.sizes or ():
            if size < 5:
                raise InvalidInput(f"sizes holds {size}; expected sizes of at least 5 (the paper: 5 to 10)")
        for method in self.methods or ():
            check_method(method)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What an experiment covers, with every choice made."""

    preset: str
    sizes: tuple[int, ...]
    methods: tuple[str, ...]
    seeds: int

    def with_settings(self, settings: Settings) -> "Scope":
        return Scope(
            preset=settings.preset,
            sizes=settings.sizes or self.sizes,
            methods=settings.methods or self.methods,
            seeds=settings.seeds or self.seeds,
        )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure.

    `trials(scope, datasets, rows)` lists all trials it wants now: `datasets` maps sizes to checksums, `rows` are its
    own so far. It is asked again when they are done, so that a search can look at its first results; it must want
    the same trials given the same rows. `exclusive` trials run one at a time with the whole machine (timing).
    """

    name: str
    scope: Callable[[str], Scope]  # preset -> defaults
    trials: Callable[[Scope, Mapping[int, str], Sequence[Row]], list[Trial]]
    section: Callable[[Sequence[Row]], Section | None]
    needs_data: bool = True
    exclusive: bool = False
    notes: Callable[[Scope], list[str]] = field(default=lambda scope: [])  # what to know before it runs


def names() -> list[str]:
    """The experiments that are there."""
    return list(MODULES)


def module(name: str) -> Any:
    """The module of an experiment; an unknown name lists the known ones."""
    if name not in MODULES:
        raise unknown_name("experiment", name, MODULES)
    try:
        return importlib.import_module(MODULES[name][0])
    except ModuleNotFoundError as error:
        raise InvalidInput(f"experiment {name!r} needs {error.name}, which is not installed") from error
