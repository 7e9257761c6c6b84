"""What every operation of a training step takes on a CPU, by probes where XLA's executor starts one.

    python benchmarks/operations.py                      # UVU at the cpu preset, one thread
    python benchmarks/operations.py --method dqn --scale paper --each

jax's profiler says of some products five times what they take, and of short operations mostly what writing the trace
takes. A probe in the kernel (uprobe) costs one to two microseconds for each operation, which is subtracted.
Needs Linux, root for /sys/kernel/tracing, and nm and readelf (binutils).
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import jaxlib

import steps

TRACING = Path("/sys/kernel/tracing")
SCALES = {
    "cpu": {"width": 128, "heads": 64, "batch_size": 256},
    "paper": {"width": 512, "heads": 512, "batch_size": 512},
}
STEPS = 40  # of a call
PROBED = 4  # calls
EVENT = re.compile(r" (\d+\.\d+): (\w+): \(\S+\) name=\"(.*)\"")
GROUP = "uvax_operations"
EXECUTE = re.compile(
    r"^([0-9a-f]+) t xla::cpu::(\w+Thunk(?:<[^>]*>)?)::Execute\(xla::cpu::Thunk::ExecuteParams const&\)$"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--method", choices=steps.METHODS, default="uvu")
    parser.add_argument("--members", type=int, default=3, help="of bdqnp")
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    parser.add_argument("--each", action="store_true", help="every operation, not sums of those of one kind")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(**json.loads(args.train))
    settings = {"method": args.method, **SCALES[args.scale]}
    if args.method in ("dqn", "bdqnp"):
        settings.pop("heads")
    if args.method == "bdqnp":
        settings["members"] = args.members
    with probes():
        command = [sys.executable, __file__, "--train", json.dumps(settings)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=steps.environment(1)
        ) as program:
            clean = min(turn(program) for _ in range(8))
            write("tracing_on", "1")
            probed = min(turn(program) for _ in range(PROBED))
            write("tracing_on", "0")
            program.communicate()
        events = [(float(at), thunk, name) for at, thunk, name in EVENT.findall((TRACING / "trace").read_text())]
    show(events, clean * 1e6, probed * 1e6, each=args.each)


def train(**settings: object) -> None:
    """In a process of its own: a call of steps for every line of input, and its seconds per step as one of output."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    run, state = steps.training(str(settings.pop("method")), STEPS, **settings)
    state, _ = run(state, 0)
    for i, _ in enumerate(sys.stdin, start=1):
        start = perf_counter()
        state, _ = run(state, i)
        print((perf_counter() - start) / STEPS, flush=True)


def turn(program: "subprocess.Popen[str]") -> float:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    answer = program.stdout.readline()
    if not answer:
        sys.exit("operations.py: the training ended early; what it said is above")
    return float(answer)


@contextmanager
def probes() -> Iterator[None]:
    """One where every kind of operation is executed, with the operation's name; gone afterwards."""
    if not os.access(TRACING / "uprobe_events", os.W_OK):
        sys.exit(f"operations.py: cannot write {TRACING}/uprobe_events; this needs root, and tracefs mounted there")
    library = Path(jaxlib.__file__).parent / "libjax_common.so"
    buffer = (TRACING / "buffer_size_kb").read_text().split()[0]
    remove()
    try:
        for thunk, offset in places(library).items():
            # The first argument is where the result goes; of the second, the operation, the name is the second field.
            write("uprobe_events", f"p:{GROUP}/{thunk} {library}:{offset:#x} name=+0(+16(%si)):string", append=True)
        write("buffer_size_kb", "200000")
        write("tracing_on", "0")
        write("trace", "")
        write(f"events/{GROUP}/enable", "1")
        yield
    finally:
        write("tracing_on", "0")
        remove()
        write("trace", "")
        write("buffer_size_kb", buffer)


def places(library: Path) -> dict[str, int]:
    """Where in the file every kind of operation is executed."""
    try:
        symbols, headers = (
            subprocess.run([*command, str(library)], capture_output=True, text=True, check=True).stdout
            for command in (["nm", "-C"], ["readelf", "-lW"])
        )
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"operations.py: the symbols of {library.name} could not be read: {error}")
    found = [match.groups() for match in map(EXECUTE.match, symbols.splitlines()) if match]
    # Of the segment with the code: where it is in the file and where in memory.
    code = re.search(r"LOAD +(0x[0-9a-f]+) (0x[0-9a-f]+) .* R E ", headers)
    if code is None or not found:
        sys.exit(f"operations.py: {library.name} has no operations by the names that they have in jaxlib 0.10")
    shift = int(code[1], 16) - int(code[2], 16)
    return {re.sub(r"\W+", "_", thunk).strip("_"): int(address, 16) + shift for address, thunk in found}


def remove() -> None:
    """The probes, also those of a run that was killed."""
    group = TRACING / "events" / GROUP
    if group.exists():
        write(f"events/{GROUP}/enable", "0")
        for event in [path.name for path in group.iterdir() if path.is_dir()]:
            write("uprobe_events", f"-:{GROUP}/{event}", append=True)


def write(file: str, text: str, *, append: bool = False) -> None:
    # In one call: the kernel takes each for a whole command.
    handle = os.open(TRACING / file, os.O_WRONLY | (os.O_APPEND if append else os.O_TRUNC))
    try:
        os.write(handle, f"{text}\n".encode())
    finally:
        os.close(handle)


def show(events: list[tuple[float, str, str]], clean: float, probed: float, *, each: bool) -> None:
    found: dict[tuple[str, str], list[float]] = {}
    for (at, thunk, name), (following, _, _) in pairwise(events):
        found.setdefault((thunk, name), []).append((following - at) * 1e6)
    calls = PROBED * STEPS
    # Those in the loop over steps; the middle half of the times, for an operation may be interrupted.
    times = {
        operation: (len(took) / calls, statistics.fmean(sorted(took)[len(took) // 4 : -(len(took) // 4)]))
        for operation, took in found.items()
        if len(took) > 0.05 * calls
    }
    # Of an operation on one number: its probe, and starting it.
    start = min(time for _, time in times.values())
    sums: dict[str, list[float]] = {}
    for (thunk, name), (number, took) in times.items():
        kind = name if each else re.sub(r"[.\d]+$|(?<=_fusion).*", "", name)
        if thunk in ("YnnFusionThunk", "DotThunk") and not each:
            kind = "products (and sums over rows as products)"
        total = sums.setdefault(kind, [0.0, 0.0])
        total[0] += number * (took - start)
        total[1] += number
    whole = sum(total for total, _ in sums.values())
    print(f"{clean:.0f} us a step, {probed:.0f} with probes; {start:.1f} for each probe and start are left out\n")
    print("us a step  share  number  operation")
    for kind, (total, number) in sorted(sums.items(), key=lambda item: -item[1][0]):
        print(f"{total:9.1f}  {total / whole:5.1%}  {number:6.1f}  {kind}")


if __name__ == "__main__":
    main()
