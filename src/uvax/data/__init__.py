"""Transitions and datasets: check, save, load."""

from uvax.data.arrays import from_arrays
from uvax.data.dataset import Dataset, load
from uvax.data.transition import Spec, Transition

__all__ = ["Dataset", "Spec", "Transition", "from_arrays", "load"]
