"""Methods of several networks that learn in turn: each from the batch and from what those before it hand on."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, PyTree

from uvax.data.transition import Transition
from uvax.estimators.base import Metrics, MetricsOfSteps, TrainState
from uvax.estimators.learning import Handed, Hyperparameters
from uvax.nets import Network

Stage = Callable[[TrainState, Transition, Array, Handed], tuple[TrainState, Handed, Metrics]]
"""`learn(state, batch, key, handed) -> (state, what to hand on, metrics)`, the state being that of one network."""


@dataclass(frozen=True, kw_only=True)
class Staged(Hyperparameters, abc.ABC):
    """A subclass says in `stages` which networks there are and what each does in a step, in their order.

    No network may need what a later one does in the same step. So all steps of the first can be made before the first
    step of the second: `update_many`.
    """

    @abc.abstractmethod
    def stages(self) -> dict[str, Stage]:
        """name -> what the network of that name does."""

    def init_networks(self, networks: dict[str, Any], frozen: PyTree, *, no_target: tuple[str, ...] = ()) -> TrainState:
        """A state at step 0; those of `no_target` never bootstrap."""
        # The learning rate is none of the optimiser's state.
        parts = {name: self.init_state(net, None, self.build_optimiser()) for name, net in networks.items()}
        parts |= {name: parts[name]._replace(target=None) for name in no_target}
        return _together(parts, frozen)

    def update(self, state: TrainState, batch: Transition, *, key: Array) -> tuple[TrainState, Metrics]:
        parts: dict[str, TrainState] = {}
        handed: Handed = {}
        metrics: Metrics = {}
        for name, learn in self.stages().items():
            parts[name], more, found = learn(_part(state, name), batch, key, handed)
            handed, metrics = {**handed, **more}, _added(metrics, name, found)
        return _together(parts, state.frozen), metrics

    def update_many(
        self, state: TrainState, steps: PyTree, batch_at: Callable[[PyTree], tuple[Transition, Array]]
    ) -> tuple[TrainState, MetricsOfSteps]:
        """`update` for one step after the other, network by network: all steps of one, then all steps of the next.

        Only the order of the work is another. What one network needs stays in the processor's cache. Meanwhile
        networks have the form that trains fastest (`Network.apart`).
        """
        frozen = _apart(state.frozen)
        parts: dict[str, TrainState] = {}
        handed: Handed = {}  # of all steps
        metrics: MetricsOfSteps = {}
        for name, learn in self.stages().items():

            def step(part: TrainState, at: PyTree, learn: Stage = learn) -> tuple[TrainState, tuple[Handed, Metrics]]:
                at, handed = at
                part, more, found = learn(part._replace(frozen=frozen), *batch_at(at), handed)
                return part._replace(frozen=None), (more, found)

            start = _apart(_part(state, name)._replace(frozen=None))
            part, (more, found) = jax.lax.scan(step, start, (steps, handed))
            parts[name] = _each_network(lambda net: net.together(), part)
            handed, metrics = {**handed, **more}, _added(metrics, name, found)
        return _together(parts, state.frozen), metrics


def _each_network(function: Callable[[Network], Network], tree: PyTree) -> PyTree:
    """Of a tree with networks, or with what an optimiser keeps in their place."""
    return jax.tree.map(
        lambda x: function(x) if isinstance(x, Network) else x, tree, is_leaf=lambda x: isinstance(x, Network)
    )


def _apart(tree: PyTree) -> PyTree:
    return _each_network(lambda net: net.apart(), tree)


def _part(state: TrainState, name: str) -> TrainState:
    """The state of one network, with everything that is frozen."""
    target = None if state.target is None else state.target.get(name)
    return TrainState(state.params[name], target, state.frozen, state.opt_state[name], state.step)


def _together(parts: dict[str, TrainState], frozen: PyTree) -> TrainState:
    target = {name: part.target for name, part in parts.items() if part.target is not None}
    return TrainState(
        params={name: part.params for name, part in parts.items()},
        target=target or None,
        frozen=frozen,
        opt_state={name: part.opt_state for name, part in parts.items()},
        step=next(iter(parts.values())).step,
    )


def _added(metrics: dict[str, Array], name: str, more: dict[str, Array]) -> dict[str, Array]:
    """All of them, and the loss of this network by its name; `loss` is the sum."""
    loss = more["loss"]
    return {**metrics, **more, f"loss_{name}": loss, "loss": metrics["loss"] + loss if metrics else loss}
