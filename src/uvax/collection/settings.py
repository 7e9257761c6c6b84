"""What a collection can be told, and presets for it."""

from dataclasses import dataclass, field, replace

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from uvax.envs.go_to_door import MIN_SIZE
from uvax.errors import InvalidInput, unknown_name
from uvax.estimators import DQN
from uvax.estimators.checks import require


@dataclass(frozen=True, kw_only=True)
class CollectionSettings:
    """Settings of the online agent; `dqn` has the paper's hyperparameters (Table "hpsettings", column DQN).

    The paper gives neither the number of environment steps nor the exploration schedule: those defaults are ours.
    """

    steps: int = 1_000_000  # transitions, over all environments
    environments: int = 1  # side by side
    updates: int = 1  # gradient steps for each step of all environments (the paper's update frequency is 1)
    learning_starts: int = 1_000  # transitions before the first gradient step
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay: float = 0.5  # share of the steps over which epsilon falls, linearly
    curriculum: float = 0.0  # share of the steps over which boards grow from the smallest to the full size
    dqn: DQN = field(default_factory=DQN)

    def __post_init__(self) -> None:
        for name in ("steps", "environments", "updates"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(
            self.steps % self.environments == 0, "steps", self.steps, f"a multiple of environments={self.environments}"
        )
        require(self.learning_starts >= 1, "learning_starts", self.learning_starts, "at least 1")
        for name in ("epsilon_start", "epsilon_end"):
            require(0.0 <= getattr(self, name) <= 1.0, name, getattr(self, name), "in [0, 1]")
        require(0.0 < self.epsilon_decay <= 1.0, "epsilon_decay", self.epsilon_decay, "in (0, 1]")
        require(0.0 <= self.curriculum <= 1.0, "curriculum", self.curriculum, "in [0, 1]")
        if self.dqn.batch_size is None:
            raise InvalidInput("batch_size is None; collection learns from a growing history and needs a number")

    @property
    def vector_steps(self) -> int:
        """Steps of all environments together."""
        return self.steps // self.environments

    def epsilon(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Exploration rate at that vector step."""
        done = step.astype(jnp.float32) / (self.epsilon_decay * self.vector_steps)
        return self.epsilon_start + jnp.minimum(done, 1.0) * (self.epsilon_end - self.epsilon_start)

    def size(self, step: Int[Array, ""], full: ArrayLike) -> Int[Array, ""]:
        """Largest grid of the boards drawn at that vector step.

        On large grids a random agent opens the right door about once in ten episodes, too rarely to learn from within
        an hour. Boards that grow step by step teach on small ones what carries over to the next larger.
        """
        if not self.curriculum:
            return jnp.asarray(full, jnp.int32)
        done = step.astype(jnp.float32) / (self.curriculum * self.vector_steps)
        grown = jnp.floor(done * (jnp.asarray(full, jnp.float32) - MIN_SIZE + 1)).astype(jnp.int32)
        return jnp.minimum(MIN_SIZE + grown, jnp.asarray(full, jnp.int32))

    def with_steps(self, steps: int) -> "CollectionSettings":
        """The same settings for another number of transitions, rounded up to whole vector steps."""
        require(steps >= 1, "steps", steps, "at least 1")
        return replace(self, steps=-(-steps // self.environments) * self.environments)


PRESETS = ("smoke", "cpu", "paper")

# Thousands of updates of the cpu preset for sizes 5, 6, ...; see docs/collection.md for what each reaches.
_CPU_UPDATES = (20, 120, 160, 240, 320, 400)


def preset_settings(preset: str, *, size: int) -> CollectionSettings:
    """`smoke`: seconds, learns nothing. `cpu`: minutes on one core, more the larger the grid. `paper`: the paper's."""
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    if preset == "paper":
        return CollectionSettings()
    if preset == "smoke":
        dqn = DQN(width=32, depth=1, batch_size=32)
        return CollectionSettings(steps=4_000, environments=8, learning_starts=200, dqn=dqn)
    updates = 1_000 * _CPU_UPDATES[min(size - MIN_SIZE, len(_CPU_UPDATES) - 1)]
    dqn = DQN(width=128, batch_size=256, learning_rate=1e-3, target_period=128)
    if size == MIN_SIZE:
        return CollectionSettings(steps=16 * updates, environments=16, dqn=dqn)
    return CollectionSettings(steps=16 * updates, environments=16, epsilon_decay=0.4, curriculum=0.4, dqn=dqn)
