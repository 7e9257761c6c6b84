"""The contract of `estimators.base`, checked on shapes before anything is computed."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from uvax.data.transition import Spec, Transition
from uvax.errors import InvalidInput
from uvax.training.log import RESERVED


class Static:
    """An estimator as a static argument of compiled functions.

    Equal frozen dataclasses are the same program, so that a second `fit` does not compile again. Anything else may
    have been changed in between, and is compiled anew.
    """

    def __init__(self, estimator: Any):
        self.estimator = estimator
        frozen = getattr(getattr(type(estimator), "__dataclass_params__", None), "frozen", False)
        self._identity: Any = (type(estimator), estimator) if frozen else id(self)
        try:
            self._hash = hash(self._identity)
        except TypeError:  # a field that is an array, say
            self._identity = id(self)
            self._hash = hash(self._identity)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._identity == other._identity


def state_shape(estimator: Any, spec: Spec) -> PyTree[jax.ShapeDtypeStruct]:
    """Structure, shapes and dtypes of a state, without computing one; a sentence if it holds more than arrays."""
    shape = eqx.filter_eval_shape(lambda key: estimator.init(spec, key=key), jax.random.key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shape):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            raise InvalidInput(
                f"the state that init returned has {leaf!r} at {jax.tree_util.keystr(path)}; expected arrays only:"
                " make it a static field, or keep it out with equinox.partition"
            )
    return shape


def check_update(estimator: Any, spec: Spec, rows: int) -> None:
    """Refuse an `update` that does not keep the contract, before `lax.scan` does so less readably."""
    state = state_shape(estimator, spec)
    size = rows if estimator.batch_size is None else estimator.batch_size

    def batch(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size, *shape), dtype)

    obs = jax.tree.map(lambda leaf: batch(leaf.dtype, *leaf.shape), spec.obs)
    task, action, number = batch(jnp.float32, spec.task_dim), batch(jnp.int32), batch(jnp.float32)
    transitions = Transition(obs, task, action, number, number, obs)  # type: ignore[arg-type]  # shapes of arrays
    new, metrics = jax.eval_shape(
        lambda state, batch: estimator.update(state, batch, key=jax.random.key(0)), state, transitions
    )
    before_after: tuple[Any, Any] = (jax.tree.structure(state), jax.tree.structure(new))
    if before_after[0] != before_after[1]:
        raise InvalidInput(
            f"update returned a state of another structure than init: {before_after[1]} instead of {before_after[0]}"
        )
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(new), strict=True):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise InvalidInput(
                f"update must keep the shapes and dtypes of the state, but {jax.tree_util.keystr(path)} went from"
                f" {before.dtype}{list(before.shape)} to {after.dtype}{list(after.shape)}"
            )
    if not isinstance(metrics, dict) or "loss" not in metrics or any(m.shape != () for m in metrics.values()):
        raise InvalidInput(
            f"update must return (state, metrics) with metrics a dict of scalars, one of them 'loss'; got {metrics}"
        )
    if taken := [name for name in RESERVED if name in metrics]:
        raise InvalidInput(f"update returned the metric {taken[0]!r}, a name the log needs for itself; rename it")
