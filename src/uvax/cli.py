"""The command line: `uvax COMMAND ...`. Only the chosen command is imported; `uvax --help` does not load jax."""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from uvax import __version__
from uvax.errors import UvaxError

COMMANDS = {
    "demo": "the whole story in minutes: collect, train three methods, evaluate, report",
    "collect": "make an offline dataset with the paper's online agent",
    "train": "train one method on a dataset",
    "evaluate": "score a trained run by task rejection, with curves and calibration",
    "inspect": "say what is in a dataset or run folder",
    "experiment": "reproduce a table or figure of the paper",
    "theory": "TD learning in the infinite-width limit: verify on networks, diagnose a dataset",
    "report": "turn result rows into one HTML page",
}

_USAGE = """usage: uvax COMMAND [options]      (uvax COMMAND --help says what a command takes)

Value-function uncertainty for reinforcement learning: UVU, its baselines, its theory and its benchmark.

commands:
{commands}

options:
  --version             print the version
  --no-compile-cache    compile everything anew (or set UVAX_COMPILE_CACHE=off; a path moves the cache)
  --traceback           show the whole traceback of an error
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors of ours are one sentence, everything else is a bug."""
    args = list(sys.argv[1:] if argv is None else argv)
    flags = {flag for flag in ("--no-compile-cache", "--traceback") if flag in args}
    args = [a for a in args if a not in flags]
    if not args or args[0] in ("-h", "--help", "help"):
        print(_USAGE.format(commands="\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items())), end="")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"uvax {__version__}")
        return 0
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return _fail(f"unknown command {command!r}: {hint}commands are {', '.join(COMMANDS)}")
    try:
        if command != "report" and not {"-h", "--help"} & set(rest):
            _compile_cache("--no-compile-cache" in flags)
        return importlib.import_module(f"uvax.commands.{command}").main(rest) or 0
    except UvaxError as error:
        if "--traceback" in flags:
            raise
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)
    except BrokenPipeError:  # `uvax ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _fail(sentence: str, code: int = 1) -> int:
    print(f"uvax: {sentence}", file=sys.stderr)
    return code


def _compile_cache(off: bool) -> None:
    """Keep compiled programs between runs. The command line's choice; importing uvax never does this."""
    where = os.environ.get("UVAX_COMPILE_CACHE", os.path.join("~", ".cache", "uvax", "compiled"))
    if off or where.lower() in ("", "off", "0", "no"):
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", os.path.expanduser(where))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


if __name__ == "__main__":
    sys.exit(main())
