"""Checkpoints that survive a killed process, a full disk and a damaged file.

A checkpoint is a folder: `arrays/` is written by orbax, `uvax.json` beside it holds the step, the caller's `meta`, the
path, dtype and shape of every leaf, and sha256 sums of the leaves' bytes and of every file. It is written under a
temporary name, flushed to the disk and renamed, so that it is there whole or not at all.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from uvax.errors import DamagedFile, InvalidInput, WriteFailed
from uvax.files import PathLike, json_text, make_folder, reason
from uvax.training.leaves import fill, to_host

FORMAT = 1
_LAST, _BEST, _TEMPORARY = "step", "best", ".tmp-"
_RECORD, _ARRAYS = "uvax.json", "arrays"


class Restored(NamedTuple):
    """A checkpoint that was read and verified."""

    step: int
    state: PyTree[Any]
    meta: dict[str, Any]
    note: str | None  # a sentence when a newer checkpoint was damaged and skipped


class Checkpoints:
    """The last `keep` checkpoints of a run, and its best ones, in one folder.

    `save` returns when the checkpoint is on the disk. Reading verifies every byte; a damaged checkpoint counts as
    absent, the one before it is used and `Restored.note` says so. State leaves are arrays; typed PRNG keys are stored
    as their key data. Whether a checkpoint belongs to the caller's configuration is for the caller to see in `meta`.

        checkpoints = Checkpoints("runs/a/checkpoints")
        checkpoints.save(1_000, state, {"config": config})
        restored = checkpoints.restore(template=state)
    """

    def __init__(self, folder: PathLike, *, keep: int = 2):
        if keep < 1:
            raise InvalidInput(f"keep is {keep}; expected at least 1 checkpoint")
        self.folder = Path(os.path.abspath(folder))
        self.keep = keep
        self._tidy = False

    def save(self, step: int, state: PyTree, meta: Mapping[str, Any]) -> None:
        """Store the state after `step` steps; the newest `keep` are kept, and none of a later step.

        Raises `WriteFailed` when the disk is full; earlier checkpoints are then as they were.
        """
        self._save(_LAST, step, state, meta, keep=self.keep)

    def save_best(self, step: int, state: PyTree, meta: Mapping[str, Any]) -> None:
        """Store the best state so far. One more than `keep` is kept: an earlier checkpoint knows an earlier best."""
        self._save(_BEST, step, state, meta, keep=self.keep + 1)

    def restore(self, template: PyTree) -> Restored | None:
        """The newest checkpoint that verifies, or None when there is none.

        `template` is a state of the same structure, shapes and dtypes (`jax.eval_shape` gives one for free). Raises
        `InvalidInput` when the checkpoint holds another structure, `DamagedFile` when all checkpoints are damaged.
        """
        return self._restore(_LAST, template, None)

    def restore_best(self, template: PyTree, *, at_most: int | None = None) -> Restored | None:
        """Like `restore`, for the best checkpoint, or for the best one known at step `at_most`."""
        return self._restore(_BEST, template, at_most)

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, damaged ones included, in order."""
        return self._steps(_LAST)

    def _save(self, kind: str, step: int, state: PyTree, meta: Mapping[str, Any], *, keep: int) -> None:
        if step < 0:
            raise InvalidInput(f"step is {step}; expected at least 0")
        arrays = to_host(state)
        record = {
            "format": FORMAT,
            "step": int(step),
            "meta": json.loads(json_text(dict(meta), "the meta of a checkpoint")),
            "leaves": _describe(arrays),
            "content": _content(arrays),
        }
        make_folder(self.folder)
        if not self._tidy:  # of a killed process; a reader removes nothing
            _remove(*self.folder.glob(_TEMPORARY + "*"))
            self._tidy = True
        temporary = self.folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            temporary.mkdir()
            _write_arrays(temporary / _ARRAYS, arrays)
            record["files"] = _files(temporary)
            record["seal"] = _seal(record)
            (temporary / _RECORD).write_text(json.dumps(record))
            _flush(temporary)
            self._put(temporary, self._path(kind, step))
        except BaseException as error:  # Ctrl-C leaves no rubbish either
            _remove(temporary)
            if not isinstance(error, Exception):
                raise
            raise WriteFailed(
                f"the checkpoint of step {step} could not be written to {self.folder}: {_why(error)};"
                f" {_kept(self.steps())}"
            ) from error
        kept = [s for s in self._steps(kind) if s <= step][-keep:]
        self._discard(*(self._path(kind, s) for s in self._steps(kind) if s not in kept))

    def _put(self, temporary: Path, target: Path) -> None:
        self._discard(target)  # the same step again, after a fall-back to an earlier one
        os.rename(temporary, target)
        _flush_folder(self.folder)

    def _discard(self, *folders: Path) -> None:
        # Renamed first, so that a kill while removing leaves no half of a checkpoint under its name.
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                rubbish = self.folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
                os.rename(folder, rubbish)
                _remove(rubbish)

    def _restore(self, kind: str, template: PyTree, at_most: int | None) -> Restored | None:
        steps = [s for s in self._steps(kind) if at_most is None or s <= at_most]
        damage: list[str] = []
        for step in reversed(steps):
            try:
                record, arrays = _read(self._path(kind, step), step)
            except DamagedFile as error:
                damage.append(f"the checkpoint of step {step} in {self.folder} is damaged ({error})")
                continue
            note = "; ".join([*damage, f"the one of step {step} is used instead"]) if damage else None
            return Restored(step, self._fill(template, arrays, step), record["meta"], note)
        if damage:
            raise DamagedFile("; ".join([*damage, "there is no other: start again in a new folder"]))
        return None

    def _fill(self, template: PyTree, arrays: Mapping[str, np.ndarray], step: int) -> PyTree:
        what = f"the checkpoint of step {step} in {self.folder} is of another configuration"
        return fill(template, arrays, what, "resume with the settings it was made with, or choose another folder")

    def _path(self, kind: str, step: int) -> Path:
        return self.folder / f"{kind}-{step:010d}"

    def _steps(self, kind: str) -> list[int]:
        names = (path.name.removeprefix(f"{kind}-") for path in self.folder.glob(f"{kind}-*"))
        return sorted(int(name) for name in names if name.isdecimal())


def _describe(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    return {path: [array.dtype.name, list(array.shape)] for path, array in arrays.items()}


def _content(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(_describe(arrays), sort_keys=True).encode())
    for path in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[path]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, str]:
    """sha256 of every file in a checkpoint but its record."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != _RECORD)
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def _seal(record: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in record.items() if k != "seal"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(folder: Path, step: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The record and the leaves of a checkpoint; `DamagedFile` unless every byte is as it was written."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        sealed = record["seal"] == _seal(record) and record["step"] == step
    except (OSError, ValueError, KeyError, TypeError):
        raise DamagedFile(f"{_RECORD} is missing or cannot be read") from None
    if not sealed:
        raise DamagedFile(f"{_RECORD} does not match its checksum")
    if record["format"] != FORMAT:
        raise InvalidInput(
            f"{folder} has checkpoint format {record['format']} and this uvax reads {FORMAT};"
            " resume with the uvax that wrote it"
        )
    found = _files(folder)
    for name in sorted(record["files"].keys() | found.keys()):
        if name not in found:
            raise DamagedFile(f"{name} is missing")
        if record["files"].get(name) != found[name]:
            raise DamagedFile(f"{name} does not match its checksum")
    try:
        arrays = _read_arrays(folder / _ARRAYS, record["leaves"])
    except Exception as error:  # orbax and tensorstore raise many kinds
        raise DamagedFile(f"orbax cannot read it: {_first_line(error)}") from error
    if _content(arrays) != record["content"]:
        raise DamagedFile("its arrays do not match their checksum")
    return record, arrays


def _write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    tree = {name: arrays[path] for name, path in _names(arrays).items()}
    if tree:  # orbax refuses to store nothing
        with _orbax() as (ocp, checkpointer):
            checkpointer.save(folder, args=ocp.args.PyTreeSave(tree))


def _read_arrays(folder: Path, leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
    dtypes = {path: jnp.dtype(dtype) for path, (dtype, _) in leaves.items()}
    empty = {path: np.zeros(shape, dtypes[path]) for path, (_, shape) in leaves.items()}
    names = _names(empty)
    if not names:
        return empty
    with _orbax() as (ocp, checkpointer):
        # Told to expect NumPy, orbax has no say in where the arrays go.
        expected = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        stored = checkpointer.restore(folder, args=ocp.args.PyTreeRestore(restore_args=expected))
    return empty | {path: np.asarray(stored[name]) for name, path in names.items()}


def _names(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Names for orbax: flat, so that no container of the state has to be known to it; it stores no empty arrays."""
    return {f"{i:05d}": path for i, path in enumerate(sorted(arrays)) if arrays[path].size}


@contextlib.contextmanager
def _orbax() -> Iterator[tuple[Any, Any]]:
    """orbax, imported when first needed (a second), without what it says on the way."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import orbax.checkpoint as ocp

            # Of several processes only one stores anything; orbax must not wait for the others.
            here = jax.process_index()
            alone = ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})
            handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
            with contextlib.closing(ocp.Checkpointer(handler, multiprocessing_options=alone)) as checkpointer:
                yield ocp, checkpointer
    finally:
        logger.setLevel(level)


def _flush(folder: Path) -> None:
    """Everything below `folder` onto the disk, files before the folders that name them."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _flush_folder(Path(root))


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every filesystem syncs folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return reason(error)
    text = str(error)
    for number, sign in ((28, "No space left"), (122, "quota exceeded"), (27, "File too large")):
        if sign.lower() in text.lower():
            return reason(OSError(number, sign))
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _kept(steps: list[int]) -> str:
    if not steps:
        return "there was none before it"
    return f"the earlier ones (newest: step {steps[-1]}) are unchanged"
