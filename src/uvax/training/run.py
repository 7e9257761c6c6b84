"""The host's side of training: between chunks it watches the loss, logs, evaluates and saves."""

import contextlib
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from uvax.errors import InvalidInput
from uvax.training.contract import state_shape
from uvax.training.fitted import Best, Fit, Status, TrainingDiverged, TrainingInterrupted
from uvax.training.folder import RunFolder
from uvax.training.log import RESERVED, Log
from uvax.training.loop import Chunk, Trainer
from uvax.training.progress import Progress
from uvax.training.schedule import Schedule

Evaluate = Callable[[Any, PyTree, int], Mapping[str, float]]
"""`evaluate(estimator, state, step)` returns numbers by name."""


class Run:
    """One call of `fit`: what changes from chunk to chunk."""

    def __init__(
        self,
        trainer: Trainer,
        schedule: Schedule,
        evaluate: Evaluate | None,
        score: str,
        folder: RunFolder | None,
        explosion: float,
        largest_reward: float,
    ):
        self.trainer, self.schedule, self.folder = trainer, schedule, folder
        self.evaluate, self.score = evaluate, score
        self.explosion, self.largest_reward = explosion, largest_reward
        count = len(trainer.seeds)
        self.step = 0
        self.state: PyTree = None
        self.best: list[Best | None] = [None] * count
        self.lost: list[Status | None] = [None] * count
        self.first_loss: list[float | None] = [None] * count
        self.notes: list[str] = []
        self._nonfinite = np.zeros(count, np.int64)  # in the state that init made
        self._saved_step: int | None = None
        self._saved_best: list[int | None] = [None] * count
        self._seconds_before = 0.0
        self._begun = self._last_save = time.monotonic()

    def begin(self) -> None:
        """The state to start from: that of the newest checkpoint, or a new one."""
        processes, folder = self.trainer.processes, self.folder
        found = processes.on_first(lambda: folder is not None and self._restore(folder))
        if not processes.share(found):
            self.state = self.trainer.init()
            self._nonfinite = self.trainer.nonfinite(self.state)
        elif processes.several:
            self._share_restored()
        else:
            self.state = self.trainer.place(self.state)

    def to_the_end(self, log: Log, progress: Progress, *, cache: str | None, checkpoint_seconds: float) -> list[Fit]:
        """Run the chunks that are left and return the fits, or raise what stopped the run."""
        if cache is not None and self.step < self.schedule.steps:
            self.trainer.fill_cache(self.state, cache)
        with _interruptible(progress) as interrupted:
            for first, length in self.schedule.chunks(self.step):
                if all(self.lost):
                    break
                self._advance(first, length, log, progress)
                if all(self.lost):
                    break
                if self.step in self.schedule.evaluations:
                    self._evaluate(log, progress)
                due = time.monotonic() - self._last_save >= checkpoint_seconds
                stop = self.trainer.processes.anywhere(interrupted.is_set()) and self.step < self.schedule.steps
                if due or stop or self.step == self.schedule.steps:
                    self._checkpoint(log)
                if stop:
                    raise TrainingInterrupted(self._fits(log, self._interrupted()))
            if all(self.lost):
                self._checkpoint(log)
        finished = Status("finished", self.step, f"finished after {self.step:,} steps")
        fits = self._fits(log, finished)
        if all(self.lost):
            raise TrainingDiverged(fits[0])
        if self.folder is not None:
            self.folder.save_models(fits)
        return fits

    def _advance(self, first: int, length: int, log: Log, progress: Progress) -> None:
        chunk = self.trainer.run(self.state, first, length)
        metrics = {name: np.atleast_1d(np.asarray(values)) for name, values in chunk.metrics.items()}
        step = first + length
        for k, trouble in enumerate(self._troubles(chunk, first)):
            if self.lost[k] is None and trouble is not None:
                self.lost[k] = trouble
                if len(self.lost) > 1:
                    warnings.warn(f"seed {self.trainer.seeds[k]}: {trouble}", stacklevel=4)  # the caller of fit
        self.state = self.trainer.keep([lost is None for lost in self.lost], chunk.state, self.state)
        if all(self.lost):
            return
        self.step = step
        for k, seed in enumerate(self.trainer.seeds):
            if self.lost[k] is None:
                log.add("train", step, seed, self._seconds(), {name: float(v[k]) for name, v in metrics.items()})
        progress.update(step, loss=float(np.mean([metrics["loss"][k] for k, s in enumerate(self.lost) if s is None])))

    def _troubles(self, chunk: Chunk, first: int) -> Iterator[Status | None]:
        losses = np.asarray(chunk.loss).reshape(len(self.lost), -1)
        nonfinite = np.atleast_1d(np.asarray(chunk.nonfinite))
        for k, loss in enumerate(losses):
            if self.first_loss[k] is None:
                self.first_loss[k] = max(1.0, abs(float(loss[0]))) if np.isfinite(loss[0]) else 1.0
            limit = self.explosion * self.first_loss[k]  # type: ignore[operator]  # set above
            bad = ~(np.abs(loss) <= limit)
            if bad.any():
                at = int(np.argmax(bad))
                size = "" if not np.isfinite(loss[at]) else f", more than {self.explosion:g} times what it began with"
                yield self._trouble(first + at + 1, first, f"the loss is {loss[at]:.3g}{size}")
            elif nonfinite[k] > self._nonfinite[k]:
                yield self._trouble(first + len(loss), first, "the parameters are not finite")
            else:
                yield None

    def _trouble(self, step: int, good: int, what: str) -> Status:
        estimator = self.trainer.estimator
        advice = []
        if (rate := getattr(estimator, "learning_rate", None)) is not None:
            advice.append(f"a smaller learning_rate (it is {rate:g})")
        if getattr(estimator, "target_period", None) == 0:
            advice.append("a target network (target_period=256)")
        if self.largest_reward > 100:
            advice.append(f"rewards divided by their size (up to {self.largest_reward:.3g} here)")
        attempt = f"; try {' or '.join(advice)}" if advice else ""
        return Status(
            "diverged", step, f"diverged at step {step:,}: {what}{attempt}; the state of step {good:,} is kept"
        )

    def _evaluate(self, log: Log, progress: Progress) -> None:
        assert self.evaluate is not None
        shown = []
        for k, seed in enumerate(self.trainer.seeds):
            if self.lost[k] is not None:
                continue
            state = self.trainer.state_of(self.state, k)
            result = _numbers(self.evaluate(self.trainer.estimator, state, self.step), self.score)
            log.add("evaluation", self.step, seed, self._seconds(), result)
            score = result[self.score] if math.isfinite(result[self.score]) else None
            best = self.best[k]
            if best is None or (score is not None and (best.score is None or score > best.score)):
                self.best[k] = Best(state, self.step, score)
            shown.append(result[self.score])
        progress.update(self.step, evaluation=f"{self.score} {np.mean(shown):.3g}")

    def _checkpoint(self, log: Log) -> None:
        """The log first, then the best, then the last: each may be read by what comes after it."""
        if self.folder is None or self._saved_step == self.step:
            return
        log.sync()
        best_steps, meta = self._best_steps(), self._meta()
        if best_steps != self._saved_best:
            states = [self._state(k) if best is None else best.state for k, best in enumerate(self.best)]
            self.folder.checkpoints.save_best(max(step or 0 for step in best_steps), states, meta)
            self._saved_best = best_steps
        self.folder.checkpoints.save(self.step, self.state, meta)
        self._saved_step, self._last_save = self.step, time.monotonic()

    def _restore(self, folder: RunFolder) -> bool:
        one, every = self._templates()
        restored = folder.checkpoints.restore(every)
        if restored is None:
            return False
        self._note(restored.note)
        self.step = self._saved_step = restored.step
        self.state = restored.state
        best_states = None
        if any(restored.meta["best"]):
            stored = folder.checkpoints.restore_best([one] * len(self.best), at_most=restored.step)
            if stored is None or stored.meta["best"] != restored.meta["best"]:
                self._note(f"the best state before step {restored.step:,} is lost; the best one from there on is kept")
            else:
                self._note(stored.note)
                best_states = stored.state
        self._set_meta(restored.meta, best_states)
        self._saved_best = self._best_steps()
        return True

    def _share_restored(self) -> None:
        """What the first process restored, on all of them."""
        processes = self.trainer.processes
        one, every = self._templates()
        self.step, meta, notes = processes.share([self.step, self._meta(), self.notes])
        self.notes = notes
        self.state = self.trainer.place(processes.share_arrays(self.state, every))
        states = [self._state(k) if best is None else best.state for k, best in enumerate(self.best)]
        self._set_meta(meta, processes.share_arrays(states, [one] * len(states)))

    def _templates(self) -> tuple[PyTree, PyTree]:
        """Shapes of the state of one seed, and of all as they are trained."""
        one = state_shape(self.trainer.estimator, self.trainer.spec)
        if not self.trainer.stacked:
            return one, one
        count = len(self.trainer.seeds)
        return one, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), one)

    def _meta(self) -> dict[str, Any]:
        return {
            "best": [best and {"step": best.step, "score": best.score} for best in self.best],
            "lost": [lost and lost._asdict() for lost in self.lost],
            "first_loss": self.first_loss,
            "nonfinite": self._nonfinite.tolist(),
            "seconds": self._seconds(),
        }

    def _set_meta(self, meta: dict[str, Any], best_states: list[PyTree] | None) -> None:
        self.lost = [lost and Status(**lost) for lost in meta["lost"]]
        self.first_loss, self._seconds_before = meta["first_loss"], meta["seconds"]
        self._nonfinite = np.asarray(meta["nonfinite"])
        if best_states is not None:
            self.best = [best and Best(s, **best) for s, best in zip(best_states, meta["best"], strict=True)]

    def _best_steps(self) -> list[int | None]:
        return [best and best.step for best in self.best]

    def _fits(self, log: Log, status: Status) -> list[Fit]:
        fits = []
        for k, seed in enumerate(self.trainer.seeds):
            ended, state = self.lost[k] or status, self._state(k)
            rows = tuple(row for row in log.rows if row["seed"] == seed)
            steps = self._good_step(k)
            best = self.best[k] or Best(state, steps, None)
            notes = tuple(self.notes)
            fits.append(Fit(self.trainer.estimator, state, self.trainer.spec, steps, seed, ended, best, rows, notes))
        return fits

    def _good_step(self, k: int) -> int:
        lost = self.lost[k]
        return self.step if lost is None else (lost.step - 1) // self.schedule.chunk * self.schedule.chunk

    def _interrupted(self) -> Status:
        how = f"continue with out={str(self.folder.path)!r}, resume=True" if self.folder else "its state is in `.fit`"
        message = f"interrupted after step {self.step:,} of {self.schedule.steps:,}; {how}"
        return Status("interrupted", self.step, message)

    def _state(self, k: int) -> PyTree:
        return self.trainer.state_of(self.state, k)

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._begun

    def _note(self, sentence: str | None) -> None:
        if sentence is not None:
            self.notes.append(sentence)
            warnings.warn(sentence, stacklevel=7)  # the caller of fit


@contextlib.contextmanager
def _interruptible(progress: Progress) -> Iterator[threading.Event]:
    """While open, the first Ctrl-C only sets the event; the second one does what it did before."""
    asked = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield asked
        return

    def on_interrupt(signum: int, frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, previous)
        progress.say("stopping after these steps; Ctrl-C again to stop at once")

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, previous)


def _numbers(result: Any, score: str) -> dict[str, float]:
    if not isinstance(result, Mapping) or score not in result:
        names = ", ".join(map(str, result)) if isinstance(result, Mapping) else repr(result)
        raise InvalidInput(
            f"evaluate must return a dict with {score!r}, got {names}; pass score= to name another entry"
        )
    if taken := [name for name in RESERVED if name in result]:
        raise InvalidInput(f"evaluate returned {taken[0]!r}, a name the log needs for itself; choose another one")
    try:
        return {str(name): float(value) for name, value in result.items()}
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"evaluate must return numbers by name, got {dict(result)!r}: {error}") from None
