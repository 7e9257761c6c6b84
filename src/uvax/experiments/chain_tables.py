"""Section 3's example (Figure "toy_viz"): UVU on tables, on one trajectory of the chain.

A table is a network with one parameter for every state and action. Full-batch gradient descent on the mean loss of N
transitions with a learning rate of N is then the update rule of Section 3, u_sa <- r_g + gamma u_s'a', applied to all
transitions of the data at once. States are numbered from 1, as in the paper.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from uvax.data import Spec, from_arrays
from uvax.envs.chain import A, B, Chain
from uvax.errors import InvalidInput
from uvax.estimators import UVU, Policy
from uvax.nets import Network
from uvax.theory import tabular_uvu
from uvax.training import fit
from uvax.training.loop import Trainer

KIND = "uvax.experiments.chain_tables:perform"
POLICIES = ("data", "leaves")  # the policy of the data, and the one that takes b in one state

Tables = Float[np.ndarray, "M S A"]


class Table(Network):
    """M tables over states (one-hot observations) and actions, with entries from N(0, 1); tasks are not looked at."""

    entries: Float[Array, "S A M"]

    def features(self, obs: Float[Array, "*batch S"], task: Array) -> Float[Array, "*batch S"]:
        return obs.astype(self.entries.dtype)

    def heads(self, features: Float[Array, "*batch S"]) -> Float[Array, "*batch A M"]:
        return jnp.tensordot(features, self.entries, axes=1)

    def features_at(self, obs: Array, task: Array, action: Int[Array, "*batch"]) -> Float[Array, "*batch S"]:
        return self.features(obs, task)

    def heads_at(self, features: Array, action: Int[Array, "*batch"]) -> Float[Array, "*batch M"]:
        return self._select(features, action)


def table(spec: Spec, heads: int, *, key: Array) -> Table:
    """The factory of tables, for `network=`."""
    return Table(jax.random.normal(key, (spec.obs_dim, spec.num_actions, heads)))


def settings(transitions: int, gamma: float, policy: Policy) -> dict[str, Any]:
    """Hyperparameters that make an estimator the update rule of Section 3."""
    return {
        "network": table,
        "gamma": gamma,
        "batch_size": None,
        "optimiser": "sgd",
        "learning_rate": float(transitions),
        "target_period": 0,
        "bootstrap": policy,
    }


def policy_of(chain: Chain, leaves: int | None) -> Float[np.ndarray, "S 2"]:
    """Probabilities of the policy that takes a everywhere, but b in state `leaves` (from 1)."""
    if leaves is not None and not 1 <= leaves <= chain.length:
        raise InvalidInput(f"leaves is {leaves}; expected a state of the chain, from 1 to {chain.length}")
    probs = np.tile(np.eye(2)[A], (chain.length, 1))
    if leaves is not None:
        probs[leaves - 1] = np.eye(2)[B]
    return probs


def perform(
    config: Mapping[str, Any],
    seed: int,
    *,
    data: Path | None,
    work: Path | None,
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Train the same tables for both policies; for each: u after every sweep, the exact solution, TD errors."""
    chain = Chain(length=config["length"])
    found = {}
    for i, name in enumerate(POLICIES):
        leaves = config["leaves"] if name == "leaves" else None
        found[name] = _solve(chain, policy_of(chain, leaves), config["gamma"], config["tables"], config["steps"], seed)
        progress((i + 1) / len(POLICIES), name)
    return {"status": "finished", **found}


def _solve(
    chain: Chain, probs: Float[np.ndarray, "S 2"], gamma: float, tables: int, sweeps: int, seed: int
) -> dict[str, Any]:
    dataset = from_arrays(**chain.data([1.0])._asdict(), num_actions=chain.num_actions)
    rows = jnp.asarray(probs, jnp.float32)
    common = settings(len(dataset), gamma, Policy(lambda obs, task: obs @ rows, name="table"))
    estimator = UVU(**common, heads=tables, uvu_learning_rate=common["learning_rate"])
    start = Trainer(estimator, dataset, [seed], stacked=False).init()
    after = [_entries(start.params["u"])]

    def record(_estimator: Any, state: Any, step: int) -> dict[str, float]:
        after.append(_entries(state.params["u"]))
        return {"return": 0.0}

    trained = fit(estimator, dataset, sweeps, seed=seed, evaluate=record, evaluations=sweeps, progress=False)
    g, u = _entries(trained.state.frozen["g"]), after[-1]
    following = np.einsum("sat,tb->satb", chain.transition, probs).reshape(2 * chain.length, 2 * chain.length)
    seen = np.tile([True, False], chain.length)  # a is in the data, b is not
    exact = tabular_uvu(after[0].reshape(tables, -1), g.reshape(tables, -1), following, seen, gamma)

    def td_error(f: Tables) -> float:
        """The largest |r_g + gamma f(s', a') - f(s, a)| over the data."""
        flat, target = f.reshape(tables, -1), g.reshape(tables, -1)
        reward = target - gamma * target @ following.T
        return float(np.abs(reward + gamma * flat @ following.T - flat)[:, seen].max())

    states = np.eye(chain.length, dtype=np.float32)
    return {
        "g": g.tolist(),
        "u": [values.tolist() for values in after],
        "exact": exact.reshape(g.shape).tolist(),
        "difference": float(np.abs(u - exact.reshape(g.shape)).max()),
        "td_error_u": td_error(u),
        "td_error_g": td_error(g),
        "uncertainty": np.asarray(trained.uncertainty(states, np.ones((chain.length, 1), np.float32))).tolist(),
    }


def _entries(found: Table) -> Tables:
    """Tables first, in float64."""
    return np.moveaxis(np.asarray(found.entries, np.float64), -1, 0)
