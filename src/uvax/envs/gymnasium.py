"""The paper's GoToDoor on the real Minigrid, as a Gymnasium environment.

Importing this module registers it:

    import gymnasium
    import uvax.envs.gymnasium
    env = gymnasium.make("uvax/GoToDoor-v0", size=8, render_mode="rgb_array")
    obs, info = env.reset(seed=0, options={"target": "red"})

Layouts, movement and pictures are Minigrid's; the rules of opening, the observation and the task are the paper's
(Appendix B). `uvax.envs.GoToDoor` is the same environment in JAX, thousands of times as fast.
"""

from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array
from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_COLOR
from minigrid.core.grid import Grid
from minigrid.core.world_object import Door
from minigrid.envs import GoToDoorEnv as MinigridGoToDoor
from minigrid.minigrid_env import MiniGridEnv

from uvax.envs.go_to_door import FORWARD, LEFT, OPEN, RIGHT, GoToDoor, State
from uvax.errors import InvalidInput, unknown_name

ID = "uvax/GoToDoor-v0"


class GoToDoorEnv(MinigridGoToDoor):
    """Minigrid's GoToDoor with the paper's rules, its 35 numbers and its task.

    Observations are {"obs": int8[35], "task": float32[6]}. Actions are left, right, forward, open. `reset` takes
    `options={"target": colour}`, a name or an index, also of a colour that is not on the board.
    """

    def __init__(self, size: int = 5, max_steps: int = 50, highlight: bool = False, **kwargs: Any):
        params = GoToDoor(size=size, max_steps=max_steps)
        super().__init__(size=size, max_steps=max_steps, highlight=highlight, **kwargs)
        self.action_space = spaces.Discrete(params.num_actions)
        self.observation_space = spaces.Dict(
            {
                "obs": spaces.Box(0, max(size - 1, 4), (params.obs_dim,), np.int8),  # 4: the last direction
                "task": spaces.Box(0.0, 1.0, (params.task_dim,), np.float32),
            }
        )
        self.room = (size, size)
        self.doors: list[tuple[int, int]] = []  # in the order of WALLS
        self.door_colours: list[int] = []
        self._board = np.zeros(params.obs_dim, np.int8)  # the observation without the agent

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        target = None if options is None else options.get("target")
        colour = None if target is None else _colour_name(target)
        obs, info = super().reset(seed=seed)
        if colour is not None:
            self._set_target(colour)
            obs = self.gen_obs()
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        moves = {
            LEFT: self.actions.left,
            RIGHT: self.actions.right,
            FORWARD: self.actions.forward,
            OPEN: self.actions.done,  # changes nothing; Minigrid's `toggle` would leave the door open
        }
        if not self.action_space.contains(action):
            raise InvalidInput(f"action must be an integer from 0 to {len(moves) - 1}, got {action!r}")
        action = int(action)
        cell = self.grid.get(*self.front_pos) if action == OPEN else None
        # Not the step of Minigrid's GoToDoor, in which `done` ends the episode.
        obs, _, terminated, truncated, info = MiniGridEnv.step(self, moves[action])
        opened = isinstance(cell, Door) and cell.color == self.target_color
        if opened:
            self.place_agent(size=self.room)
            obs = self.gen_obs()
            if self.render_mode == "human":
                self.render()
        return obs, float(opened), terminated, truncated, info

    def gen_obs(self) -> Any:
        """The paper's 35 numbers and the one-hot task."""
        obs = self._board.copy()
        obs[:3] = *self.agent_pos, self.agent_dir + 1
        task = np.zeros(len(COLOR_TO_IDX), np.float32)
        task[COLOR_TO_IDX[self.target_color]] = 1
        return {"obs": obs, "task": task}

    @property
    def state(self) -> State:
        """This state as one of `uvax.envs.GoToDoor`; assign one, for instance to render it."""
        return State(
            width=_int32(self.room[0]),
            height=_int32(self.room[1]),
            pos=_int32(self.agent_pos),
            direction=_int32(self.agent_dir),
            door_pos=_int32(self.doors),
            door_color=_int32(self.door_colours),
            target=_int32(COLOR_TO_IDX[self.target_color]),
            time=_int32(self.step_count),
        )

    @state.setter
    def state(self, state: State) -> None:
        if state.time.ndim:
            raise InvalidInput(f"state must be one state, got a batch of {state.time.shape}; index it first")
        width, height = int(state.width), int(state.height)
        if max(width, height) > self.size:
            raise InvalidInput(
                f"state must have a board of at most {self.size}x{self.size}, got {width}x{height}; "
                f"make the environment with size={max(width, height)}"
            )
        self.grid = Grid(self.width, self.height)
        self.grid.wall_rect(0, 0, width, height)
        for (x, y), colour in zip(np.asarray(state.door_pos), np.asarray(state.door_color), strict=True):
            self.grid.set(int(x), int(y), Door(IDX_TO_COLOR[int(colour)]))
        self._look_around()
        self.agent_pos = (int(state.pos[0]), int(state.pos[1]))
        self.agent_dir = int(state.direction)
        self.step_count = int(state.time)
        self._set_target(IDX_TO_COLOR[int(state.target)])

    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        self._look_around()

    def _look_around(self) -> None:
        """Minigrid keeps neither the size of the room nor its doors; both are on the grid."""
        cells = {(x, y): self.grid.get(x, y) for x in range(self.width) for y in range(self.height)}
        filled = [cell for cell, thing in cells.items() if thing is not None]
        width, height = max(x for x, _ in filled) + 1, max(y for _, y in filled) + 1

        def wall(door: tuple[int, int]) -> int:
            x, y = door
            return [y == 0, y == height - 1, x == 0, x == width - 1].index(True)

        colours = {cell: COLOR_TO_IDX[thing.color] for cell, thing in cells.items() if isinstance(thing, Door)}
        self.room = (width, height)
        self.doors = sorted(colours, key=wall)
        self.door_colours = [colours[door] for door in self.doors]
        one_hots = np.eye(len(COLOR_TO_IDX))[self.door_colours]
        self._board = np.concatenate([np.zeros(3), one_hots.ravel(), np.ravel(self.doors)]).astype(np.int8)

    def _set_target(self, colour: str) -> None:
        present = {IDX_TO_COLOR[index]: door for index, door in zip(self.door_colours, self.doors, strict=True)}
        self.target_color = colour
        self.target_pos = present.get(colour, (-1, -1))
        self.mission = self._gen_mission(colour)


def _int32(value: Any) -> Array:
    return jnp.asarray(np.asarray(value), jnp.int32)


def _colour_name(target: Any) -> str:
    if isinstance(target, str):
        if target not in COLOR_TO_IDX:
            raise unknown_name("target colour", target, COLOR_TO_IDX)
        return target
    if isinstance(target, bool) or not isinstance(target, int | np.integer) or target not in IDX_TO_COLOR:
        raise InvalidInput(f"target must be a colour name or an integer from 0 to 5, got {target!r}")
    return IDX_TO_COLOR[int(target)]


if ID not in gymnasium.registry:
    gymnasium.register(id=ID, entry_point=f"{__name__}:{GoToDoorEnv.__name__}")
