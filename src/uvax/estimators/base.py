"""The contract of every method in uvax. Read this file first.

A method is a frozen dataclass of hyperparameters with four functions. Trainer, evaluator, experiments and report know
nothing else, so an estimator of your own works everywhere by having these four:

    state = estimator.init(spec, key=key)
    state, metrics = estimator.update(state, batch, key=key)     # metrics: scalars, one of them "loss"
    estimator.value(state, obs, task)        -> [..., A]
    estimator.uncertainty(state, obs, task)  -> [..., A]

plus `gamma`, which makes the discount of a batch, and `batch_size` (None: the whole dataset in every step).

All four are pure and may be jitted, vmapped over states (seeds) and scanned. `state` is any pytree of arrays whose
structure, shapes and dtypes `update` preserves. The randomness of a step is in `key`; nothing else is random.

`uncertainty` is a **variance**, in value units squared and non-negative, wherever the method has one to give.

Optional is `cache(state, obs, task, action, next_obs)`: a pytree of values per transition that training never changes
(outputs of a frozen network), or None. A trainer with the memory for it computes them once per dataset and hands the
batch's rows back in `batch.cache`; where it does not fit, it tries `compact_cache`, which may keep less. `update` must
give the same result with either and without.

Optional is `by_action`, True for a method that computes something for the action taken alone. A trainer then puts the
rows of a batch in order of their actions and may say so in `batch.groups`. `update` must not depend on either.

Optional is `update_many(state, steps, batch_at)`, for a method with a better order of work than one step after the
other. `steps` is a pytree with a leading axis, `batch_at(step) -> (batch, key)`; it returns the state after all of them
and the metrics of each, or None if these settings leave no other order. A trainer may use it on a CPU, and must get
what `update` would give, to rounding.
"""

from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from jaxtyping import Array, Float, Int, PyTree

from uvax.data.transition import Spec, Transition

State = TypeVar("State")
Metrics = dict[str, Float[Array, ""]]
MetricsOfSteps = dict[str, Float[Array, " length"]]


@runtime_checkable
class Estimator(Protocol[State]):
    """What `fit`, `task_rejection` and the experiments ask of a method."""

    @property
    def gamma(self) -> float: ...

    @property
    def batch_size(self) -> int | None: ...

    def init(self, spec: Spec, *, key: Array) -> State: ...

    def update(self, state: State, batch: Transition, *, key: Array) -> tuple[State, Metrics]: ...

    def value(self, state: State, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]: ...

    def uncertainty(self, state: State, obs: PyTree, task: Float[Array, "*batch Z"]) -> Float[Array, "*batch A"]: ...


class TrainState(NamedTuple):
    """The state of every method in this package. Gradients flow into `params` and into nothing else."""

    params: PyTree[Any]  # trained
    target: PyTree[Any]  # lagging copy of what bootstraps; None when bootstrapping by stop-gradient
    frozen: PyTree[Any]  # drawn once, never trained: priors, random targets
    opt_state: PyTree[Any]
    step: Int[Array, ""]
