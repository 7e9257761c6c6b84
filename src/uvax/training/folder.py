"""The folder of a run: its configuration, its log, its checkpoints and the models it ends with."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uvax.errors import DamagedFile, InvalidInput
from uvax.files import PathLike, make_folder, write_json_atomic
from uvax.training.checkpoints import Checkpoints
from uvax.training.fitted import Fit, first_difference

try:
    import fcntl
except ImportError:  # Windows: one writer at a time is the user's business there
    fcntl = None  # type: ignore[assignment]

CONFIG, LOG, CHECKPOINTS, TENSORBOARD = "config.json", "log.jsonl", "checkpoints", "tensorboard"
MODEL, BEST = "model.safetensors", "best.safetensors"


class RunFolder:
    """`config.json`, `log.jsonl`, `checkpoints/`, and at the end `model.safetensors` and `best.safetensors`.

    With several seeds the models are in `seed-<seed>/`. One process at a time may train in a folder.
    """

    def __init__(self, path: PathLike, config: Mapping[str, Any], *, resume: bool, overwrite: bool):
        self.path = Path(path)
        self._check(config, resume=resume, overwrite=overwrite)  # before anything is touched
        make_folder(self.path)
        self._lock = _lock(self.path)
        try:
            self._check(config, resume=resume, overwrite=overwrite)
            if overwrite and not resume:
                self._clear()
            if not (self.path / CONFIG).exists():
                write_json_atomic(self.path / CONFIG, dict(config))
        except BaseException:
            self.close()
            raise
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS)
        self.log = self.path / LOG
        self.tensorboard = self.path / TENSORBOARD

    def save_models(self, fits: list[Fit]) -> None:
        """The last and the best state of every seed."""
        for fit in fits:
            folder = self.path if len(fits) == 1 else self.path / f"seed-{fit.seed}"
            fit.save(folder / MODEL, overwrite=True)
            fit.at_best().save(folder / BEST, overwrite=True)

    def close(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()

    def _check(self, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise InvalidInput(f"out is {str(self.path)!r}, which is a file; expected a folder for the run")
        if not any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            return
        if not (self.path / CONFIG).exists():
            raise InvalidInput(
                f"the folder {self.path} is not empty and holds no run of uvax (no {CONFIG}); choose another one"
            )
        if not (resume or overwrite):
            raise InvalidInput(
                f"the folder {self.path} holds a run already; pass resume=True to continue or load it,"
                " overwrite=True to replace it, or choose another folder"
            )
        if resume:
            then, now = _compared(_read_config(self.path / CONFIG)), _compared(config)
            if difference := first_difference(then, now):
                raise InvalidInput(
                    f"the run in {self.path} cannot be resumed with other settings: {difference};"
                    " use the settings it began with, overwrite=True, or another folder"
                )

    def _clear(self) -> None:
        """Remove the run that was here and nothing else; its configuration last, so that it stays a run until then."""
        for name in (CHECKPOINTS, TENSORBOARD):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for folder in (self.path, *self.path.glob("seed-*")):
            for name in (MODEL, BEST, LOG, CONFIG):
                (folder / name).unlink(missing_ok=True)


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a resumed run must have in common with the one it continues."""
    plain = {name: value for name, value in config.items() if name != "versions"}
    dataset = {name: value for name, value in plain.get("dataset", {}).items() if name != "header"}
    return plain | {"dataset": dataset}


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be read ({error}); start again with overwrite=True") from None
    return config


def _lock(folder: Path) -> Any:
    if fcntl is None:
        return None
    try:
        file = open(folder / ".lock", "ab")  # noqa: SIM115  # open as long as the run
    except OSError:  # a folder that cannot be written to: the first real file says so better
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InvalidInput(f"another process is training in {folder}; wait for it, or choose another folder") from None
    except OSError:  # a filesystem without locks
        pass
    return file
