"""One catalogue of what the estimator tests run over: methods, probe problems, and how to train them.

A new method inherits every contract by one line in `METHODS`; a new probe problem is tried on every method by one
entry in `PROBES`. All problems have the same shapes, so that each method is compiled once for all of them.
"""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from uvax.data import Dataset, Spec, Transition, from_arrays
from uvax.estimators import BDQNP, DQN, RND, UVU
from uvax.nets import Network, one_hot, select

STATES, ACTIONS, ROWS = 4, 2, 12


@functools.cache
def example(name: str) -> Any:
    """The module examples/<name>.py."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _counted(*, bits: int, **of_dqn: Any) -> Any:
    return example("own_estimator").CountedDQN(DQN(**of_dqn), bits)


class Method(NamedTuple):
    """A method under test: its class, what makes it small, and what its uncertainty claims to be."""

    make: Callable[..., Any]
    settings: dict[str, Any]
    variance: bool = False  # a variance: non-negative, and small exactly where the data determine the value
    twin_loss: str | None = None  # the metric that is zero when u is g


METHODS = {
    "dqn": Method(DQN, {}),
    "bdqnp": Method(BDQNP, {"members": 3}, variance=True),
    "dqn-rnd": Method(RND, {"heads": 8, "prior": False, "rnd_learning_rate": 1e-2}, twin_loss="loss_u"),
    "dqn-rnd-p": Method(RND, {"heads": 8, "prior": True, "rnd_learning_rate": 1e-2}, twin_loss="loss_u"),
    "uvu": Method(UVU, {"heads": 8, "uvu_learning_rate": 1e-2}, variance=True, twin_loss="loss_u"),
    "a user's own": Method(_counted, {"bits": 8}),
}
VARIANCES = [name for name, method in METHODS.items() if method.variance]
TWINS = [name for name, method in METHODS.items() if method.twin_loss]
OURS = [name for name in METHODS if name != "a user's own"]

SMALL = {
    "width": 16,
    "depth": 1,
    "batch_size": ROWS,
    "target_period": 2,
    "target_lambda": 0.5,
    "learning_rate": 1e-2,
}


def small(name: str, **changes: Any) -> Any:
    """The method of that name, small enough for tests; `changes` are hyperparameters."""
    return METHODS[name].make(**{**SMALL, **METHODS[name].settings, **changes})


def spec(*, tasks: int = 2) -> Spec:
    return Spec(jax.ShapeDtypeStruct((STATES,), jnp.float32), tasks, ACTIONS)


def random_batch(key: jax.Array, *, tasks: int = 2) -> Transition:
    """Transitions between Gaussian states, some of them terminal, with one-hot tasks."""
    keys, rows = jax.random.split(key, 6), ROWS
    return Transition(
        obs=jax.random.normal(keys[0], (rows, STATES)),
        task=one_hot(jax.random.randint(keys[1], (rows,), 0, max(tasks, 1)), tasks),
        action=jax.random.randint(keys[2], (rows,), 0, ACTIONS),
        reward=jax.random.normal(keys[3], (rows,)),
        discount=jnp.where(jax.random.bernoulli(keys[4], 0.25, (rows,)), 0.0, jnp.float32(0.9)),
        next_obs=jax.random.normal(keys[5], (rows, STATES)),
    )


# The programs of these tests run for milliseconds and take seconds to compile: half of that without LLVM's efforts.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def _updates(estimator: Any, state: Any, batch: Transition, steps: int, key: jax.Array) -> tuple[Any, dict]:
    def update(i, carry):
        return estimator.update(carry[0], batch, key=jax.random.fold_in(key, i))

    metrics = jax.eval_shape(update, 0, (state, None))[1]
    return jax.lax.fori_loop(0, steps, update, (state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)))


@functools.partial(quick_jit, static_argnames="estimator")
def train(estimator: Any, state: Any, batch: Transition, steps: int, *, key: jax.Array) -> tuple[Any, dict]:
    """`steps` full-batch updates, in one compiled program for every number of steps; the last metrics too."""
    return _updates(estimator, state, batch, steps, key)


@functools.partial(quick_jit, static_argnames="estimator")
def train_seeds(estimator: Any, states: Any, batch: Transition, steps: int, *, keys: jax.Array) -> tuple[Any, dict]:
    """`train` for several seeds at once: states and keys have a leading axis, the batch is the same for all."""
    return jax.vmap(lambda state, key: _updates(estimator, state, batch, steps, key))(states, keys)


class Probe(NamedTuple):
    """A problem whose values can be said aloud. State s is the s-th unit vector."""

    data: Dataset
    gamma: float
    values: dict[tuple[int, ...], float]  # (state, action) or (state, action, task) -> value

    @property
    def batch(self) -> Transition:
        return self.data.batch(self.gamma)

    @property
    def spec(self) -> Spec:
        return self.data.spec


def probe(*rows: tuple[Any, ...], gamma: float = 0.5, tasks: int = 0, values: dict) -> Probe:
    """Rows are (state, action, reward, next state or "end" or "limit", task); "limit" is a time limit at the state.

    Rows are repeated in turn up to ROWS, so that all probes have one shape.
    """
    rows = [(*row, 0)[:5] for row in (rows * ROWS)[:ROWS]]
    state, action, reward, following, task = (list(column) for column in zip(*rows, strict=True))
    eye = np.eye(STATES, dtype=np.float32)
    data = from_arrays(
        eye[state],
        action,
        reward,
        eye[[s if isinstance(s_next, str) else s_next for s, s_next in zip(state, following, strict=True)]],
        terminated=[s_next == "end" for s_next in following],
        truncated=[s_next == "limit" for s_next in following],
        task=np.eye(max(tasks, 1), dtype=np.float32)[task][:, :tasks],
        num_actions=ACTIONS,
    )
    return Probe(data, gamma, values)


PROBES = {
    "one step: the reward is the value": probe(
        (0, 0, 1.0, "end"), (0, 1, 1.0, "end"), values={(0, 0): 1.0, (0, 1): 1.0}
    ),
    "two steps: the reward after next is worth gamma": probe(
        (0, 0, 0.0, 1), (0, 1, 0.0, 1), (1, 0, 1.0, "end"), (1, 1, 0.0, "end"),
        values={(0, 0): 0.5, (0, 1): 0.5, (1, 0): 1.0, (1, 1): 0.0},
    ),
    "a reward of one for ever is worth 1 / (1 - gamma)": probe(
        (0, 0, 1.0, 0), (0, 1, 1.0, 0), values={(0, 0): 2.0, (0, 1): 2.0}
    ),
    "a small gamma sees little of it": probe(
        (0, 0, 1.0, 0), (0, 1, 1.0, 0), gamma=0.2, values={(0, 0): 1.25, (0, 1): 1.25}
    ),
    "an end is an end, a time limit is not": probe(
        (0, 0, 1.0, "end"), (0, 1, 1.0, "end"), (1, 0, 1.0, "limit"), (1, 1, 1.0, "limit"),
        values={(0, 0): 1.0, (0, 1): 1.0, (1, 0): 2.0, (1, 1): 2.0},
    ),
    "the task flips the reward": probe(
        (0, 0, 1.0, "end", 0), (0, 1, -1.0, "end", 0), (0, 0, -1.0, "end", 1), (0, 1, 1.0, "end", 1),
        tasks=2, values={(0, 0, 0): 1.0, (0, 1, 0): -1.0, (0, 0, 1): -1.0, (0, 1, 1): 1.0},
    ),
}  # fmt: skip


class Linear(Network):
    """A network of one's own, for `network=`: f(s, a) = phi(s, a) . w for each head, with given features phi.

    Observations are one-hot states; the task is not used. With phi the identity it is a table.
    """

    weight: jax.Array  # [F, M]
    phi: Callable[[], np.ndarray] = eqx.field(static=True)  # () -> [S, A, F]

    def _table(self) -> jax.Array:
        return jnp.asarray(self.phi(), self.weight.dtype)

    def features(self, obs, task):
        return jnp.einsum("...s,saf->...af", obs, self._table())

    def heads(self, features):
        return features @ self.weight

    def features_at(self, obs, task, action):
        weights = one_hot(action, self._table().shape[1], self.weight.dtype)
        return select(weights[..., None], self.features(obs, task))

    def heads_at(self, features, action):
        return features @ self.weight


def linear(phi: np.ndarray) -> Callable[..., Linear]:
    """A factory of `Linear` networks for features phi [S, A, F]; call once, estimators compare it by identity."""

    def keep() -> np.ndarray:
        return phi

    def factory(spec: Spec, heads: int, *, key: jax.Array) -> Linear:
        return Linear(jax.random.normal(key, (phi.shape[-1], heads)), keep)

    return factory
