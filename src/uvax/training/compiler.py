"""Options of XLA's compiler for the programs of training."""

from typing import Any

import jax

# With both, UVU and RND take 3 to 4% less on a machine with AVX-512, at paper scale and at the `cpu` preset, ensembles
# 0.5 to 3%. The first is for elementwise loops, which stop at half of such a machine's width by themselves and stay as
# they were on others. The second saves copies of parameters at the start of a step.
_CPU_OPTIONS: dict[str, Any] = {
    "xla_cpu_prefer_vector_width": 512,
    "xla_cpu_copy_insertion_use_region_analysis": True,
}


def options() -> dict[str, Any]:
    """What `jax.jit` takes as `compiler_options`: on a CPU, those that this version of XLA knows."""
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for name, value in _CPU_OPTIONS.items() if _known(name, value)}


def _known(name: str, value: Any) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:  # "No such compile option"
        return False
    return True
