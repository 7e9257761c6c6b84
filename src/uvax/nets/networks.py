"""The two networks of the paper, behind one shape: features of a state and task, then heads for every action.

Every network maps (obs [..., D], task [..., Z]) to [..., A, M]: M outputs (heads) per action. What the methods need
besides is split so that nothing is computed twice or for nothing:

    net(obs, task)                              all actions           [..., A, M]
    net.at(obs, task, action)                   the action taken      [..., M]
    net.features(obs, task), net.heads(...)     the two halves of net(obs, task)
    net.features_at(...), net.heads_at(...)     the two halves of net.at(...)
    net.heads_chosen(features, action)          heads(features) at one action [..., M]
    net.heads_apart(features)                   heads(features) as a list over actions of [..., M]

A network of your own needs the four halves; subclass `Network` for the rest.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from uvax.data.transition import Spec
from uvax.errors import unknown_name
from uvax.nets.grouped import MIN_HEADS, Groups, linear_at
from uvax.nets.layers import Dense, Parametrisation, inverse_norm

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

    def heads_apart(self, features: Float[Array, "..."]) -> list[Float[Array, "*batch M"]]:
        """`heads(features)` for one action after the other."""
        values = self.heads(features)
        return [values[..., a, :] for a in range(values.shape[-2])]

    def heads_grouped(
        self, features: Float[Array, "*batch _"], action: Int[Array, "*batch"], groups: Groups
    ) -> Float[Array, "*batch M"]:
        """`heads_at(features, action)` for rows in order of their actions; networks that gain by it say how."""
        return self.heads_at(features, action)

    def apart(self) -> "Network":
        """The same network in the form that trains fastest on a CPU; `together` is the inverse."""
        return self

    def together(self) -> "Network":
        return self

    def _select(self, features: Array, action: Int[Array, "*batch"]) -> Float[Array, "*batch M"]:
        values = self.heads(features)
        return select(one_hot(action, values.shape[-2], values.dtype)[..., None], values)

    def __call__(self, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A M"]:
        return self.heads(self.features(obs, task))

    def at(
        self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"], groups: Groups | None = None
    ) -> Float[Array, "*batch M"]:
        """At the action taken; `groups` says that rows [B] are in order of their actions."""
        features = self.features_at(obs, task, action)
        return self.heads_at(features, action) if groups is None else self.heads_grouped(features, action, groups)


class Conditioned(Network):
    """The paper's task-conditioned network (Figure "arc").

    Linear encoders of s and z, their elementwise product, divided by its l2 norm; `depth` hidden layers with ReLU;
    divided by the l2 norm; linear to A x M outputs. Since the last layer sees vectors of norm one, outputs start with
    standard deviation sqrt(2 / width). With no task (Z = 0) the product is the state's encoding alone. Layers divide by
    the norm of what they are given (`Dense.of_unit`), so `features` are of any norm.
    """

    encode_obs: Dense
    encode_task: Dense | None
    hidden: tuple[Dense, ...]
    head: Dense | tuple[Dense, ...]  # for all actions, or `apart` one for each
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
        dtype = self.encode_obs.weight.dtype
        x = self.encode_obs(obs.astype(dtype))
        if self.encode_task is not None:
            x = x * self.encode_task(task.astype(dtype))
        for i, layer in enumerate(self.hidden):
            x = jax.nn.relu(self._after_norm(layer, x) if i == 0 else layer(x))
        return x

    def _after_norm(self, layer: Dense, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        return layer.of_unit(x) if self.normalise else layer(x)

    def features_at(self, obs: PyTree, task: Float[Array, "*batch Z"], action: Int[Array, "*batch"]) -> Array:
        return self.features(obs, task)

    def heads(self, features: Float[Array, "*batch W"]) -> Float[Array, "*batch A M"]:
        if isinstance(self.head, tuple):
            return jnp.stack(self.heads_apart(features), axis=-2)
        out = self._after_norm(self.head, features)
        return out.reshape(*out.shape[:-1], self.num_actions, -1)

    def heads_apart(self, features: Float[Array, "*batch W"]) -> list[Float[Array, "*batch M"]]:
        if not isinstance(self.head, tuple):
            return super().heads_apart(features)
        return [self._after_norm(head, features) for head in self.head]

    def heads_at(self, features: Float[Array, "*batch W"], action: Int[Array, "*batch"]) -> Float[Array, "*batch M"]:
        return self._heads_at(features, action, None)

    def heads_chosen(
        self, features: Float[Array, "*batch W"], action: Int[Array, "*batch"]
    ) -> Float[Array, "*batch M"]:
        return self._heads_at(features, action, None)

    def heads_grouped(
        self, features: Float[Array, "B W"], action: Int[Array, " B"], groups: Groups
    ) -> Float[Array, "B M"]:
        return self._heads_at(features, action, groups)

    def _heads_at(self, features: Array, action: Array, groups: Groups | None) -> Array:
        if self._few_heads:
            return self._select(features, action)
        rows, heads = features.reshape(-1, features.shape[-1]), self._of_actions()
        scale = inverse_norm(rows) if self.normalise else None
        out = linear_at(rows, [h.weight for h in heads], [h.bias for h in heads], action.reshape(-1), groups, scale)
        return out.reshape(*action.shape, -1)

    def apart(self) -> "Conditioned":
        """With the heads of every action as a layer of its own, so that none has to be cut out or put back."""
        return self if self._few_heads else eqx.tree_at(lambda net: net.head, self, self._of_actions())

    def together(self) -> "Conditioned":
        if not isinstance(self.head, tuple):
            return self
        weight, bias = (
            jnp.concatenate(parts, -1) for parts in zip(*((h.weight, h.bias) for h in self.head), strict=True)
        )
        return eqx.tree_at(lambda net: net.head, self, _with(self.head[0], weight, bias))

    @property
    def _few_heads(self) -> bool:
        return not isinstance(self.head, tuple) and self.head.weight.shape[-1] < MIN_HEADS * self.num_actions

    def _of_actions(self) -> tuple[Dense, ...]:
        if isinstance(self.head, tuple):
            return self.head
        parts = (jnp.split(x, self.num_actions, axis=-1) for x in (self.head.weight, self.head.bias))
        return tuple(_with(self.head, weight, bias) for weight, bias in zip(*parts, strict=True))


def _with(layer: Dense, weight: Array, bias: Array) -> Dense:
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias))


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


def select(
    weights: Float[Array, "*batch A H"], values: Float[Array, "*batch A M"] | Sequence[Float[Array, "*batch M"]]
) -> Float[Array, "*batch M"]:
    """sum_a w_a v_a per head; H is M (each head its own action) or 1 (all heads alike).

    A weighted sum rather than a gather: it serves probabilities and one-hots alike. Written as additions, it fuses with
    what computes weights and values; XLA's CPU backend would write out w v [..., A, M] for a reduction.
    """
    if not isinstance(values, Sequence):
        values = [values[..., a, :] for a in range(values.shape[-2])]
    return functools.reduce(jnp.add, [weights[..., a, :] * value for a, value in enumerate(values)])
