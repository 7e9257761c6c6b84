"""Trials that only count, for testing what runs trials; a kind of one's own is "module:function"."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from uvax.errors import InvalidInput

KIND = "sleepy_trials:perform"


def perform(config: dict[str, Any], seed: int, *, data: Path | None, work: Path, progress) -> dict[str, Any]:
    """Count to `steps`, on disk; an attempt goes on where the one before was killed."""
    work.mkdir(parents=True, exist_ok=True)
    counter, attempts = work / "counter", work / "attempts"
    attempt = int(attempts.read_text()) + 1 if attempts.exists() else 1
    attempts.write_text(str(attempt))
    (work / "pid").write_text(str(os.getpid()))
    begin = int(counter.read_text()) if counter.exists() else 0
    if config.get("refuse"):
        raise InvalidInput("this trial cannot be")
    for i in range(begin, config["steps"]):
        if i == config.get("die_at") and (attempt == 1 or config.get("die_always")):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(config.get("sleep", 0.0))
        (work / "counter.new").write_text(str(i + 1))
        os.replace(work / "counter.new", counter)
        progress((i + 1) / config["steps"], f"step {i + 1}")
    return {"status": "finished", "begin": begin, "attempt": attempt, "pid": os.getpid(), "threads": _threads()}


def _threads() -> str | None:
    return os.environ.get("NPROC")
