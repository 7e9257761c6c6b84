"""Environments: the paper's GoToDoor and the chain of Section 3, in pure JAX.

`uvax.envs.gymnasium` is the same GoToDoor on the real Minigrid. Import it by name: it needs the `minigrid` extra.
"""

from uvax.envs.chain import Chain, ChainState
from uvax.envs.go_to_door import COLOURS, WALLS, GoToDoor, State, Step
from uvax.envs.optimal import ceiling, optimal_action, optimal_return

__all__ = [
    "COLOURS",
    "WALLS",
    "Chain",
    "ChainState",
    "GoToDoor",
    "State",
    "Step",
    "ceiling",
    "optimal_action",
    "optimal_return",
]
