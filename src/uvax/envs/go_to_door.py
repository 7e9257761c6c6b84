"""The paper's GoToDoor (Appendix B) in pure JAX, drawn as Minigrid draws it.

Every function jits, vmaps and scans; those that need no key take one state or a batch with any leading axes.
The `batch_*` functions are the fast way to run thousands of environments: one key for the whole batch, and
fresh boards are drawn only in steps in which some episode ends.
"""

import dataclasses
import itertools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int8, UInt32

from uvax.data.transition import Spec
from uvax.errors import InvalidInput

WALLS = ("north", "south", "west", "east")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")  # Minigrid's COLOR_TO_IDX
LEFT, RIGHT, FORWARD, OPEN = range(4)

MIN_SIZE = 5  # a wall of 5 is the shortest with a place for a door, 2..w-3
MAX_SIZE = 127  # coordinates are int8 in the observation

# All ordered choices of four colours out of six: one uniform row is a uniform draw of distinct colours.
_COLOURINGS = np.array(list(itertools.permutations(range(len(COLOURS)), len(WALLS))), np.int32)


class State(NamedTuple):
    """A board, the agent on it and the task. Coordinates are (x, y) from the upper left, as in Minigrid."""

    width: Int[Array, "*batch"]  # with walls, 5..size
    height: Int[Array, "*batch"]
    pos: Int[Array, "*batch 2"]
    direction: Int[Array, "*batch"]  # 0 east, 1 south, 2 west, 3 north
    door_pos: Int[Array, "*batch 4 2"]  # in the order of WALLS
    door_color: Int[Array, "*batch 4"]  # index into COLOURS
    target: Int[Array, "*batch"]  # colour of the task, perhaps of no door on this board
    time: Int[Array, "*batch"]  # steps taken in this episode


class Step(NamedTuple):
    """What a step gives besides the next state."""

    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class GoToDoor:
    """Go to the door of the task's colour and open it: reward 1, and the agent is put anywhere on the board.

    `size` is the largest width and height, walls included. It is data: one compiled program serves all sizes,
    and an array of sizes can be vmapped over. Episodes end only by truncation after `max_steps` steps.

        env = GoToDoor(size=6)
        state = env.reset(key=jax.random.key(0))
        state, (reward, terminated, truncated) = env.step(state, OPEN, key=jax.random.key(1))
        env.observe(state)      # int8[35]
    """

    size: Int[ArrayLike, "*batch"] = 5
    max_steps: int = 50

    name: ClassVar[str] = "GoToDoor"
    num_actions: ClassVar[int] = 4
    obs_dim: ClassVar[int] = 35
    task_dim: ClassVar[int] = len(COLOURS)

    def __post_init__(self) -> None:
        check_range("size", self.size, MIN_SIZE, MAX_SIZE)
        check_range("max_steps", self.max_steps, 1, 2**31 - 2)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any]], int]:
        return ((jax.tree_util.GetAttrKey("size"), self.size),), self.max_steps

    @classmethod
    def tree_unflatten(cls, max_steps: int, children: tuple[Any]) -> "GoToDoor":
        # JAX also unflattens with placeholders (axes, shapes), which are none of __post_init__'s business.
        env = object.__new__(cls)
        object.__setattr__(env, "size", children[0])
        object.__setattr__(env, "max_steps", max_steps)
        return env

    @property
    def spec(self) -> Spec:
        return Spec(jax.ShapeDtypeStruct((self.obs_dim,), jnp.int8), self.task_dim, self.num_actions)

    def params(self) -> dict[str, Any]:
        """What makes this environment again, for headers and rows."""
        return {"name": self.name, "size": np.asarray(self.size).tolist(), "max_steps": self.max_steps}

    def reset(self, *, key: Array, target: Int[ArrayLike, ""] | None = None) -> State:
        """A fresh board and task; `target` sets the task to a colour, which need not be on the board."""
        state = self._board(jax.random.bits(key, (4,), jnp.uint32))
        return state if target is None else self.with_target(state, target)

    def step(self, state: State, action: Int[ArrayLike, ""], *, key: Array) -> tuple[State, Step]:
        """The true next state, also after the last step of an episode. The key only matters when the agent is
        re-placed."""
        check_range("action", action, 0, self.num_actions - 1)
        return self._advance(state, jnp.asarray(action), jax.random.bits(key, (), jnp.uint32))

    def step_autoreset(self, state: State, action: Int[ArrayLike, ""], *, key: Array) -> tuple[State, State, Step]:
        """The state to go on from (a fresh one when the episode is over), the true next state, the step."""
        check_range("action", action, 0, self.num_actions - 1)
        words = jax.random.bits(key, (5,), jnp.uint32)
        true_next, step = self._advance(state, jnp.asarray(action), words[0])
        return _select(step.truncated, self._board(words[1:]), true_next), true_next, step

    def batch_reset(self, n: int, *, key: Array) -> State:
        """`n` fresh states from one key; `size` may be an array [n]."""
        check_range("n", n, 1, 2**31 - 1)
        return self._board(jax.random.bits(key, (n, 4), jnp.uint32))

    def batch_step_autoreset(
        self, states: State, actions: Int[Array, " n"], *, key: Array
    ) -> tuple[State, State, Step]:
        """`step_autoreset` for a batch and one key: the same rules, other random numbers.

        Boards are drawn only when some episode of the batch ends, for which the batch shares one branch:
        under a further vmap it becomes a select, and this is no faster than a vmapped `step_autoreset`.
        """
        check_range("actions", actions, 0, self.num_actions - 1)
        n = states.time.shape[0]
        key_place, key_board = jax.random.split(key)
        true_next, step = self._advance(states, actions, jax.random.bits(key_place, (n,), jnp.uint32))

        def fresh(after: State) -> State:
            words = jax.random.bits(key_board, (n, 4), jnp.uint32)
            return _select(step.truncated, self._board(words), after)

        return jax.lax.cond(jnp.any(step.truncated), fresh, lambda after: after, true_next), true_next, step

    def observe(self, state: State) -> Int8[Array, "*batch 35"]:
        """The paper's 35 numbers, unscaled: x, y; direction 1..4; door colours as one-hots; door x, y."""
        colours = state.door_color[..., None] == jnp.arange(len(COLOURS), dtype=state.door_color.dtype)
        batch = state.time.shape
        parts = (
            state.pos,
            state.direction[..., None] + 1,
            colours.reshape(*batch, -1),
            state.door_pos.reshape(*batch, -1),
        )
        return jnp.concatenate([part.astype(jnp.int8) for part in parts], axis=-1)

    def task(self, state: State) -> Float[Array, "*batch 6"]:
        """One-hot of the target colour."""
        return jax.nn.one_hot(state.target, self.task_dim, dtype=jnp.float32)

    def target_wall(self, state: State) -> Int[Array, "*batch"]:
        """Where the door of the task is, as an index into WALLS; 4 when the board has none of that colour."""
        here = state.door_color == state.target[..., None]
        absent = jnp.int32(len(WALLS))
        return jnp.min(jnp.where(here, jnp.arange(len(WALLS), dtype=jnp.int32), absent), axis=-1)

    def with_target(self, state: State, colour: Int[ArrayLike, "*batch"]) -> State:
        """The same board and agent with another task."""
        check_range("target", colour, 0, self.task_dim - 1)
        return state._replace(target=jnp.broadcast_to(jnp.asarray(colour, jnp.int32), state.target.shape))

    def _advance(self, state: State, action: Int[Array, "*batch"], word: UInt32[Array, "*batch"]) -> tuple[State, Step]:
        """The rules. `word` is the randomness of a re-placement."""
        x, y, direction = state.pos[..., 0], state.pos[..., 1], state.direction
        front_x, front_y = in_front(x, y, direction)

        # Doors stay closed, so the free cells are exactly the interior.
        free = (front_x > 0) & (front_x < state.width - 1) & (front_y > 0) & (front_y < state.height - 1)
        moves = (action == FORWARD) & free
        turn = jnp.where(action == RIGHT, 1, jnp.where(action == LEFT, -1, 0))

        right_door = (
            (state.door_pos[..., 0] == front_x[..., None])
            & (state.door_pos[..., 1] == front_y[..., None])
            & (state.door_color == state.target[..., None])
        )
        opens = (action == OPEN) & jnp.any(right_door, axis=-1)

        new_x, new_y, new_direction = _place(word, state.width, state.height)
        next_x = jnp.where(opens, new_x, jnp.where(moves, front_x, x))
        next_y = jnp.where(opens, new_y, jnp.where(moves, front_y, y))
        time = state.time + 1
        after = state._replace(
            pos=_pair(next_x, next_y),
            direction=jnp.where(opens, new_direction, (direction + turn) & 3),
            time=time,
        )
        return after, Step(opens.astype(jnp.float32), jnp.zeros_like(opens), time >= self.max_steps)

    def _board(self, words: UInt32[Array, "*batch 4"]) -> State:
        """A fresh state from four random words, with the distribution of Minigrid's GoToDoor."""
        sides, offsets, colours, agent = (words[..., i] for i in range(4))
        batch = sides.shape
        spread = jnp.broadcast_to(jnp.asarray(self.size, jnp.int32) - (MIN_SIZE - 1), batch)

        width, sides = _digit(sides, spread)
        height, _ = _digit(sides, spread)
        width, height = width + MIN_SIZE, height + MIN_SIZE

        north, offsets = _digit(offsets, width - 4)
        south, offsets = _digit(offsets, width - 4)
        west, offsets = _digit(offsets, height - 4)
        east, _ = _digit(offsets, height - 4)
        zero = jnp.zeros_like(width)
        door_x = jnp.stack([north + 2, south + 2, zero, width - 1], axis=-1)
        door_y = jnp.stack([zero, height - 1, west + 2, east + 2], axis=-1)

        row, colours = _digit(colours, jnp.full(batch, len(_COLOURINGS), jnp.int32))
        wall, _ = _digit(colours, jnp.full(batch, len(WALLS), jnp.int32))
        door_color = jnp.asarray(_COLOURINGS)[row]

        x, y, direction = _place(agent, width, height)
        return State(
            width=width,
            height=height,
            pos=_pair(x, y),
            direction=direction,
            door_pos=_pair(door_x, door_y),
            door_color=door_color,
            target=jnp.take_along_axis(door_color, wall[..., None], axis=-1)[..., 0],
            time=zero,
        )


def in_front(
    x: Int[Array, "*batch"], y: Int[Array, "*batch"], direction: Int[Array, "*batch"]
) -> tuple[Int[Array, "*batch"], Int[Array, "*batch"]]:
    """The cell that an agent at (x, y) looks at."""
    return (
        x + jnp.where(direction == 0, 1, 0) - jnp.where(direction == 2, 1, 0),
        y + jnp.where(direction == 1, 1, 0) - jnp.where(direction == 3, 1, 0),
    )


def _pair(x: Int[Array, "*batch"], y: Int[Array, "*batch"]) -> Int[Array, "*batch 2"]:
    """(x, y) on a last axis, for coordinates below 2^16.

    XLA on the CPU fuses a stack with everything before it and computes all of that once per element, without
    vector instructions. Through one packed word the step as a whole is three times as fast.
    """
    packed = x | (y << 16)
    return (packed[..., None] >> jnp.array([0, 16], jnp.int32)) & 0xFFFF


def _place(
    word: UInt32[Array, "*batch"], width: Int[Array, "*batch"], height: Int[Array, "*batch"]
) -> tuple[Int[Array, "*batch"], Int[Array, "*batch"], Int[Array, "*batch"]]:
    """Cell (x, y) uniform over the interior and direction uniform."""
    x, word = _digit(word, width - 2)
    y, word = _digit(word, height - 2)
    return x + 1, y + 1, (word >> 30).astype(jnp.int32)


def _digit(
    word: UInt32[Array, "*batch"], base: Int[Array, "*batch"]
) -> tuple[Int[Array, "*batch"], UInt32[Array, "*batch"]]:
    """A uniform integer in 0..base-1 and the word that holds the randomness left over, for base < 2^16.

    The integer is floor(word * base / 2^32) and the rest is word * base mod 2^32: a mixed-radix expansion of
    the fraction word / 2^32. Digits of total base N from one word are uniform to a relative N / 2^32.
    Multiplications only: integer division does not vectorise.
    """
    n = base.astype(jnp.uint32)
    high, low = word >> 16, word & 0xFFFF
    return ((high * n + ((low * n) >> 16)) >> 16).astype(jnp.int32), word * n


def _select(where: Bool[Array, "*batch"], new: State, old: State) -> State:
    """Field by field, `new` where the flag is set."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(where.reshape(where.shape + (1,) * (a.ndim - where.ndim)), a, b)

    return jax.tree.map(pick, new, old)


def check_range(name: str, value: Any, low: int, high: int) -> None:
    """Refuse anything but integers in low..high; traced values cannot be looked at and are let through."""
    if isinstance(value, jax.core.Tracer):
        return
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or (array.size and not (low <= array.min() and array.max() <= high)):
        raise InvalidInput(f"{name} must be an integer from {low} to {high}, got {value}")
