"""Value-function uncertainty for reinforcement learning: UVU, its baselines, its theory and its benchmark.

Names resolve when first used, so that `import uvax` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from uvax import collection as collection
    from uvax import data as data
    from uvax import envs as envs
    from uvax import estimators as estimators
    from uvax import evaluation as evaluation
    from uvax import experiments as experiments
    from uvax import nets as nets
    from uvax import report as report
    from uvax import theory as theory
    from uvax import training as training
    from uvax.collection import collect as collect
    from uvax.collection import replay as replay
    from uvax.data import Dataset as Dataset
    from uvax.data import from_arrays as from_arrays
    from uvax.data import from_minari as from_minari
    from uvax.data import load as load
    from uvax.estimators import BDQNP as BDQNP
    from uvax.estimators import DQN as DQN
    from uvax.estimators import RND as RND
    from uvax.estimators import UVU as UVU
    from uvax.evaluation import task_rejection as task_rejection
    from uvax.training import Fit as Fit
    from uvax.training import fit as fit
    from uvax.training import load_fit as load_fit

_SUBMODULES = (
    "collection",
    "data",
    "envs",
    "estimators",
    "evaluation",
    "experiments",
    "nets",
    "report",
    "theory",
    "training",
)
_NAMES = {
    "BDQNP": "uvax.estimators",
    "DQN": "uvax.estimators",
    "RND": "uvax.estimators",
    "UVU": "uvax.estimators",
    "Dataset": "uvax.data",
    "Fit": "uvax.training",
    "collect": "uvax.collection",
    "fit": "uvax.training",
    "from_arrays": "uvax.data",
    "from_minari": "uvax.data",
    "load": "uvax.data",
    "load_fit": "uvax.training",
    "replay": "uvax.collection",
    "task_rejection": "uvax.evaluation",
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"uvax.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'uvax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBMODULES, *_NAMES])
