"""What training leaves behind: a `Fit`, which answers for values and uncertainties and saves itself to one file."""

import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from uvax import storage
from uvax.data.transition import Spec
from uvax.errors import DamagedFile, Diverged, InvalidInput
from uvax.estimators import config, from_config
from uvax.estimators.base import TrainState
from uvax.training.contract import Static, state_shape
from uvax.training.leaves import fill, to_host

KIND = "fit"
Row = dict[str, Any]


class Status(NamedTuple):
    """How training ended, in a word and in a sentence."""

    name: Literal["finished", "interrupted", "diverged"]
    step: int  # steps done, or for "diverged" the step that went wrong
    message: str

    def __str__(self) -> str:
        return self.message


class Best(NamedTuple):
    """The state with the highest score; without evaluations the last one, with no score."""

    state: PyTree[Any]
    step: int
    score: float | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A trained estimator.

        fit.value(obs, task)        # [..., A]
        fit.uncertainty(obs, task)  # [..., A]
        fit.at_best().save("uvu.safetensors")

    `log` has a row for every chunk of steps (`kind` "train") and for every evaluation (`kind` "evaluation").
    """

    estimator: Any
    state: PyTree[Any]
    spec: Spec
    steps: int
    seed: int
    status: Status
    best: Best
    log: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()  # what happened on the way that a reader of the result should know

    def __repr__(self) -> str:
        best = "" if self.best.score is None else f", best {self.best.score:.4g} at step {self.best.step}"
        return f"Fit({type(self.estimator).__name__}, seed {self.seed}: {self.status}{best})"

    def value(self, obs: Any, task: Any = None) -> Float[Array, "*batch A"]:
        """Q(s, ., z) for one observation [D] or any batch of them [..., D]; the task may be left out when Z = 0.

        A single observation goes with many tasks, a single task with many observations; otherwise the leading axes
        must agree.
        """
        return _answer(self._static, "value", self.state, *self._inputs(obs, task))

    def uncertainty(self, obs: Any, task: Any = None) -> Float[Array, "*batch A"]:
        """The estimator's uncertainty of `value`: a variance for UVU and BDQNP; see the estimator's docstring."""
        return _answer(self._static, "uncertainty", self.state, *self._inputs(obs, task))

    def at_best(self) -> "Fit":
        """This fit with the best state in place of the last one."""
        return dataclasses.replace(self, state=self.best.state, steps=self.best.step)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one safetensors file with everything `value` and `uncertainty` need; `load_fit` reads it.

        Target networks and optimiser states are left out: a file is for inference, checkpoints are for training on.
        """
        arrays = to_host(for_inference(self.state))
        header = {
            "estimator": describe(self.estimator),
            "spec": {
                "obs": _encode_spec(self.spec.obs),
                "task_dim": self.spec.task_dim,
                "num_actions": self.spec.num_actions,
            },
            "steps": self.steps,
            "seed": self.seed,
            "status": self.status._asdict(),
            "best": {"step": self.best.step, "score": self.best.score},
            "notes": list(self.notes),
        }
        storage.write(path, KIND, arrays, header, overwrite=overwrite)

    @functools.cached_property
    def _static(self) -> Static:
        return Static(self.estimator)

    def _inputs(self, obs: Any, task: Any) -> tuple[PyTree, Array]:
        if not isinstance(self.spec.obs, jax.ShapeDtypeStruct):  # an observation of several parts: the method's own
            return obs, jnp.zeros((0,), jnp.float32) if task is None else jnp.asarray(task, jnp.float32)
        obs = _checked("obs", obs, self.spec.obs.shape, np.dtype(self.spec.obs.dtype))
        if task is None:
            if self.spec.task_dim:
                raise InvalidInput(f"task is missing; this estimator was trained with tasks of {self.spec.task_dim}")
            task = np.zeros((0,), np.float32)
        task = _checked("task", task, (self.spec.task_dim,), np.dtype(np.float32))
        leading, leading_task = obs.shape[: obs.ndim - len(self.spec.obs.shape)], task.shape[:-1]
        if leading and leading_task and leading != leading_task:
            raise InvalidInput(
                f"obs has leading axes {list(leading)} and task has {list(leading_task)}; expected the same ones,"
                " or a single observation or task"
            )
        batch = leading or leading_task
        return jnp.broadcast_to(obs, (*batch, *self.spec.obs.shape)), jnp.broadcast_to(task, (*batch, task.shape[-1]))


class TrainingDiverged(Diverged):
    """The loss left the finite numbers or exploded; `fit` holds the last good state."""

    def __init__(self, fit: Fit):
        super().__init__(fit.status.message)
        self.fit = fit


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C. Everything done so far is in `fit`, and in the run folder if there is one."""

    def __init__(self, fits: list[Fit]):
        super().__init__(fits[0].status.message)
        self.fit = fits[0]
        self.fits = fits


def load_fit(path: str | os.PathLike[str], estimator: Any = None) -> Fit:
    """A fit that `Fit.save` wrote, or the last state of a run folder; no dataset is needed.

    `estimator` is needed when it is of a class of yours, or holds functions (a policy, a network), which a file
    cannot; its other settings must be those of the file. The result is for inference: its state has no optimiser.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "model.safetensors"
    arrays, header = storage.read(path, KIND)
    if estimator is None:
        estimator = from_config(header["estimator"])
    elif difference := first_difference(header["estimator"], describe(estimator)):
        raise InvalidInput(f"{path} was saved with another estimator: {difference}; pass the one it was trained with")
    try:
        spec = Spec(_decode_spec(header["spec"]["obs"]), header["spec"]["task_dim"], header["spec"]["num_actions"])
        status = Status(**header["status"])
        best, steps, seed, notes = header["best"], header["steps"], header["seed"], tuple(header["notes"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} lacks a part of its header ({error}); save it again with this uvax") from None
    template = for_inference(state_shape(estimator, spec))
    state = fill(template, arrays, f"{path} does not fit its estimator", "pass the estimator it was trained with")
    return Fit(estimator, state, spec, steps, seed, status, Best(state, **best), notes=notes)


def for_inference(state: PyTree) -> PyTree:
    """The part of a state that `value` and `uncertainty` need; all of it unless it is a `TrainState`."""
    return state._replace(target=None, opt_state=None) if isinstance(state, TrainState) else state


def describe(estimator: Any) -> dict[str, Any]:
    """The estimator's configuration as plain JSON; what has no JSON form is recorded in words."""
    if dataclasses.is_dataclass(estimator):
        return _plain(config(estimator))
    return _plain({"class": type(estimator).__name__, **getattr(estimator, "__dict__", {})})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def first_difference(then: Any, now: Any, name: str = "") -> str | None:
    """Where two pieces of plain JSON differ, in words; None where they do not."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in [*then, *(key for key in now if key not in then)]:
            inner = f"{name}.{key}" if name else str(key)
            if key not in now or key not in then:
                value = (then if key in then else now)[key]
                return f"{inner} ({value!r}) is {'only there' if key in then else 'not there'}"
            if difference := first_difference(then[key], now[key], inner):
                return difference
        return None
    return None if then == now else f"{name} was {then!r} and is {now!r}"


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answer(static: Static, name: str, state: PyTree, obs: PyTree, task: Array) -> Array:
    return getattr(static.estimator, name)(state, obs, task)


def _checked(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """`value` as an array of numbers whose last axes are `shape`; its values are looked at unless they are traced."""
    traced = isinstance(value, jax.core.Tracer)
    try:
        array: Any = value if traced else np.asarray(value)
    except ValueError:
        raise InvalidInput(f"{name} must be an array with rows of equal length") from None
    expected = f"[..., {', '.join(map(str, shape))}]"
    if array.ndim < len(shape) or array.shape[array.ndim - len(shape) :] != shape:
        raise InvalidInput(f"{name} must have shape {expected}, as in training, got {list(array.shape)}")
    kind = array.dtype.kind if array.dtype != jnp.bfloat16 else "f"
    if kind not in "biuf":
        raise InvalidInput(f"{name} must hold numbers, got dtype {array.dtype}")
    if traced:
        return array
    if kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be finite, but {int((~np.isfinite(array)).sum())} of its numbers are not")
    # Integers stay what the estimator was trained on where they fit; anything else is what networks compute with.
    fits = (
        dtype.kind in "iu"
        and kind in "iu"
        and (array.size == 0 or np.iinfo(dtype).min <= array.min() <= array.max() <= np.iinfo(dtype).max)
    )
    with np.errstate(over="ignore"):
        array = array.astype(dtype if fits else np.float32)
    if kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(f"{name} has values too large for float32 (beyond 3.4e38); rescale it")
    return jnp.asarray(array)


def _encode_spec(obs: PyTree) -> Any:
    if isinstance(obs, jax.ShapeDtypeStruct):
        return {"shape": list(obs.shape), "dtype": np.dtype(obs.dtype).name}
    if isinstance(obs, Mapping):
        return {"parts": {str(name): _encode_spec(part) for name, part in obs.items()}}
    if isinstance(obs, tuple | list):
        return [_encode_spec(part) for part in obs]
    raise InvalidInput(f"observations of type {type(obs).__name__} cannot be saved; use arrays, dicts or tuples")


def _decode_spec(plain: Any) -> PyTree:
    if isinstance(plain, list):
        return tuple(_decode_spec(part) for part in plain)
    if "parts" in plain:
        return {name: _decode_spec(part) for name, part in plain["parts"].items()}
    return jax.ShapeDtypeStruct(tuple(plain["shape"]), jnp.dtype(plain["dtype"]))
