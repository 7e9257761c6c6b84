"""Dense layers that keep their parametrisation with them, and the normalisation of the paper's network."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Parametrisation = Literal["he_uniform", "ntk"]


class Dense(eqx.Module):
    """An affine map of the last axis.

    `he_uniform`: y = x w + b with w ~ U(+-sqrt(6 / n_in)), of variance 2 / n_in, and b = 0 (the paper's networks).
    `ntk`: y = sigma_w / sqrt(n_in) x w + sigma_b b with w, b ~ N(0, 1) (the parametrisation of Theorem 1).
    """

    weight: Float[Array, "n_in n_out"]
    bias: Float[Array, " n_out"]
    weight_gain: float = eqx.field(static=True)
    bias_gain: float = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        key: Array,
        parametrisation: Parametrisation = "he_uniform",
        sigma_w: float = math.sqrt(2.0),
        sigma_b: float = 0.0,
    ):
        if parametrisation == "ntk":
            key_w, key_b = jax.random.split(key)
            self.weight = jax.random.normal(key_w, (n_in, n_out))
            self.bias = jax.random.normal(key_b, (n_out,))
            self.weight_gain = sigma_w / math.sqrt(n_in)
            self.bias_gain = sigma_b
        else:
            limit = math.sqrt(6.0 / n_in)
            self.weight = jax.random.uniform(key, (n_in, n_out), minval=-limit, maxval=limit)
            self.bias = jnp.zeros((n_out,))
            self.weight_gain = self.bias_gain = 1.0

    def __call__(self, x: Float[Array, "*batch n_in"]) -> Float[Array, "*batch n_out"]:
        if self.weight_gain == 1.0 and self.bias_gain == 1.0:
            return product(x, self.weight) + self.bias
        return (x @ self.weight) * self.weight_gain + self.bias * self.bias_gain

    def of_unit(self, x: Float[Array, "*batch n_in"]) -> Float[Array, "*batch n_out"]:
        """The map of x / ||x||_2.

        Rows are divided after the product, in the pass that adds a bias; before it, that would be a pass of its own.
        """
        return (product(x, self.weight) * inverse_norm(x)) * self.weight_gain + self.bias * self.bias_gain


@jax.custom_vjp
def product(x: Float[Array, "*batch n"], weight: Float[Array, "n m"]) -> Float[Array, "*batch m"]:
    """x w, with `weight_gradient` as the gradient of w. Reverse mode only."""
    return x @ weight


def weight_gradient(x: Float[Array, "B n"], cotangent: Float[Array, "B m"]) -> Float[Array, "n m"]:
    """x^T c, the gradient of w in x w.

    XLA's CPU backend hands x^T c with x in place to a routine that runs at 0.6 of the machine's rate, and the same
    product with x^T written out first to one at full rate: a tenth of a step is gained at width 128, more at 512.
    """
    return transposed(x) @ cotangent


def transposed(x: Float[Array, "n m"]) -> Float[Array, "m n"]:
    """x^T, on a CPU as an array of its own.

    XLA would compute x once more inside the transposition, and then runs it element by element with strided reads:
    0.8 ms instead of 0.1 ms for 512 x 512.
    """
    return jax.lax.platform_dependent(x, cpu=partial(by_itself, jnp.transpose), default=jnp.transpose)


def by_itself(function: Callable[..., Array], *operands: Array) -> Array:
    """`function(*operands)` by a pass that does nothing else, where XLA would make it part of what uses the result.

    A barrier does not keep it from that, being removed before fusion; the branches of a conditional are compiled apart.
    """
    always = jax.lax.optimization_barrier(jnp.bool_(True))
    return jax.lax.cond(always, function, function, *operands)


def _product_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ weight, (x, weight)


def _product_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, weight = residuals
    rows = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    return cotangent @ weight.T, weight_gradient(*rows)


product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def inverse_norm(x: Float[Array, "*batch n"]) -> Float[Array, "*batch 1"]:
    """1 / ||x||_2 over the last axis; 0 for a zero vector (of an all-zero task, say), with gradient zero.

    Reverse mode only. The gradient is written out because the one derived from the formula takes more passes.
    """
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    # Vectors shorter than 1e-12 count as zero: their inverse norm would overflow in the gradient.
    return jnp.where(square > 1e-24, jax.lax.rsqrt(square), 0.0)


def _inverse_norm_forward(x: Array) -> tuple[Array, tuple[Array, Array]]:
    inverse = inverse_norm(x)
    return inverse, (x, inverse)


def _inverse_norm_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    x, inverse = residuals
    return (-(cotangent * inverse * inverse * inverse) * x,)


inverse_norm.defvjp(_inverse_norm_forward, _inverse_norm_backward)


def sum_last(x: Float[Array, "*batch n"]) -> Float[Array, "*batch 1"]:
    """The sum over the last axis. XLA's CPU backend takes about half the time for it as a product with ones."""
    return jax.lax.platform_dependent(
        x,
        cpu=lambda x: x @ jnp.ones((x.shape[-1], 1), x.dtype),
        default=lambda x: jnp.sum(x, axis=-1, keepdims=True),
    )
