"""Small problems whose answers can be said aloud: values of finite MDPs, and TD and UVU on tables.

A table is a network whose NTK is the identity on distinct points, so `td_posterior(indicator_kernel, ...)` and the
functions here are two ways to the same numbers.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from uvax.errors import InvalidInput
from uvax.theory import checks
from uvax.theory.blocks import bootstrap


def indicator_kernel(
    x1: Float[np.ndarray, "A D"], x2: Float[np.ndarray, "B D"]
) -> tuple[Float[np.ndarray, "A B"], Float[np.ndarray, "A B"]]:
    """NNGP and NTK of a table of independent N(0, 1) entries: 1 for equal points, else 0."""
    first, second = checks.points("x1", x1), checks.points("x2", x2)
    number = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)[1].ravel()
    same = (number[: len(first), None] == number[None, len(first) :]).astype(np.float64)
    return same, same


def tabular_values(
    transition: Float[np.ndarray, "S A S"],
    reward: Float[np.ndarray, "S A"],
    policy: Float[np.ndarray, "S A"],
    gamma: float,
) -> Float[np.ndarray, "S A"]:
    """Q^pi of a finite MDP from the Bellman equation `eq:bellman_expectation`; termination is a row of zeros.

    Costs one solve with S A unknowns.

    >>> stay = np.ones((1, 1, 1))
    >>> tabular_values(stay, np.ones((1, 1)), np.ones((1, 1)), 0.9).round(9).tolist()
    [[10.0]]
    """
    reward = checks.floats("reward", reward, ndim=2)
    transition = checks.floats("transition", transition, ndim=3)
    policy = checks.floats("policy", policy, ndim=2)
    states, actions = reward.shape
    if transition.shape != (states, actions, states) or policy.shape != (states, actions):
        raise InvalidInput(
            f"transition has shape {transition.shape} and policy {policy.shape}, expected "
            f"{(states, actions, states)} and {(states, actions)} for a reward of shape {reward.shape}"
        )
    following = np.einsum("sat,tb->satb", transition, policy).reshape(states * actions, states * actions)
    checks.weights(following, states * actions, states * actions)
    bellman = np.eye(states * actions) - checks.discount(gamma) * following
    return np.linalg.solve(bellman, reward.ravel()).reshape(states, actions)


def tabular_td(
    f0: Float[np.ndarray, "*tables S"],
    P: Any,
    reward: Float[np.ndarray, "*tables S"],
    seen: Bool[np.ndarray, " S"],
    gamma: float,
) -> Float[np.ndarray, "*tables S"]:
    """Where TD on a table ends: f = reward + gamma P f on `seen` entries, f = f0 on the others.

    S counts entries (state-action pairs); P [S, S] holds next-entry probabilities, of which only `seen` rows matter.
    """
    f0 = np.asarray(f0, dtype=np.float64)
    size = f0.shape[-1]
    p = checks.weights(P, size, size)
    seen = np.asarray(seen)
    if seen.shape != (size,) or seen.dtype != np.bool_:
        raise InvalidInput(f"seen has shape {seen.shape} and dtype {seen.dtype}, expected booleans of shape ({size},)")
    reward = np.broadcast_to(np.asarray(reward, dtype=np.float64), f0.shape)
    step = checks.discount(gamma) * bootstrap(p, np.eye(size))
    known = np.where(seen, reward, f0)
    bellman = np.eye(size) - np.where(seen[:, None], step, 0.0)
    return np.linalg.solve(bellman, known.reshape(-1, size).T).T.reshape(f0.shape)


def tabular_uvu(
    u0: Float[np.ndarray, "*tables S"],
    g: Float[np.ndarray, "*tables S"],
    P: Any,
    seen: Bool[np.ndarray, " S"],
    gamma: float,
) -> Float[np.ndarray, "*tables S"]:
    """The converged table u of UVU for a random table g (Section 3.1): synthetic reward g - gamma P g on seen entries.

    1/2 (u - g)^2 is the uncertainty; it is zero where the policy stays within the data.
    """
    g = np.asarray(g, dtype=np.float64)
    size = g.shape[-1]
    p = checks.weights(P, size, size)
    following = bootstrap(p, g.reshape(-1, size).T).T.reshape(g.shape)
    return tabular_td(u0, P, g - checks.discount(gamma) * following, seen, gamma)
