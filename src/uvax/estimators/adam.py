"""Adam with one division for each parameter."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

_DECAY, _SQUARE_DECAY = 0.9, 0.999


def adam(rate: float, epsilon: float) -> optax.GradientTransformation:
    """`optax.adam(rate, eps=epsilon)` to rounding, with its state, computed as Section 2 of Kingma and Ba ends.

    The corrections of both moments are part of the rate and of epsilon, two numbers a step. XLA leaves two divisions
    for each parameter of optax's form, in which every parameter is corrected; a division costs what six additions do.
    """
    same_state = optax.adam(rate)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        moments, *rest = state
        count = moments.count + 1
        mean = jax.tree.map(lambda m, g: _DECAY * m + (1.0 - _DECAY) * g, moments.mu, grads)
        square = jax.tree.map(lambda v, g: _SQUARE_DECAY * v + (1.0 - _SQUARE_DECAY) * (g * g), moments.nu, grads)
        root = jnp.sqrt(_correction(_SQUARE_DECAY, count))
        step, floor = -rate * root / _correction(_DECAY, count), epsilon * root

        def one(m: Array, v: Array) -> Array:
            return step.astype(m.dtype) * (m / (jnp.sqrt(v) + floor.astype(v.dtype)))

        updates = jax.tree.map(one, mean, square)
        return updates, (moments._replace(count=count, mu=mean, nu=square), *rest)

    return optax.GradientTransformation(same_state.init, update)


def _correction(decay: float, count: Array) -> Float[Array, ""]:
    return 1.0 - decay ** count.astype(float)
