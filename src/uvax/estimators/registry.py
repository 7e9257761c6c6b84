"""Methods by name, and configurations as plain data."""

import dataclasses
from typing import Any

import numpy as np

from uvax.errors import InvalidInput, unknown_name
from uvax.estimators.bdqnp import BDQNP
from uvax.estimators.bootstrap import Greedy
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
    fields = {}
    for field in dataclasses.fields(estimator):
        got = getattr(estimator, field.name)
        if dataclasses.is_dataclass(got):
            got = got.name if hasattr(got, "name") else config(got)
        elif callable(got):
            got = f"{getattr(got, '__module__', '')}:{getattr(got, '__qualname__', repr(got))}"
        elif isinstance(got, np.generic):
            got = got.item()
        fields[field.name] = got
    return {"class": type(estimator).__name__, **fields}


def from_config(values: dict[str, Any]):
    """The estimator that `config` described; needs one of uvax's own classes and settings that are plain data."""
    values = dict(values)
    name = values.pop("class", None)
    classes = {cls.__name__: cls for cls, _ in METHODS.values()}
    if name not in classes:
        raise InvalidInput(
            f"the configuration is of an estimator called {name!r}, which uvax does not have; "
            "pass the estimator itself: load(path, estimator=...)"
        )
    if values.get("bootstrap", "greedy") != "greedy" or ":" in str(values.get("network", "")):
        raise InvalidInput(
            "the configuration names a policy or network that is a function of yours and cannot be stored; "
            "pass the estimator itself: load(path, estimator=...)"
        )
    values["bootstrap"] = Greedy()
    known = {f.name for f in dataclasses.fields(classes[name])}
    for key in values:
        if key not in known:
            raise unknown_name(f"hyperparameter of {name}", key, known)
    return classes[name](**values)
