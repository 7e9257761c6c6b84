"""Files that are whole or not there: one checked container for datasets and trained models, JSON, and JSON
lines.

A container is one ordinary safetensors file; any safetensors reader opens it. Its `__metadata__` says what
it is (`kind`, `schema`), who wrote it (`uvax`), and carries a free JSON `header` and two checksums:
`content` over the names, dtypes, shapes and bytes of the arrays, and `seal` over the metadata itself.
Nothing is ever unpickled.

Files are written beside their destination, flushed to the disk and renamed, so that a reader sees the old
file or the new one. When writing fails, the old file is whole and nothing is left beside it (a process
killed outright may leave a `.uvax-*.tmp`, which is safe to remove).
"""

import contextlib
import errno
import hashlib
import json
import mmap as mmap_module
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

import uvax
from uvax.errors import DamagedFile, InvalidInput, WriteFailed

SCHEMA = 1

_DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SIGNATURES = (
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file; Minari datasets are read by uvax.from_minari"),
    (b"PK\x03\x04", "a zip archive (a NumPy .npz, or a PyTorch checkpoint)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x93NUMPY", "a NumPy .npy file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file; Minari datasets are read by uvax.from_minari"),
    *(
        (b"\x80" + bytes([protocol]), "a Python pickle, which can run code when read")
        for protocol in range(2, 6)
    ),
)


def write(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write `arrays` and a JSON `header` to one file, whole or not at all.

    Missing parent folders are made. An existing file is replaced only with `overwrite=True`, and only once
    the new one is complete on disk. Cost: one pass for the checksum and one for writing; no copy of
    contiguous arrays.

        storage.write("model.uvax", "fit", {"w": w}, {"step": 20_000})
        arrays, header = storage.read("model.uvax", "fit")
    """
    # Large items first and a padded JSON part keep every array aligned, so that reading needs no copy.
    stored = sorted(
        ((n, _storable(n, a)) for n, a in arrays.items()), key=lambda na: (-na[1].itemsize, na[0])
    )
    table, offset = {}, 0
    for name, array in stored:
        table[name] = {
            "dtype": _DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    metadata = {
        "kind": kind,
        "schema": str(SCHEMA),
        "uvax": uvax.__version__,
        "header": _json(header, f"the header of a {kind}"),
        "content": checksum(dict(stored)),
    }
    metadata["seal"] = _seal(metadata)
    text = json.dumps({"__metadata__": metadata} | table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64 - 8 + 64)

    def fill(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in stored:
            file.write(_bytes(array))

    _write_atomic(Path(path), fill, overwrite=overwrite)


def read(
    path: str | os.PathLike[str], kind: str, *, verify: bool = True, mmap: bool = True
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the header of a file that `write` made; the arrays cannot be written to.

    With `mmap` they are views on the file, read from disk when touched. `verify` compares every byte with the
    checksum (about a second per gigabyte); without it only the structure and the header are checked.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise DamagedFile(f"{path} is empty: it is not a uvax {kind}; make or copy it again")
            buffer: Any = (
                mmap_module.mmap(file.fileno(), 0, access=mmap_module.ACCESS_READ) if mmap else file.read()
            )
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}; a uvax {kind} was expected there") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder; a uvax {kind} is one file: give its path") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {_reason(error)}") from error

    table, metadata, start = _parse(buffer, path, kind)
    if metadata.get("kind") != kind:
        raise DamagedFile(f"{path} holds a uvax {metadata.get('kind')}, not a {kind}")
    if metadata.get("schema") != str(SCHEMA):
        raise DamagedFile(
            f"{path} has schema version {metadata.get('schema')!r} and this uvax ({uvax.__version__}) reads"
            f" version {SCHEMA}; it was written by uvax {metadata.get('uvax')}: read it with that version"
        )
    if metadata.get("seal") != _seal(metadata):
        raise DamagedFile(f"{path} is damaged: its header does not match its checksum; make or copy it again")
    try:
        arrays = {
            name: np.frombuffer(
                buffer, dtype, count=int(np.prod(shape, dtype=np.int64)), offset=start + at
            ).reshape(shape)
            for name, dtype, shape, at in table
        }
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged: {error}; make or copy it again") from error
    if verify and checksum(arrays) != metadata["content"]:
        raise DamagedFile(f"{path} is damaged: its arrays do not match their checksum; make or copy it again")
    return arrays, json.loads(metadata["header"])


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = _storable(name, arrays[name])
        digest.update(json.dumps([name, _DTYPE_NAMES[array.dtype], list(array.shape)]).encode())
        digest.update(_bytes(array))
    return digest.hexdigest()


def write_json_atomic(path: str | os.PathLike[str], value: Any, *, overwrite: bool = True) -> None:
    """Write `value` as indented JSON, whole or not at all. NaN and infinity are not JSON and are refused."""
    path = Path(path)
    text = _json(value, str(path), indent=2) + "\n"
    _write_atomic(path, lambda file: file.write(text.encode()), overwrite=overwrite)


def _write_atomic(path: Path, fill: Callable[[BinaryIO], Any], *, overwrite: bool) -> None:
    target = Path(os.path.realpath(path))  # a link stays a link, to the new file
    if target.is_dir():
        raise InvalidInput(f"{path} is a folder; give the path of a file in it")
    if target.exists() and not overwrite:
        raise InvalidInput(f"{path} exists and is left as it is; pass overwrite=True to replace it")
    temporary = target.parent / f".uvax-{secrets.token_hex(8)}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _removed_on_error(temporary):
            with open(temporary, "xb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            _move(temporary, target, overwrite=overwrite)
        _fsync_folder(target.parent)
    except FileExistsError:
        raise InvalidInput(f"{path} exists and is left as it is; pass overwrite=True to replace it") from None
    except OSError as error:
        kept = "; the file that was there is unchanged" if target.exists() else ""
        raise WriteFailed(f"{path} could not be written: {_reason(error)}{kept}") from error


def _move(temporary: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)  # unlike a rename, refuses when another writer came first
    except FileExistsError:
        raise
    except OSError:  # no hard links on this filesystem
        if target.exists():
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


def _fsync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the data is safe already; not every filesystem syncs folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(error: OSError) -> str:
    reasons = {
        errno.ENOSPC: "the disk is full; free some space or choose another disk",
        errno.EDQUOT: "the disk quota is used up; free some space or choose another disk",
        errno.EFBIG: "the file would be larger than this system allows",
        errno.EACCES: "no permission; choose a folder of yours or change its permissions",
        errno.EPERM: "no permission; choose a folder of yours or change its permissions",
        errno.EROFS: "the filesystem is read-only; choose another folder",
        errno.ENOTDIR: "a part of its path is a file, not a folder",
        errno.EEXIST: "a part of its path is a file, not a folder",
    }
    return reasons.get(error.errno or 0, (error.strerror or str(error)).lower())


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype not in _DTYPE_NAMES:
        raise InvalidInput(
            f"array {name!r} has dtype {array.dtype}, which safetensors cannot hold;"
            f" convert it to one of {', '.join(sorted(str(d) for d in _DTYPE_NAMES))}"
        )
    if name == "__metadata__":
        raise InvalidInput("an array cannot be named '__metadata__': safetensors keeps that name for itself")
    return np.asarray(array, order="C")


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _json(value: Any, what: str, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, sort_keys=indent is None, indent=indent)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{what} must be plain JSON (text, finite numbers, lists, dicts): {error}"
        ) from None


def _seal(metadata: Mapping[str, str]) -> str:
    return hashlib.sha256(
        json.dumps({k: v for k, v in metadata.items() if k != "seal"}, sort_keys=True).encode()
    ).hexdigest()


def _parse(
    buffer: Any, path: Path, kind: str
) -> tuple[list[tuple[str, np.dtype, tuple[int, ...], int]], dict[str, str], int]:
    """The array table (name, dtype, shape, offset), the metadata, and where the bytes start."""
    size = len(buffer)
    start = 8 + int.from_bytes(buffer[:8], "little")
    if (
        bytes(buffer[8:9]) != b"{"
    ):  # first, since the length of a header may look like a pickle's first two bytes
        for signature, name in _SIGNATURES:
            if bytes(buffer[: len(signature)]) == signature:
                raise DamagedFile(f"{path} is {name}; uvax reads the safetensors file that save() makes")
        raise DamagedFile(
            f"{path} is not a uvax {kind}, or is cut off: it does not start like a safetensors file"
        )
    if start > size:
        raise DamagedFile(f"{path} is damaged: it ends within its header; make or copy it again")
    try:
        table = json.loads(bytes(buffer[8:start]))
        metadata = table.pop("__metadata__", {})
        if not all(isinstance(v, str) for v in metadata.values()):
            raise ValueError("metadata that is not text")
        entries, end = [], 0
        for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (first, last) = (
                _DTYPES[entry["dtype"]],
                tuple(entry["shape"]),
                entry["data_offsets"],
            )
            if any(type(n) is not int or n < 0 for n in (*shape, first, last)) or first != end:
                raise ValueError(f"array {name!r} is out of place")
            end = last
            entries.append((name, dtype, shape, first))
            count = 1
            for n in shape:
                count *= n
            if last - first != count * dtype.itemsize:
                raise ValueError(f"array {name!r} has the wrong size")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            f"{path} is damaged: its header cannot be read ({error}); make or copy it again"
        ) from None
    if start + end != size:
        raise DamagedFile(
            f"{path} is damaged: it has {size} bytes and its header says {start + end}; it was cut off or"
            " added to: make or copy it again"
        )
    if (
        "kind" not in metadata
        or "schema" not in metadata
        or "seal" not in metadata
        or "content" not in metadata
    ):
        raise DamagedFile(
            f"{path} is a safetensors file, but uvax did not write it: a uvax {kind} was expected"
        )
    return entries, metadata, start
