"""Networks: the paper's task-conditioned one, the MLP of its theory, and ensembles of either."""

from uvax.nets.ensemble import Ensemble
from uvax.nets.layers import Dense, Parametrisation, sum_last, unit_norm
from uvax.nets.networks import ActionMLP, Activation, Conditioned, Network, one_hot, select

__all__ = [
    "ActionMLP",
    "Activation",
    "Conditioned",
    "Dense",
    "Ensemble",
    "Network",
    "Parametrisation",
    "one_hot",
    "select",
    "sum_last",
    "unit_norm",
]
