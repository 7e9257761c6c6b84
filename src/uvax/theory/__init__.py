"""The closed form of TD learning for infinitely wide networks: array code in float64, usable alone.

`import uvax.theory` needs numpy and scipy; jax is imported by `empirical_ntk` and by the GMRES path when they run.
"""

from uvax.theory.blocks import Blocks, Memory, kernel_blocks, memory_needed
from uvax.theory.empirical import empirical_kernel, empirical_ntk
from uvax.theory.kernels import Kernel, kernels
from uvax.theory.laws import Gaussian, ScaledChiSquare, ensemble_law, head_law
from uvax.theory.stability import Stability, stability
from uvax.theory.tabular import indicator_kernel, tabular_td, tabular_uvu, tabular_values
from uvax.theory.td import TDPosterior, posterior_from_blocks, td_posterior

__all__ = [
    "Blocks",
    "Gaussian",
    "Kernel",
    "Memory",
    "ScaledChiSquare",
    "Stability",
    "TDPosterior",
    "empirical_kernel",
    "empirical_ntk",
    "ensemble_law",
    "head_law",
    "indicator_kernel",
    "kernel_blocks",
    "kernels",
    "memory_needed",
    "posterior_from_blocks",
    "stability",
    "tabular_td",
    "tabular_uvu",
    "tabular_values",
    "td_posterior",
]
