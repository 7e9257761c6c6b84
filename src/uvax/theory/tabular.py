"""Small problems whose answers can be said aloud: values of finite MDPs, and TD and UVU on tables.

A table is a network whose NTK is the identity on distinct points, so `td_posterior(indicator_kernel, ...)` and the
functions here are two ways to the same numbers.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from uvax.errors import InvalidInput
from uvax.theory import checks
from uvax.theory.blocks import bootstrap
from uvax.theory.checks import ArrayLike


def indicator_kernel(x1: ArrayLike, x2: ArrayLike) -> tuple[Float[np.ndarray, "A B"], Float[np.ndarray, "A B"]]:
    """NNGP and NTK of a table of independent N(0, 1) entries: 1 for equal points, else 0."""
    first, second = checks.points("x1", x1), checks.points("x2", x2)
    number = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)[1].ravel()
    same = (number[: len(first), None] == number[None, len(first) :]).astype(np.float64)
    return same, same


def tabular_values(
    transition: ArrayLike, reward: ArrayLike, policy: ArrayLike, gamma: float
) -> Float[np.ndarray, "S A"]:
    """Q^pi of a finite MDP from the Bellman equation `eq:bellman_expectation`; termination is a row of zeros.

    transition [S, A, S], reward and policy [S, A]. Costs one solve with S A unknowns.

    >>> stay = np.ones((1, 1, 1))
    >>> tabular_values(stay, np.ones((1, 1)), np.ones((1, 1)), 0.9).round(9).tolist()
    [[10.0]]
    """
    r = checks.floats("reward", reward, ndim=2)
    step = checks.floats("transition", transition, ndim=3)
    pi = checks.floats("policy", policy, ndim=2)
    states, actions = r.shape
    if step.shape != (states, actions, states) or pi.shape != (states, actions):
        raise InvalidInput(
            f"transition has shape {step.shape} and policy {pi.shape}, expected "
            f"{(states, actions, states)} and {(states, actions)} for a reward of shape {r.shape}"
        )
    following = np.einsum("sat,tb->satb", step, pi).reshape(states * actions, states * actions)
    checks.weights(following, states * actions, states * actions)
    bellman = np.eye(states * actions) - checks.discount(gamma) * following
    return np.linalg.solve(bellman, r.ravel()).reshape(states, actions)


def tabular_td(
    f0: ArrayLike, P: Any, reward: ArrayLike, seen: ArrayLike, gamma: float
) -> Float[np.ndarray, "*tables S"]:
    """Where TD on a table ends: f = reward + gamma P f on `seen` entries, f = f0 on the others.

    S counts entries (state-action pairs): f0 [*tables, S], reward [S] or [*tables, S], seen [S] booleans, and P [S, S]
    next-entry probabilities, of which only `seen` rows matter.
    """
    start = np.asarray(f0, dtype=np.float64)
    size = start.shape[-1]
    p = checks.weights(P, size, size)
    known = np.asarray(seen)
    if known.shape != (size,) or known.dtype != np.bool_:
        raise InvalidInput(f"seen has shape {known.shape} and dtype {known.dtype}, expected booleans [{size}]")
    r = np.asarray(reward, dtype=np.float64)
    if r.shape not in ((size,), start.shape):
        raise InvalidInput(f"reward has shape {r.shape}, expected ({size},) or {start.shape}")
    step = checks.discount(gamma) * bootstrap(p, np.eye(size))
    right = np.where(known, r, start)
    bellman = np.eye(size) - np.where(known[:, None], step, 0.0)
    return np.linalg.solve(bellman, right.reshape(-1, size).T).T.reshape(start.shape)


def tabular_uvu(u0: ArrayLike, g: ArrayLike, P: Any, seen: ArrayLike, gamma: float) -> Float[np.ndarray, "*tables S"]:
    """The converged table u of UVU for a random table g (Section 3.1): synthetic reward g - gamma P g on seen entries.

    1/2 (u - g)^2 is the uncertainty; it is zero where the policy stays within the data.
    """
    target = np.asarray(g, dtype=np.float64)
    size = target.shape[-1]
    p = checks.weights(P, size, size)
    following = bootstrap(p, target.reshape(-1, size).T).T.reshape(target.shape)
    return tabular_td(u0, P, target - checks.discount(gamma) * following, seen, gamma)
