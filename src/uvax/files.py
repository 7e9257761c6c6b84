"""Files that are whole or not there: atomic writing, JSON, and JSON lines that many processes may append to."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from uvax.errors import InvalidInput, WriteFailed

try:
    import fcntl
except ImportError:  # Windows: one writer at a time is the user's business there
    fcntl = None  # type: ignore[assignment]

PathLike = str | os.PathLike[str]


def write_atomic(path: PathLike, fill: Callable[[BinaryIO], Any], *, overwrite: bool = False) -> None:
    """Write what `fill(file)` writes, whole or not at all.

    The file is written beside its destination, flushed to the disk and renamed, so that a reader sees the old
    file or the new one. When writing fails, the old file is whole and nothing is left beside it (a process
    killed outright may leave a `.uvax-*.tmp`, which is safe to remove). Missing parent folders are made.
    """
    target = Path(os.path.realpath(path))  # a link stays a link, to the new file
    if os.path.isdir(target):
        raise InvalidInput(f"{path} is a folder; give the path of a file in it")
    occupied = InvalidInput(f"{path} exists and is left as it is; pass overwrite=True to replace it")
    if not overwrite and os.path.exists(target):
        raise occupied
    temporary = target.parent / f".uvax-{secrets.token_hex(8)}.tmp"
    try:
        make_folder(target.parent)
        with _removed_on_error(temporary):
            with open(temporary, "xb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            _move(temporary, target, overwrite=overwrite)
        _fsync_folder(target.parent)
    except FileExistsError:
        raise occupied from None
    except WriteFailed:
        raise
    except OSError as error:
        kept = "; the file that was there is unchanged" if os.path.exists(target) else ""
        raise WriteFailed(f"{path} could not be written: {reason(error)}{kept}") from error


def write_json_atomic(path: PathLike, value: Any, *, overwrite: bool = True) -> None:
    """Write `value` as indented JSON, whole or not at all. NaN and infinity are not JSON and are refused."""
    text = json_text(value, f"the content of {path}", indent=2) + "\n"
    write_atomic(path, lambda file: file.write(text.encode()), overwrite=overwrite)


def append_jsonl(path: PathLike, row: Any) -> None:
    """Append `row` as one line of JSON and flush it to the disk; many processes may do so at once.

    A line that a killed writer left unfinished is closed first, so that it spoils no row but its own. When
    writing fails, the file is as it was.
    """
    line = json_text(row, f"a row of {path}").encode() + b"\n"
    make_folder(Path(path).parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            with _locked(descriptor, exclusive=True):
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                try:
                    _write_all(descriptor, line)
                    os.fsync(descriptor)
                except BaseException:
                    os.ftruncate(descriptor, size)
                    raise
        finally:
            os.close(descriptor)
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder; give the path of a file in it") from None
    except OSError as error:
        raise WriteFailed(f"{path} could not be added to: {reason(error)}; its rows are unchanged") from error


class Line(NamedTuple):
    """A row and where it stands, counted from one."""

    number: int
    row: dict[str, Any]


def read_jsonl(path: PathLike) -> tuple[list[Line], list[str]]:
    """The rows of a file of JSON objects, and a sentence for every line that is not one."""
    try:
        with open(path, "rb") as file, _locked(file.fileno(), exclusive=False):
            content = file.read()
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {reason(error)}") from error
    lines: list[Line] = []
    problems: list[str] = []
    pieces = content.split(b"\n")
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            continue
        try:
            row = json.loads(piece, parse_constant=_refuse_constant)
            if not isinstance(row, dict):
                raise ValueError("it is not a JSON object")
        except (ValueError, RecursionError) as error:
            unfinished = number == len(pieces)
            why = "the line is unfinished (was its writer killed?)" if unfinished else f"damaged ({error})"
            problems.append(f"{path}, line {number}: {why}")
        else:
            lines.append(Line(number, row))
    return lines, problems


def json_text(value: Any, what: str, *, indent: int | None = None) -> str:
    """JSON that every reader understands, or a sentence."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{what} must be plain JSON (text, finite numbers, lists, dicts): {error}"
        raise InvalidInput(message) from None


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents unless they exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteFailed(f"the folder {folder} could not be made: {reason(error)}") from error


def reason(error: OSError) -> str:
    """What went wrong and what helps, in words."""
    permission = "no permission; choose a folder of yours or change its permissions"
    not_folder = "a part of its path is a file, not a folder"
    words = {
        errno.ENOSPC: "the disk is full; free some space or choose another disk",
        errno.EDQUOT: "the disk quota is used up; free some space or choose another disk",
        errno.EFBIG: "the file would be larger than this system allows",
        errno.EROFS: "the filesystem is read-only; choose another folder",
        errno.EACCES: permission,
        errno.EPERM: permission,
        errno.ENOTDIR: not_folder,
        errno.EEXIST: not_folder,
    }
    return words.get(error.errno or 0, (error.strerror or str(error)).lower())


def _move(temporary: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)  # unlike a rename, refuses when another writer came first
    except FileExistsError:
        raise
    except OSError:  # no hard links on this filesystem
        if os.path.exists(target):
            raise FileExistsError(target) from None
        os.replace(temporary, target)
    else:
        os.unlink(temporary)


@contextlib.contextmanager
def _removed_on_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:  # Ctrl-C leaves no rubbish either
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked(descriptor: int, *, exclusive: bool) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _fsync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the data is safe already; not every filesystem syncs folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
