"""The chain MDP of Section 3 (Figure `chainmdp`): an environment, its exact matrices and its data.

States s_0 .. s_{n-1} in a row. Action a goes one state on; in the last state it ends the episode with reward 1,
every other reward is 0. Action b leaves the chain: the episode ends without reward. (The paper's data never holds
b, and neither figures nor theory depend on where it leads.) The data policy takes a only; a task z stands for the
policy that takes a with probability z in every state.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from uvax.data.transition import Spec
from uvax.envs.go_to_door import Step, check_range
from uvax.errors import InvalidInput

A, B = range(2)


class ChainState(NamedTuple):
    """Where on the chain, and for which policy."""

    position: Int[Array, "*batch"]  # 0..n-1; n once the episode is over
    z: Float[Array, "*batch"]


class ChainData(NamedTuple):
    """All transitions of action a for some z, states in order within each z: what `uvax.from_arrays` takes."""

    obs: Float[np.ndarray, "N D"]
    task: Float[np.ndarray, "N 1"]
    action: Int[np.ndarray, " N"]
    reward: Float[np.ndarray, " N"]
    terminated: Bool[np.ndarray, " N"]
    next_obs: Float[np.ndarray, "N D"]  # of a terminated row: obs again, it is never used


class TDProblem(NamedTuple):
    """The same data as Theorem 1 sees it: f(X) regresses on reward + gamma P f(Y); a terminal row of P is zero."""

    X: Float[np.ndarray, "N D"]
    Y: Float[np.ndarray, "M D"]
    P: Float[np.ndarray, "N M"]
    reward: Float[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of `length` states; observations are one-hot, or the single number s / (length - 1).

    chain = Chain(length=10)
    data = uvax.from_arrays(**chain.data([0.0, 0.5, 1.0])._asdict(), num_actions=2)
    X, Y, P, reward = chain.td_problem([0.0, 0.5, 1.0])
    tabular_values(chain.transition, chain.reward, chain.policy(0.5), gamma=0.9)
    """

    length: int = 10
    onehot: bool = True

    name: ClassVar[str] = "Chain"
    num_actions: ClassVar[int] = 2
    task_dim: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_range("length", self.length, 1, 2**20)

    @property
    def obs_dim(self) -> int:
        return self.length if self.onehot else 1

    @property
    def spec(self) -> Spec:
        return Spec(jax.ShapeDtypeStruct((self.obs_dim,), jnp.float32), self.task_dim, self.num_actions)

    def params(self) -> dict[str, Any]:
        """What makes this environment again, for headers and rows."""
        return {"name": self.name, "length": self.length, "onehot": self.onehot}

    @property
    def transition(self) -> Float[np.ndarray, "S 2 S"]:
        """P(s' | s, a), exactly; the rows of actions that end the episode are zero."""
        matrix = np.zeros((self.length, self.num_actions, self.length))
        matrix[:, A] = np.eye(self.length, k=1)
        return matrix

    @property
    def reward(self) -> Float[np.ndarray, "S 2"]:
        """r(s, a), exactly."""
        matrix = np.zeros((self.length, self.num_actions))
        matrix[-1, A] = 1.0
        return matrix

    def policy(self, z: float) -> Float[np.ndarray, "S 2"]:
        """pi(a | s, z) = z, pi(b | s, z) = 1 - z."""
        _check_z([z])
        return np.tile([z, 1.0 - z], (self.length, 1))

    @staticmethod
    def next_probs(obs: Float[Array, "*batch D"], task: Float[Array, "*batch 1"]) -> Float[Array, "*batch 2"]:
        """pi(. | s, z) as estimators ask for it: `Policy(chain.next_probs)`."""
        return jnp.concatenate([task, 1 - task], axis=-1)

    def reset(self, *, key: Array, z: Float[ArrayLike, ""] | None = None) -> ChainState:
        """At s_0, for a given z or a uniform one."""
        drawn = jax.random.uniform(key) if z is None else jnp.asarray(z, jnp.float32)
        return ChainState(jnp.int32(0), drawn)

    def step(
        self, state: ChainState, action: Int[ArrayLike, ""], *, key: Array | None = None
    ) -> tuple[ChainState, Step]:
        """The next state; nothing is random, `key` is there for the sake of one signature."""
        check_range("action", action, 0, self.num_actions - 1)
        goes_on = jnp.asarray(action) == A
        after = jnp.where(goes_on, jnp.minimum(state.position + 1, self.length), self.length)
        reward = jnp.where(goes_on & (state.position == self.length - 1), 1.0, 0.0)
        over = after == self.length
        return ChainState(after, state.z), Step(reward, over, jnp.zeros_like(over))

    def observe(self, state: ChainState) -> Float[Array, "*batch D"]:
        """One-hot of the state, zeros once the episode is over; or s / (length - 1)."""
        if self.onehot:
            return jax.nn.one_hot(state.position, self.length, dtype=jnp.float32)
        return (state.position.astype(jnp.float32) / max(self.length - 1, 1))[..., None]

    def task(self, state: ChainState) -> Float[Array, "*batch 1"]:
        return state.z[..., None]

    def data(self, z: Sequence[float] | np.ndarray) -> ChainData:
        """Every transition of the data policy, which takes a, once for each z."""
        states, zs = self._pairs(z)
        last = states == self.length - 1
        obs = self._encode(states)
        return ChainData(
            obs=obs.astype(np.float32),
            task=zs[:, None].astype(np.float32),
            action=np.full(len(states), A, np.int32),
            reward=last.astype(np.float32),
            terminated=last,
            next_obs=np.where(last[:, None], obs, self._encode(np.minimum(states + 1, self.length - 1))).astype(
                np.float32
            ),
        )

    def td_problem(self, z: Sequence[float] | np.ndarray) -> TDProblem:
        """X, Y, P and rewards of `data(z)` for the closed form, in float64; Y holds next pairs of weight > 0."""
        states, zs = self._pairs(z)
        rows = np.flatnonzero(states < self.length - 1)
        row, action = np.repeat(rows, 2), np.tile([A, B], len(rows))
        weight = np.where(action == A, zs[row], 1.0 - zs[row])
        row, action, weight = (column[weight > 0] for column in (row, action, weight))
        P = np.zeros((len(states), len(row)))
        P[row, np.arange(len(row))] = weight
        return TDProblem(
            X=self.points(states, A, zs),
            Y=self.points(states[row] + 1, action, zs[row]),
            P=P,
            reward=(states == self.length - 1).astype(np.float64),
        )

    def points(self, state: ArrayLike, action: ArrayLike, z: ArrayLike) -> Float[np.ndarray, "N D"]:
        """Network inputs [obs, one-hot action, z] for f(s, a, z), in float64; the arguments are broadcast."""
        states, actions, zs = np.broadcast_arrays(np.asarray(state), np.asarray(action), np.asarray(z, np.float64))
        one_hot = np.eye(self.num_actions)[actions.ravel()]
        return np.concatenate([self._encode(states.ravel()), one_hot, zs.ravel()[:, None]], axis=1)

    def grid(self, z: Sequence[float] | np.ndarray, action: int = A) -> Float[np.ndarray, "N D"]:
        """Network inputs at every z and state, z-major: reshape a surface over them to [len(z), length]."""
        states, zs = self._pairs(z)
        return self.points(states, action, zs)

    def _pairs(self, z: Sequence[float] | np.ndarray) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        _check_z(z)
        return np.tile(np.arange(self.length), len(z)), np.repeat(np.asarray(z, np.float64), self.length)

    def _encode(self, states: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N D"]:
        if self.onehot:
            return np.eye(self.length)[states]
        return states[:, None] / max(self.length - 1, 1)


def _check_z(z: Sequence[float] | np.ndarray) -> None:
    values = np.asarray(z)
    if (
        values.ndim != 1
        or not values.size
        or values.dtype.kind not in "fiu"
        or not np.all((values >= 0) & (values <= 1))
    ):
        raise InvalidInput(f"z must be a list of probabilities from 0 to 1, got {z}")
