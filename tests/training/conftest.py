"""A dataset of random transitions, and an estimator small enough to compile in no time."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.data import Dataset, from_arrays


@dataclass(frozen=True)
class Linear:
    """Semi-gradient TD on a linear Q, with sampled next actions so that the step's key matters.

    `spoil_at` makes the loss of that step `spoil_to`; `spoil_params_at` leaves the loss and makes a weight infinite.
    """

    gamma: float = 0.9
    batch_size: int | None = 8
    learning_rate: float = 0.01
    spoil_at: int = 0
    spoil_to: float = float("nan")
    spoil_params_at: int = 0

    def init(self, spec, *, key):
        shape = (spec.obs_dim + spec.task_dim, spec.num_actions)
        return {"w": 0.1 * jax.random.normal(key, shape), "step": jnp.zeros((), jnp.int32)}

    def update(self, state, batch, *, key):
        w, step = state["w"], state["step"] + 1
        rows = jnp.arange(batch.action.shape[0])
        next_q = self.value(state, batch.next_obs, batch.task)
        next_action = jax.random.randint(key, batch.action.shape, 0, next_q.shape[-1])
        target = batch.reward + batch.discount * next_q[rows, next_action]

        def loss(w):
            q = self.value({"w": w}, batch.obs, batch.task)[rows, batch.action]
            return 0.5 * jnp.mean((q - target) ** 2), jnp.mean(q)

        (value, q), gradient = jax.value_and_grad(loss, has_aux=True)(w)
        w = w - self.learning_rate * gradient
        w = jnp.where(step == self.spoil_params_at, jnp.full_like(w, jnp.inf), w)
        value = jnp.where(step == self.spoil_at, jnp.float32(self.spoil_to), value)
        return {"w": w, "step": step}, {"loss": value, "q": q}

    def value(self, state, obs, task):
        return jnp.concatenate([obs.astype(jnp.float32), task], axis=-1) @ state["w"]

    def uncertainty(self, state, obs, task):
        return jnp.square(self.value(state, obs, task))


def random_dataset(rows: int = 150, *, obs: int = 4, tasks: int = 2, actions: int = 3, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return from_arrays(
        rng.integers(-2, 3, (rows, obs)).astype(np.int8),
        rng.integers(0, actions, rows).astype(np.int8),
        rng.normal(size=rows).astype(np.float32),
        rng.integers(-2, 3, (rows, obs)).astype(np.int8),
        terminated=rng.random(rows) < 0.1,
        discount=rng.uniform(0.5, 1.0, rows).astype(np.float32),
        task=np.eye(tasks, dtype=np.int8)[rng.integers(0, tasks, rows)],
        num_actions=actions,
    )


@pytest.fixture(scope="session")
def data() -> Dataset:
    return random_dataset()


@pytest.fixture
def make_data() -> Any:
    return random_dataset


@pytest.fixture(scope="session")
def linear() -> type[Linear]:
    return Linear


@pytest.fixture
def same() -> Any:
    """Asserts that two trees have the same bits."""

    def check(left, right):
        assert jax.tree.structure(left) == jax.tree.structure(right)
        for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
            assert x.dtype == y.dtype

    return check
