"""Methods by name, and configurations as plain data."""

import dataclasses
from typing import Any

import numpy as np

from uvax.errors import InvalidInput, unknown_name
from uvax.estimators.bdqnp import BDQNP
from uvax.estimators.dqn import DQN
from uvax.estimators.rnd import RND
from uvax.estimators.uvu import UVU

METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    "dqn": (DQN, {}),
    "bdqnp": (BDQNP, {}),
    "bdqnp3": (BDQNP, {"members": 3}),
    "bdqnp15": (BDQNP, {"members": 15}),
    "bdqnp35": (BDQNP, {"members": 35}),
    "dqn-rnd": (RND, {"prior": False}),
    "dqn-rnd-p": (RND, {"prior": True}),
    "uvu": (UVU, {}),
}


def make(method: str, **hyperparameters: Any):
    """The estimator of that name; hyperparameters it does not have are an error that lists the close ones."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    cls, preset = METHODS[method]
    known = {f.name for f in dataclasses.fields(cls)}
    for name in hyperparameters:
        if name not in known:
            raise unknown_name(f"hyperparameter of {method}", name, known)
    return cls(**{**preset, **hyperparameters})


def config(estimator: Any) -> dict[str, Any]:
    """Hyperparameters as JSON-able data, the class's name included; callables are recorded by name only."""
    described = {field.name: _described(getattr(estimator, field.name)) for field in dataclasses.fields(estimator)}
    return {"class": type(estimator).__name__, **described}


def _described(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return value.name if hasattr(value, "name") else config(value)
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', repr(value))}"
    return value.item() if isinstance(value, np.generic) else value


def from_config(values: dict[str, Any], cls: type | None = None):
    """The estimator that `config` described: one of uvax's own classes, or `cls`, with settings that are plain data.

    Settings that are not (a policy, a network) must be the defaults of the class.
    """
    values = dict(values)
    name = values.pop("class", None)
    classes = {known.__name__: known for known, _ in METHODS.values()}
    if cls is None and name not in classes:
        raise InvalidInput(
            f"the configuration is of an estimator called {name!r}, which uvax does not have; "
            "pass the estimator itself: load(path, estimator=...)"
        )
    cls = cls or classes[name]
    defaults = {field.name: _default(field) for field in dataclasses.fields(cls)}
    for key in values:
        if key not in defaults:
            raise unknown_name(f"hyperparameter of {name}", key, defaults)
    given = {
        key: value
        for key, value in values.items()
        if defaults[key] is dataclasses.MISSING or value != _described(defaults[key])
    }
    if "bootstrap" in given or ":" in str(given.get("network", "")):
        raise InvalidInput(
            "the configuration names a policy or network that is a function of yours and cannot be stored; "
            "pass the estimator itself: load(path, estimator=...)"
        )
    return cls(**given)


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
