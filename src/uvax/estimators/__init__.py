"""The methods. `base` is the contract; each other module is one method's scientific difference."""

from uvax.estimators.base import Estimator, Metrics, TrainState
from uvax.estimators.bdqnp import BDQNP
from uvax.estimators.bootstrap import Bootstrap, Greedy, Policy, Sampler
from uvax.estimators.dqn import DQN
from uvax.estimators.learning import Hyperparameters
from uvax.estimators.registry import METHODS, config, from_config, make
from uvax.estimators.rnd import RND
from uvax.estimators.uvu import UVU

__all__ = [
    "BDQNP",
    "DQN",
    "METHODS",
    "RND",
    "UVU",
    "Bootstrap",
    "Estimator",
    "Greedy",
    "Hyperparameters",
    "Metrics",
    "Policy",
    "Sampler",
    "TrainState",
    "config",
    "from_config",
    "make",
]
