"""Training on the device: the dataset, the frozen features and one compiled chunk of steps.

The randomness of step i comes from (seed, i) alone. Nothing large is closed over: dataset, cache and state, frozen
parameters included, are arguments of the compiled chunk.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PyTree

from uvax.data.dataset import Dataset
from uvax.data.transition import Spec, Transition
from uvax.errors import InvalidInput
from uvax.nets import Groups, Sizes, in_order, sizes_for
from uvax.training import compiler
from uvax.training.contract import Static, check_update, state_shape
from uvax.training.packed import Packed
from uvax.training.processes import Processes

# Rows per block while the cache is filled: activations stay small, the matrix products stay large.
_CACHE_BLOCK = 4_096

# Leaves with up to so many numbers are copied together to be counted; copies of large ones would need memory.
_COUNTED_TOGETHER = 2**16

# Up to so many rows of a chunk are drawn before its first step; they are kept meanwhile, 4 bytes each.
_DRAWN_AHEAD = 2**24

# What an estimator may have (`estimators.base`), the one that saves more first.
CACHES = ("cache", "compact_cache")


class Chunk(NamedTuple):
    """What a chunk of steps leaves behind; with several seeds every leaf has them as its first axis."""

    state: PyTree[Any]
    metrics: dict[str, Float[Array, ""]]  # means over the chunk
    loss: Float[Array, " length"]
    nonfinite: Int[Array, ""]  # numbers in the state that are NaN or infinite


class Trainer:
    """An estimator, a dataset and the seeds to train with, ready on the device.

    One seed is trained as it is; with `stacked` the state of all seeds has a leading axis and training is vmapped.
    A seed sees the same keys either way. Over several `devices` the rows of every batch are divided among them;
    dataset and state are on all of them.
    """

    def __init__(
        self,
        estimator: Any,
        dataset: Dataset,
        seeds: Sequence[int],
        *,
        stacked: bool,
        devices: Sequence[jax.Device] | None = None,
    ):
        self.estimator = estimator
        self.processes = Processes(devices)
        self.spec = dataset.spec
        self.seeds = tuple(seeds)
        self.stacked = stacked
        self.rows = len(dataset)
        mesh, sizes = _mesh(devices, estimator.batch_size, self.rows), _sizes(estimator, dataset)
        self._program = _Program(Static(estimator), self.spec, stacked, mesh, sizes)
        self._seed_keys = [_Keys(*jax.random.split(jax.random.key(seed), 3)) for seed in self.seeds]
        keys = _stack(self._seed_keys) if stacked else self._seed_keys[0]
        self._data, self._keys = self._program.replicate((Packed.from_host(_columns(dataset, estimator.gamma)), keys))
        self._cache: Packed | None = None

    def init(self) -> PyTree:
        """The state before the first step, checked against the contract of `estimators.base`."""
        check_update(self.estimator, self.spec, self.rows)
        # One by one: compiling a vmapped init takes longer than running it, and single runs have this one already.
        states = [_init(self._program.static, self.spec, keys.init) for keys in self._seed_keys]
        return self.place(_stack(states) if self.stacked else states[0])

    def place(self, state: PyTree) -> PyTree:
        """A state that was read from a file, on the devices of this trainer."""
        return self._program.replicate(state)

    def choose_cache(self, steps: float = math.inf, limit: float = math.inf) -> str | None:
        """The first of the method's caches that fits `limit` bytes, if it costs less than it saves.

        Filling it evaluates every row once; without it, `steps` steps evaluate the rows of their batches.
        """
        batch_size = self.estimator.batch_size
        saved = steps * (self.rows if batch_size is None else batch_size)
        fits = (name for name in CACHES if 0 < self._cache_bytes(name) <= limit)
        return next(fits, None) if saved > self.rows else None

    def fill_cache(self, state: PyTree, name: str) -> None:
        """Compute what training never changes once for all transitions; `name` is one that `choose_cache` gave."""
        self._cache = _cache(self._program, name, state, self._data)

    def _cache_bytes(self, name: str) -> int:
        if not callable(getattr(self.estimator, name, None)):
            return 0
        one = functools.partial(_cache, dataclasses.replace(self._program, stacked=False), name)
        shape = jax.eval_shape(one, state_shape(self.estimator, self.spec), self._data)
        return len(self.seeds) * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shape))

    def run(self, state: PyTree, first: int, length: int) -> Chunk:
        """`length` updates, from the one that makes step `first` into step `first` + 1."""
        start = jnp.asarray(first, jnp.int32)
        return _compiled()(self._program, length, state, self._keys, start, self._data, self._cache)

    def state_of(self, state: PyTree, index: int) -> PyTree:
        """The state of one seed, on this process."""
        state = self.processes.local(state)
        return state if not self.stacked else _take(state, index)

    def nonfinite(self, state: PyTree) -> np.ndarray:
        """How many numbers of the state are NaN or infinite, for each seed."""
        return np.atleast_1d(np.asarray(_nonfinite(self._program, state)))

    def keep(self, alive: Sequence[bool], new: PyTree, old: PyTree) -> PyTree:
        """`new` for the seeds that are alive, `old` for the others."""
        if all(alive):
            return new
        return _keep(jnp.asarray(alive), new, old) if self.stacked else old


@dataclasses.dataclass(frozen=True)
class _Program:
    """What a compiled chunk depends on besides arrays."""

    static: Static
    spec: Spec
    stacked: bool
    mesh: jax.sharding.Mesh | None
    sizes: Sizes | None  # None: rows stay as they were drawn

    @property
    def estimator(self) -> Any:
        return self.static.estimator

    @property
    def may_reorder(self) -> bool:
        """Whether `update_many` pays: an accelerator wants large steps, not small ones in a good order."""
        return self.mesh is None and jax.default_backend() == "cpu"

    def over_seeds(self, function: Any, *axes: int | None) -> Any:
        return jax.vmap(function, in_axes=axes) if self.stacked else function

    def replicate(self, tree: PyTree) -> PyTree:
        """The arrays of this process, the same in every process, on all devices."""
        if self.mesh is None:
            return tree
        everywhere = jax.sharding.NamedSharding(self.mesh, P())
        if not self.mesh.is_multi_process:
            return jax.device_put(tree, everywhere)

        def put(leaf: Array) -> Array:
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
            here = np.asarray(leaf)
            return jax.make_array_from_callback(here.shape, everywhere, lambda index: here[index])

        return jax.tree.map(put, tree)

    def replicated(self, tree: PyTree) -> PyTree:
        """Within a program: the same on every device, so that any process can read it."""
        if self.mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, jax.sharding.NamedSharding(self.mesh, P()))

    def divide(self, batch: Transition) -> Transition:
        """The batch with its rows divided among the devices."""
        if self.mesh is None:
            return batch
        rows = jax.sharding.NamedSharding(self.mesh, P("batch"))
        return jax.lax.with_sharding_constraint(batch, rows)


class _Keys(NamedTuple):
    """What a seed is used for; the key of step i is fold_in(rows, i) for its batch, fold_in(update, i) for the rest."""

    init: Array
    rows: Array
    update: Array


class _Drawn(NamedTuple):
    """The rows of a step, and if they are in order of their actions, how many have each."""

    rows: Int[Array, " B"]
    counts: Int[Array, " A"] | None


@functools.partial(jax.jit, static_argnums=(0, 1))
def _init(static: Static, spec: Spec, key: Array) -> PyTree:
    return static.estimator.init(spec, key=key)


@jax.jit
def _stack(states: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


@functools.cache
def _compiled() -> Callable[..., Chunk]:
    """`_run`, with options that depend on the platform: not known before the first training."""
    return jax.jit(_run, static_argnums=(0, 1), compiler_options=compiler.options())


def _run(
    program: _Program,
    length: int,
    state: PyTree,
    keys: _Keys,
    first: Int[Array, ""],
    data: Packed,
    cache: Packed | None,
) -> Chunk:
    estimator = program.estimator

    def chunk(state: PyTree, keys: _Keys, data: Packed, cache: Packed | None) -> Chunk:
        def batch_of(rows: Callable[[Packed], PyTree]) -> Transition:
            return program.divide(_converted(rows(data), None if cache is None else rows(cache)))

        size = estimator.batch_size
        whole = batch_of(lambda table: table.slice(0, len(table))) if size is None else None

        def draw(i: Int[Array, ""]) -> _Drawn:
            """The rows of a step: uniformly and with replacement."""
            rows = jax.random.randint(jax.random.fold_in(keys.rows, i), (size,), 0, len(data))
            if program.sizes is None:
                return _Drawn(rows, None)
            order, counts = in_order(data.take_one(rows, lambda columns: columns.action), len(program.sizes))
            return _Drawn(rows.at[order].get(mode="promise_in_bounds"), counts)

        def batch_at(at: tuple[Array, _Drawn | None]) -> tuple[Transition, Array]:
            i, drawn = at
            key = jax.random.fold_in(keys.update, i)
            if whole is not None:
                return whole, key
            drawn = draw(i) if drawn is None else drawn
            batch = batch_of(lambda table: table.take(drawn.rows))
            # Divided among devices, a batch has its groups on some of them only.
            if drawn.counts is not None and program.sizes is not None and program.mesh is None:
                batch = batch._replace(groups=Groups(drawn.counts, program.sizes))
            return batch, key

        def step(state: PyTree, at: tuple[Array, _Drawn | None]) -> tuple[PyTree, dict[str, Array]]:
            batch, key = batch_at(at)
            return estimator.update(state, batch, key=key)

        steps = first + jnp.arange(length, dtype=jnp.int32)
        # For all steps at once: for one batch, random bits are a hundred operations on few numbers.
        ahead = size is not None and length * size <= _DRAWN_AHEAD
        at = (steps, jax.vmap(draw)(steps) if ahead else None)
        many = getattr(estimator, "update_many", None) if ahead and program.may_reorder else None
        state, metrics = (many and many(state, at, batch_at)) or jax.lax.scan(step, state, at)
        metrics = {name: values.astype(jnp.float32) for name, values in metrics.items()}
        means = {name: jnp.mean(values) for name, values in metrics.items()}
        return Chunk(state, means, metrics["loss"], _count_nonfinite(state))

    results = program.over_seeds(chunk, 0, 0, None, None if cache is None else 0)(state, keys, data, cache)
    return program.replicated(results)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _cache(program: _Program, name: str, state: PyTree, data: Packed) -> Packed:
    """One of the `CACHES` over all transitions, block by block into one buffer; the last block may overlap another."""
    rows = len(data)
    block = min(_CACHE_BLOCK, rows)

    def part(state: PyTree, first: Int[Array, ""]) -> PyTree:
        batch = _converted(data.slice(first, block))
        return getattr(program.estimator, name)(state, batch.obs, batch.task, batch.action, batch.next_obs)

    def fill(state: PyTree) -> Packed:
        def body(i: Int[Array, ""], table: Packed) -> Packed:
            first = jnp.minimum(i * block, rows - block)
            return jax.tree.map(
                lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, first, 0),
                table,
                Packed.of(part(state, first), block),
            )

        of_block = jax.eval_shape(lambda: Packed.of(part(state, jnp.int32(0)), block))
        table = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype), of_block)
        return jax.lax.fori_loop(0, -(-rows // block), body, table)

    return program.over_seeds(fill, 0)(state)


@functools.partial(jax.jit, static_argnums=0)
def _nonfinite(program: _Program, state: PyTree) -> Int[Array, "..."]:
    return program.over_seeds(_count_nonfinite, 0)(state)


@jax.jit
def _keep(alive: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(alive.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old)


@jax.jit
def _take(tree: PyTree, index: Int[Array, ""]) -> PyTree:
    return jax.tree.map(lambda x: x[index], tree)


def _count_nonfinite(state: PyTree) -> Int[Array, ""]:
    """Small leaves of one shape are counted together: the 2,100 of BDQNP(35) compile ten times as slowly alone."""
    groups: dict[Any, list[Array]] = {}
    for i, leaf in enumerate(jax.tree.leaves(state)):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            groups.setdefault((leaf.shape, leaf.dtype) if leaf.size <= _COUNTED_TOGETHER else i, []).append(leaf)
    return sum((jnp.sum(~jnp.isfinite(jnp.stack(g)), dtype=jnp.int32) for g in groups.values()), jnp.int32(0))


def _converted(rows: Transition, cache: PyTree = None) -> Transition:
    """The dtypes that `update` is promised; observations stay as they are, networks convert them."""
    return rows._replace(task=rows.task.astype(jnp.float32), action=rows.action.astype(jnp.int32), cache=cache)


def _columns(dataset: Dataset, gamma: float) -> Transition:
    """The transitions in the dtypes they came in, with discount = gamma * (1 - terminated)."""
    discount = np.where(dataset.terminated, np.float32(0), np.float32(gamma))
    if dataset.discount is not None:
        discount = discount * dataset.discount
    columns: Any = (dataset.obs, dataset.task, dataset.action, dataset.reward, discount, dataset.next_obs)
    return Transition(*columns)


def _sizes(estimator: Any, dataset: Dataset) -> Sizes | None:
    """Numbers of rows of one action to compile for, for a method that gains by rows in order of their actions."""
    if estimator.batch_size is None or not getattr(estimator, "by_action", False):
        return None
    counts = np.bincount(dataset.action, minlength=dataset.spec.num_actions)
    return sizes_for((counts / len(dataset)).tolist(), estimator.batch_size)


def _mesh(devices: Sequence[jax.Device] | None, batch_size: int | None, rows: int) -> jax.sharding.Mesh | None:
    if devices is None:
        return None
    size, what = (rows, "the dataset's rows") if batch_size is None else (batch_size, "batch_size")
    if len(devices) == 0 or size % len(devices):
        raise InvalidInput(
            f"devices has {len(devices)} devices and {what} is {size};"
            " expected at least one device, and a batch that divides evenly among them"
        )
    return jax.sharding.Mesh(np.asarray(devices), ("batch",))
