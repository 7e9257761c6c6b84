"""Transitions and datasets: check, save, load, Minari in and out."""

from uvax.data.arrays import from_arrays
from uvax.data.dataset import Dataset, load
from uvax.data.minari import from_minari
from uvax.data.transition import Spec, Transition

__all__ = ["Dataset", "Spec", "Transition", "from_arrays", "from_minari", "load"]
