"""Environments: the paper's GoToDoor and the chain of Section 3, in pure JAX.

`uvax.envs.gymnasium` is the same GoToDoor on the real Minigrid. Import it by name: it needs the `minigrid` extra.
"""

from uvax.envs.go_to_door import WALLS, GoToDoor, State, Step

__all__ = ["WALLS", "GoToDoor", "State", "Step"]
