"""The log of a run: one JSON object a line, and tensorboard beside it if wanted."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uvax.errors import InvalidInput, WriteFailed
from uvax.files import read_jsonl, reason, write_atomic

RESERVED = ("step", "seed", "kind", "seconds")
"""Names of a row that no metric may have."""


class Log:
    """Rows of `step`, `seed`, `kind` ("train" or "evaluation"), `seconds` since the start, and one entry per metric.

    Numbers that are not finite are null, since JSON has none. `seconds` is the only entry that differs between two
    runs of the same seed. Rows reach the system at once and the disk with `sync`, which a checkpoint calls first.
    """

    def __init__(self, path: Path | None, *, tensorboard: Path | None = None, keep_until: int = 0):
        """Continue the log at `path` after its rows of `keep_until` steps; those of later steps are removed."""
        self.rows: list[dict[str, Any]] = []
        self._path = path
        self._file: Any = None
        self._writer: Any = None
        if path is not None:
            if path.exists():
                self.rows = [row for _, row in read_jsonl(path)[0] if row.get("step", math.inf) <= keep_until]
            text = "".join(json.dumps(row) + "\n" for row in self.rows).encode()
            write_atomic(path, lambda file: file.write(text), overwrite=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # closed by close()
        if tensorboard is not None:
            self._writer = _summary_writer()(str(tensorboard), purge_step=keep_until + 1 if keep_until else None)

    def add(self, kind: str, step: int, seed: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Append a row."""
        numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        row = {"step": step, "seed": seed, "kind": kind, **numbers, "seconds": round(seconds, 3)}
        self.rows.append(row)
        if self._file is not None:
            self._guarded(lambda: self._file.write(json.dumps(row).encode() + b"\n"))
        if self._writer is not None:
            for name, value in numbers.items():
                if value is not None:
                    self._writer.add_scalar(f"{kind}/{name}/seed-{seed}", value, step)

    def sync(self) -> None:
        """Put the rows onto the disk."""
        if self._file is not None:
            self._guarded(lambda: os.fsync(self._file.fileno()))
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()

    def _guarded(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            raise WriteFailed(
                f"{self._path} could not be added to: {reason(error)}; continue from the last checkpoint with"
                " resume=True when there is space again"
            ) from error


def check_tensorboard() -> None:
    """A sentence if tensorboard was asked for and cannot be written."""
    _summary_writer()


def _summary_writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InvalidInput(
            "tensorboard=True needs the package tensorboardX, which is not installed: pip install 'uvax[tensorboard]'"
        ) from None
    return SummaryWriter
