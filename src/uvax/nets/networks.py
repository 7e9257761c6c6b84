"""The two networks of the paper, behind one shape: features of a state and task, then heads for every action.

Every network maps (obs [..., D], task [..., Z]) to [..., A, M]: M outputs (heads) per action. What the methods need
besides is split so that nothing is computed twice or for nothing:

    net(obs, task)                              all actions           [..., A, M]
    net.at(obs, task, action)                   the action taken      [..., M]
    net.features(obs, task), net.heads(...)     the two halves of net(obs, task)
    net.features_at(...), net.heads_at(...)     the two halves of net.at(...)
    net.heads_chosen(features, action)          heads(features) at one action [..., M]

A network of your own needs the four halves; subclass `Network` for the rest.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from uvax.data.transition import Spec
from uvax.errors import unknown_name
from uvax.nets.grouped import MIN_HEADS, linear_at
from uvax.nets.layers import Dense, Parametrisation, unit_norm

Activation = Literal["relu", "erf", "gelu"]
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "erf": jax.scipy.special.erf,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
}


class Network(eqx.Module):
    """What an estimator asks of a network; see the module's docstring."""

    @abstractmethod
    def features(self, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch _"]: ...

    @abstractmethod
    def heads(self, features: Float[Array, "*batch _"]) -> Float[Array, "*batch A M"]: ...

    @abstractmethod
    def features_at(self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"]) -> Array: ...

    @abstractmethod
    def heads_at(
        self, features: Float[Array, "*batch _"], action: Int[Array, "*batch"]
    ) -> Float[Array, "*batch M"]: ...

    def heads_chosen(
        self, features: Float[Array, "*batch _"], action: Int[Array, "*batch"]
    ) -> Float[Array, "*batch M"]:
        """What `heads(features)` has at one action; networks that can compute it alone say how."""
        return self._select(features, action)

    def _select(self, features: Array, action: Int[Array, "*batch"]) -> Float[Array, "*batch M"]:
        values = self.heads(features)
        return select(one_hot(action, values.shape[-2], values.dtype)[..., None], values)

    def __call__(self, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A M"]:
        return self.heads(self.features(obs, task))

    def at(self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"]) -> Float[Array, "*batch M"]:
        return self.heads_at(self.features_at(obs, task, action), action)


class Conditioned(Network):
    """The paper's task-conditioned network (Figure "arc").

    Linear encoders of s and z, their elementwise product, divided by its l2 norm; `depth` hidden layers with ReLU;
    divided by the l2 norm; linear to A x M outputs. Since the last features have norm one, outputs start with
    standard deviation sqrt(2 / width). With no task (Z = 0) the product is the state's encoding alone.
    """

    encode_obs: Dense
    encode_task: Dense | None
    hidden: tuple[Dense, ...]
    head: Dense
    num_actions: int = eqx.field(static=True)
    normalise: bool = eqx.field(static=True)

    def __init__(self, spec: Spec, heads: int, *, width: int, depth: int, normalise: bool = True, key: Array):
        key_obs, key_task, key_head, key_hidden = jax.random.split(key, 4)
        self.encode_obs = Dense(spec.obs_dim, width, key=key_obs)
        self.encode_task = Dense(spec.task_dim, width, key=key_task) if spec.task_dim else None
        self.hidden = tuple(Dense(width, width, key=k) for k in jax.random.split(key_hidden, depth))
        self.head = Dense(width, spec.num_actions * heads, key=key_head)
        self.num_actions = spec.num_actions
        self.normalise = normalise

    def features(self, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch W"]:
        x = self.encode_obs(obs.astype(self.head.weight.dtype))
        if self.encode_task is not None:
            x = x * self.encode_task(task.astype(self.head.weight.dtype))
        x = unit_norm(x) if self.normalise else x
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return unit_norm(x) if self.normalise else x

    def features_at(self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"]) -> Array:
        return self.features(obs, task)

    def heads(self, features: Float[Array, "*batch W"]) -> Float[Array, "*batch A M"]:
        out = self.head(features)
        return out.reshape(*out.shape[:-1], self.num_actions, -1)

    def heads_at(self, features: Float[Array, "*batch W"], action: Int[Array, "*batch"]) -> Float[Array, "*batch M"]:
        if self.head.weight.shape[-1] < MIN_HEADS * self.num_actions:
            return self._select(features, action)
        rows = features.reshape(-1, features.shape[-1])
        out = linear_at(rows, self.head.weight, self.head.bias, action.reshape(-1), self.num_actions)
        return out.reshape(*action.shape, -1)

    def heads_chosen(
        self, features: Float[Array, "*batch W"], action: Int[Array, "*batch"]
    ) -> Float[Array, "*batch M"]:
        return self.heads_at(features, action)


class ActionMLP(Network):
    """A fully connected network with the action as input, f(s, a, z): the network of Theorem 1.

    Input [s, one-hot(a), z], `depth` hidden layers, M outputs, in NTK or He-uniform parametrisation.
    `net(obs, task)` evaluates every action; `net.at` only the one taken.
    """

    layers: tuple[Dense, ...]
    num_actions: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        spec: Spec,
        heads: int,
        *,
        width: int,
        depth: int,
        parametrisation: Parametrisation = "ntk",
        sigma_w: float = math.sqrt(2.0),
        sigma_b: float = 0.1,
        activation: Activation = "relu",
        key: Array,
    ):
        sizes = [spec.obs_dim + spec.num_actions + spec.task_dim, *[width] * depth, heads]
        keys = jax.random.split(key, depth + 1)
        self.layers = tuple(
            Dense(n_in, n_out, key=k, parametrisation=parametrisation, sigma_w=sigma_w, sigma_b=sigma_b)
            for n_in, n_out, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.num_actions = spec.num_actions
        if activation not in _ACTIVATIONS:
            raise unknown_name("activation", activation, _ACTIVATIONS)
        self.activation = activation

    def _hidden(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch W"]:
        for layer in self.layers[:-1]:
            x = _ACTIVATIONS[self.activation](layer(x))
        return x

    def features(self, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A W"]:
        dtype = self.layers[0].weight.dtype
        actions = jnp.eye(self.num_actions, dtype=dtype)
        shape = (*obs.shape[:-1], self.num_actions)
        parts = [
            jnp.broadcast_to(obs.astype(dtype)[..., None, :], (*shape, obs.shape[-1])),
            jnp.broadcast_to(actions, (*shape, self.num_actions)),
            jnp.broadcast_to(task.astype(dtype)[..., None, :], (*shape, task.shape[-1])),
        ]
        return self._hidden(jnp.concatenate(parts, axis=-1))

    def features_at(self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"]) -> Array:
        dtype = self.layers[0].weight.dtype
        parts = [obs.astype(dtype), one_hot(action, self.num_actions, dtype), task.astype(dtype)]
        return self._hidden(jnp.concatenate(parts, axis=-1))

    def heads(self, features: Float[Array, "*batch A W"]) -> Float[Array, "*batch A M"]:
        return self.layers[-1](features)

    def heads_at(self, features: Float[Array, "*batch W"], action: Int[Array, "*batch"]) -> Float[Array, "*batch M"]:
        return self.layers[-1](features)


def one_hot(action: Int[Array, "*batch"], num_actions: int, dtype=jnp.float32) -> Float[Array, "*batch A"]:
    """1 at the action, 0 elsewhere."""
    return (action[..., None] == jnp.arange(num_actions, dtype=action.dtype)).astype(dtype)


def select(weights: Float[Array, "*batch A H"], values: Float[Array, "*batch A M"]) -> Float[Array, "*batch M"]:
    """sum_a w_a v_a per head; H is M (each head its own action) or 1 (all heads alike).

    A weighted sum rather than a gather: it serves probabilities and one-hots alike. Written as additions, it fuses with
    what computes weights and values; XLA's CPU backend would write out w v [..., A, M] for a reduction.
    """
    products = weights * values
    return functools.reduce(jnp.add, [products[..., a, :] for a in range(products.shape[-2])])
