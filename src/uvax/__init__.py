"""Value-function uncertainty for reinforcement learning: UVU, its baselines, its theory and its benchmark.

Names resolve when first used, so that `import uvax` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from uvax import data, envs, estimators, evaluation, nets, theory, training

_SUBMODULES = ("collection", "data", "envs", "estimators", "evaluation", "experiments", "nets", "report", "theory", "training")
_NAMES: dict[str, str] = {}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"uvax.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'uvax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBMODULES, *_NAMES])
