"""The NTK of a network as it is: inner products of its gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from uvax.errors import InvalidInput
from uvax.theory import checks
from uvax.theory.kernels import Kernel


def empirical_ntk(
    network: Callable[..., Any], params: Any, x1: Any, x2: Any, *, workspace: int = 2**28
) -> Float[np.ndarray, "A B"]:
    """Theta_0(x, x') = grad f(x)^T grad f(x'), gradients with respect to all parameters.

    Args:
        network: `apply(params, x)` of one point, or an equinox module (then `params` is None and its inexact arrays
            are the parameters). Its output is one number; pick a head in the function: `lambda p, x: net(p, x)[0]`.
        params: a pytree of arrays. Gradients are computed in float64 if they are float64 (whatever the global jax
            setting, which stays as it is), in float32 otherwise; their inner products always in float64.
        x1, x2: arrays [A, D], [B, D], or pytrees of arrays with that leading axis.
        workspace: bytes for gradients, of which 8 x parameters are needed per point: rows and columns are taken in
            blocks of that size, and gradients of the columns recomputed for every block of rows.

    Example:
        >>> empirical_ntk(lambda w, x: w @ x, np.ones(2), np.eye(2), np.eye(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    workspace = checks.count("workspace", workspace, 1)
    if params is None:
        params, static = eqx.partition(network, eqx.is_inexact_array)

        def apply(p: Any, x: Any) -> Any:
            return eqx.combine(p, static)(x)
    else:
        apply = network
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    if not leaves or any(leaf.dtype.kind != "f" for leaf in leaves):
        raise InvalidInput("the network has no floating-point parameters, or others than floats; there is no NTK")
    double = any(leaf.dtype == np.float64 for leaf in leaves)
    dtype = np.float64 if double else np.float32
    same = x1 is x2
    n1, n2 = _length("x1", x1), _length("x2", x2)

    with jax.enable_x64(double):

        def cast(tree: Any) -> Any:
            # Integers (actions, say) pass unchanged; floats take the precision of the parameters.
            return jax.tree.map(
                lambda a: np.asarray(a).astype(dtype) if np.asarray(a).dtype.kind == "f" else np.asarray(a), tree
            )

        weights, first, second = cast(params), cast(x1), cast(x2)
        point = jax.tree.map(lambda a: a[0], first)
        shape = jax.eval_shape(apply, weights, point).shape
        if shape not in ((), (1,)):
            raise InvalidInput(f"the network's output for one point has shape {shape}, expected one number")

        @jax.jit
        def gradients(w: Any, batch: Any) -> Any:
            def one(x: Any) -> Any:
                grads = jax.grad(lambda q: jnp.reshape(apply(q, x), ()))(w)
                return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(grads)])

            return jax.vmap(one)(batch)

        size = sum(leaf.size for leaf in leaves)
        rows = max(1, workspace // (2 * 8 * size))

        def jacobian(points: Any, start: int) -> np.ndarray:
            batch = jax.tree.map(lambda a: a[start : start + rows], points)
            return np.asarray(gradients(weights, batch), dtype=np.float64)

        ntk = np.empty((n1, n2))
        for i in range(0, n1, rows):
            left = jacobian(first, i)
            for j in range(i if same else 0, n2, rows):
                right = left if same and i == j else jacobian(second, j)
                ntk[i : i + rows, j : j + rows] = left @ right.T
                if same and i != j:
                    ntk[j : j + rows, i : i + rows] = ntk[i : i + rows, j : j + rows].T
    return ntk


def empirical_kernel(network: Callable[..., Any], params: Any = None, *, workspace: int = 2**28) -> Kernel:
    """`empirical_ntk` as a kernel for `stability`; it has no NNGP part, since one network has no distribution."""

    def kernel(x1: Any, x2: Any) -> tuple[None, np.ndarray]:
        return None, empirical_ntk(network, params, x1, x2, workspace=workspace)

    return kernel


def _length(name: str, points: Any) -> int:
    import jax

    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else -1 for leaf in jax.tree.leaves(points)}
    if len(lengths) != 1 or min(lengths) < 1:
        raise InvalidInput(f"{name} is empty or its arrays differ in their leading axis, expected points along axis 0")
    return lengths.pop()
