"""One training over several processes (`jax.distributed`): the first one owns the files, all compute.

Every process calls `fit` with the same arguments. What a process does next depends on arguments, on replicated results
and on what is shared here, so it is the same everywhere.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from uvax.errors import InvalidInput, UvaxError

T = TypeVar("T")


class Processes:
    """The processes that a training's devices belong to; with one of them, nothing here does anything."""

    def __init__(self, devices: Sequence[jax.Device] | None):
        self.several = len({device.process_index for device in devices or ()}) > 1
        self.first = not self.several or jax.process_index() == 0
        if self.several and {d.process_index for d in devices or ()} != set(range(jax.process_count())):
            raise InvalidInput("devices leaves out some of the processes; pass jax.devices(), all of them")

    def on_first(self, work: Callable[[], T]) -> T | None:
        """The result of `work` on the first process and None on the others; what it raises, all raise."""
        if not self.several:
            return work()
        result, sentence = None, None
        if self.first:
            try:
                result = work()
            except UvaxError as error:
                sentence = str(error)
        if (sentence := self.share(sentence)) is not None:
            raise InvalidInput(sentence)
        return result

    def share(self, value: Any) -> Any:
        """The first process's plain JSON, everywhere."""
        if not self.several:
            return value
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        text = text if self.first else np.zeros(length, np.uint8)
        return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(text)).tobytes())

    def share_arrays(self, tree: PyTree, template: PyTree) -> PyTree:
        """The first process's arrays, everywhere; `template` has their shapes and dtypes."""
        if not self.several:
            return tree
        if not self.first:
            tree = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)
        return multihost_utils.broadcast_one_to_all(tree)

    def anywhere(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        if not self.several:
            return flag
        return bool(multihost_utils.process_allgather(np.asarray(flag)).any())

    def local(self, tree: PyTree) -> PyTree:
        """This process's copy of replicated arrays: computing with it involves no other process."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree) if self.several else tree
