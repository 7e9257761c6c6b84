"""Networks: the paper's task-conditioned one, the MLP of its theory, and ensembles of either."""

from uvax.nets.ensemble import Ensemble
from uvax.nets.grouped import MIN_HEADS, Groups, Sizes, in_order, sizes_for
from uvax.nets.layers import Dense, Parametrisation, inverse_norm, sum_last
from uvax.nets.networks import ActionMLP, Activation, Conditioned, Network, one_hot, select

__all__ = [
    "MIN_HEADS",
    "ActionMLP",
    "Activation",
    "Conditioned",
    "Dense",
    "Ensemble",
    "Groups",
    "Network",
    "Parametrisation",
    "Sizes",
    "in_order",
    "inverse_norm",
    "one_hot",
    "select",
    "sizes_for",
    "sum_last",
]
