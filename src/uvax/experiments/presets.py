"""How large a trial is: the one place where the numbers of `smoke`, `cpu` and `paper` stand."""

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uvax.errors import InvalidInput, unknown_name
from uvax.estimators import METHODS, config, from_config, make


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long to train and how often to look."""

    steps: int
    evaluations: int = 50  # equally spaced, on the same boards for every method
    evaluation_episodes: int = 1_000
    final_episodes: int = 5_000  # fresh boards, for the best checkpoint


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Numbers of one scale. `shared` holds for every method that has such a hyperparameter."""

    training: Training
    shared: Mapping[str, Any] = field(default_factory=dict)
    # Doors have one place each on boards of size 5 and move on larger ones, which take longer to learn.
    larger: Mapping[str, Any] = field(default_factory=dict)  # changes to `shared`, where the search begins
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what it found, on larger boards; by method
    steps_per_size: int | None = None  # times the size, instead of `training.steps`

    def of(self, size: int | None) -> "Preset":
        """This preset for boards of one size; None: size 5, and data of your own."""
        if size is None or size <= 5:
            return dataclasses.replace(self, tuned={})
        steps = self.training.steps if self.steps_per_size is None else self.steps_per_size * size
        training = dataclasses.replace(self.training, steps=steps)
        return dataclasses.replace(self, training=training, shared={**self.shared, **self.larger})

    def found(self, method: str) -> Mapping[str, Any]:
        """What the search found for a method. Ensembles share their setting."""
        return self.tuned.get("bdqnp" if method.startswith("bdqnp") else method, {})


PRESETS: dict[str, Preset] = {
    # Seconds. Shows that everything runs; learns nothing.
    "smoke": Preset(
        training=Training(steps=60, evaluations=3, evaluation_episodes=60, final_episodes=120),
        shared={"width": 32, "depth": 1, "heads": 4, "batch_size": 32, "target_period": 16},
    ),
    # Minutes on one core. What the committed results were made with.
    "cpu": Preset(
        training=Training(steps=20_000),
        shared={"width": 128, "heads": 64, "batch_size": 256},
        # With the rates of size 5 and 20,000 steps, no method returns more than 0.3 of 7.5 on size 10.
        larger={"learning_rate": 2e-3, "target_period": 128},
        tuned={
            "dqn": {"learning_rate": 1e-2},
            "bdqnp": {"learning_rate": 1e-2},
            "dqn-rnd": {"learning_rate": 5e-3, "rnd_learning_rate": 3e-5, "intrinsic_scale": 1e4},
            "dqn-rnd-p": {"learning_rate": 1e-2, "rnd_learning_rate": 3e-5},
            # The search preferred 2e-2 for Q, by little; on size 6 one seed of that learned nothing.
            "uvu": {"learning_rate": 1e-2, "uvu_learning_rate": 1e-4},
        },
        steps_per_size=3_000,
    ),
    # The paper's: width 512, 512 heads, batch 512, learning rate 3e-4, which are the estimators' defaults.
    "paper": Preset(training=Training(steps=100_000)),
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]


def preset_training(name: str, size: int | None = None) -> Training:
    """Steps, evaluations and episodes of a preset, for boards of one size."""
    return preset(name).of(size).training


def preset_hyperparameters(
    name: str, method: str, size: int | None = None, *, tuned: bool = True, **changes: Any
) -> dict[str, Any]:
    """The whole configuration of a method in a preset and for boards of one size, as `build_estimator` reads it.

    `changes` are hyperparameters that differ from the preset; one that the method does not have is an error. A method
    of your own is "your_module:Class", a dataclass; it gets those of the preset's shared numbers that it has fields
    for. Without `tuned`, nothing of what the search found for this method.

        build_estimator(preset_hyperparameters("cpu", "uvu", width=256))
    """
    numbers = preset(name).of(size)
    check_method(method)
    cls = METHODS[method][0] if method in METHODS else imported(method, "method")
    if not dataclasses.is_dataclass(cls):
        raise InvalidInput(f"the method {method!r} is {cls!r}; expected a frozen dataclass, as in uvax.estimators.base")
    known = {f.name for f in dataclasses.fields(cls)}
    shared = {key: value for key, value in numbers.shared.items() if key in known}
    given = {**shared, **(numbers.found(method) if tuned else {}), **changes}
    if method in METHODS:
        return config(make(method, **given))
    if unknown := sorted(set(given) - known):
        raise unknown_name(f"hyperparameter of {method}", unknown[0], known)
    return {**config(cls(**given)), "class": method}


def changes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a trial's configuration that differ from its preset's, as it is now."""
    if config.get("preset") not in PRESETS or "hyperparameters" not in config:
        return {}
    usual = preset_hyperparameters(config["preset"], config["method"], config.get("size"))
    return {name: value for name, value in config["hyperparameters"].items() if usual.get(name) != value}


def build_estimator(hyperparameters: Mapping[str, Any]) -> Any:
    """The estimator of a configuration, one of uvax's own or one of yours."""
    place = str(hyperparameters.get("class"))
    return from_config(dict(hyperparameters), imported(place, "method") if ":" in place else None)


def check_method(method: str) -> None:
    """Refuse a method that is neither one of uvax's nor "module:Class"."""
    if method not in METHODS and ":" not in method:
        raise unknown_name("method", method, METHODS)


def imported(place: str, what: str) -> Any:
    """What is called `name` in "module:name"; a sentence when there is no such thing."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"the {what} {place!r} cannot be imported: {error}") from error
