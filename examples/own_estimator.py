"""An estimator of your own: DQN for the values, visit counts for the uncertainty.

The whole contract is in `uvax/estimators/base.py`: `init`, `update`, `value`, `uncertainty`, and the two numbers
`gamma` and `batch_size`. Whatever has them works in `fit`, `task_rejection` and the experiments; no registration.

    python examples/own_estimator.py                 # half a minute
    python examples/own_estimator.py --steps 20000   # long enough for the values to mean something
"""

import argparse
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import uvax
from uvax.data import Spec, Transition
from uvax.estimators import DQN, Metrics, TrainState


class State(NamedTuple):
    """Any pytree of arrays will do, as long as `update` keeps its structure, shapes and dtypes."""

    dqn: TrainState
    planes: Float[Array, "D_plus_Z bits"]  # drawn once, never trained
    counts: Float[Array, "buckets A"]


@dataclass(frozen=True)
class CountedDQN:
    """DQN whose uncertainty is 1 / (1 + n(s, a, z)), the variance of a mean of n + 1 numbers of variance one.

    n counts the transitions seen so far whose (s, z) falls into the same of 2^bits buckets: the signs of random
    projections (SimHash). Myopic, unlike UVU: it knows how often (s, a, z) was tried, not what follows from it.
    """

    dqn: DQN = field(default_factory=DQN)
    bits: int = 12

    @property
    def gamma(self) -> float:
        return self.dqn.gamma

    @property
    def batch_size(self) -> int | None:
        return self.dqn.batch_size

    def init(self, spec: Spec, *, key: Array) -> State:
        key_dqn, key_planes = jax.random.split(key)
        planes = jax.random.normal(key_planes, (spec.obs_dim + spec.task_dim, self.bits))
        return State(self.dqn.init(spec, key=key_dqn), planes, jnp.zeros((2**self.bits, spec.num_actions)))

    def update(self, state: State, batch: Transition, *, key: Array) -> tuple[State, Metrics]:
        dqn, metrics = self.dqn.update(state.dqn, batch, key=key)
        counts = state.counts.at[self._bucket(state, batch.obs, batch.task), batch.action].add(1.0)
        return State(dqn, state.planes, counts), metrics

    def value(self, state: State, obs: Array, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return self.dqn.value(state.dqn, obs, task)

    def uncertainty(self, state: State, obs: Array, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]:
        return 1.0 / (1.0 + state.counts[self._bucket(state, obs, task)])

    def _bucket(self, state: State, obs: Array, task: Float[Array, "*batch Z"]) -> Int[Array, "*batch"]:
        point = jnp.concatenate([obs.astype(task.dtype), task], axis=-1)
        signs = (point @ state.planes > 0.0).astype(jnp.int32)
        return jnp.sum(signs << jnp.arange(self.bits, dtype=jnp.int32), axis=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="gradient steps")
    parser.add_argument("--transitions", type=int, default=20_000, help="transitions to collect")
    parser.add_argument("--episodes", type=int, default=200, help="boards of the evaluation")
    args = parser.parse_args()

    env = uvax.envs.GoToDoor(size=5)
    data = uvax.collect(env, steps=args.transitions, seed=0)
    fit = uvax.fit(CountedDQN(dqn=DQN(width=64, batch_size=128)), data, steps=args.steps, seed=0)
    result = uvax.task_rejection(fit, env, reject=4, episodes=args.episodes, seed=1)
    print(f"{fit!r}\nreturn {result.mean_return}, impossible tasks {result.attempts['impossible']}")


if __name__ == "__main__":
    main()
