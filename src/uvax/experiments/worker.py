"""One job in one process: `python -m uvax.experiments.worker FOLDER`.

The folder holds `job.json`; `progress.json` is written as the job goes on. A finished trial's row is appended to the
store named in the job before the process ends. Exit codes: 0 done; 3 refused, for a reason that a second attempt would
not change, with the sentence in `error.json`; anything else is a crash, and another attempt goes on from the last
checkpoint.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from uvax.errors import UvaxError, WriteFailed
from uvax.experiments.jobs import Job, finish, perform
from uvax.experiments.rows import RowStore
from uvax.files import write_json_atomic

REFUSED = 3
_SECONDS_BETWEEN_REPORTS = 0.5
_SECONDS_BETWEEN_LOOKS = 2.0


def main(folder: str) -> int:
    described = json.loads((Path(folder) / "job.json").read_text())
    job = Job.from_json(described["job"])
    if job.nice:
        os.nice(job.nice)
    # A shell that starts the runner with & has it, and so its workers, ignore SIGINT; here it means: save and end.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_with_parent(described["parent"])
    try:
        row = perform(job, _reporter(Path(folder) / "progress.json"))
        if row is not None:
            RowStore(described["store"]).append(row)
    except WriteFailed as error:  # a full disk may be emptier next time
        print(error, file=sys.stderr)
        return 1
    except UvaxError as error:
        write_json_atomic(Path(folder) / "error.json", {"error": str(error)})
        return REFUSED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finish(job)
    return 0


def _reporter(path: Path):
    last = [0.0]

    def report(done: float, text: str) -> None:
        now = time.monotonic()
        if now - last[0] >= _SECONDS_BETWEEN_REPORTS or done >= 1.0:
            last[0] = now
            write_json_atomic(path, {"done": done, "text": text})

    return report


def _end_with_parent(parent: int) -> None:
    """Workers are sessions of their own; when the runner is killed outright, they stop as if by Ctrl-C."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
