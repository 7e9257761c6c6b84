"""One checked container for datasets and trained models.

A container is one ordinary safetensors file; any safetensors reader opens it. Its `__metadata__` says what it
is (`kind`, `schema`), who wrote it (`uvax`), and carries a free JSON `header` and two checksums: `content`
over the names, dtypes, shapes and bytes of the arrays, and `seal` over the metadata itself. Nothing is ever
unpickled. Files are written whole or not at all (`uvax.files.write_atomic`).
"""

import hashlib
import json
import math
import mmap as mmap_module
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

import uvax
from uvax.errors import DamagedFile, InvalidInput
from uvax.files import PathLike, append_jsonl, json_text, read_jsonl, reason, write_atomic, write_json_atomic

__all__ = ["SCHEMA", "append_jsonl", "checksum", "read", "read_jsonl", "write", "write_atomic", "write_json_atomic"]

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
    *((bytes([0x80, protocol]), "a Python pickle, which could run code when read") for protocol in range(2, 6)),
)


def write(
    path: PathLike,
    kind: str,
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write `arrays` and a JSON `header` to one file, whole or not at all.

    Missing parent folders are made. An existing file is replaced only with `overwrite=True`, and only once the
    new one is complete on disk. Cost: one pass for the checksum, one for writing; contiguous arrays are not
    copied.

        storage.write("model.uvax", "fit", {"w": w}, {"step": 20_000})
        arrays, header = storage.read("model.uvax", "fit")
    """
    # Large items first and a padded JSON part keep every array aligned, so that reading needs no copy.
    stored = sorted(((n, _storable(n, a)) for n, a in arrays.items()), key=lambda na: (-na[1].itemsize, na[0]))
    metadata = {
        "kind": kind,
        "schema": str(SCHEMA),
        "uvax": uvax.__version__,
        "header": json_text(dict(header), f"the header of a {kind}"),
        "content": checksum(dict(stored)),
    }
    table: dict[str, Any] = {"__metadata__": metadata | {"seal": _seal(metadata)}}
    offset = 0
    for name, array in stored:
        end = offset + array.nbytes
        table[name] = {
            "dtype": _DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)

    def fill(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in stored:
            file.write(_bytes(array))

    write_atomic(path, fill, overwrite=overwrite)


def read(
    path: PathLike, kind: str, *, verify: bool = True, mmap: bool = True
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the header of a file that `write` made; the arrays cannot be written to.

    With `mmap` they are views on the file, read from disk when touched. `verify` compares every byte with the
    checksum (about a second per gigabyte); without it only the structure and the header are checked.
    """
    path = Path(path)
    buffer = _open(path, kind, mmap=mmap)
    table, metadata, start = _parse(buffer, path, kind)
    if missing := {"kind", "schema", "uvax", "header", "content", "seal"} - metadata.keys():
        raise DamagedFile(
            f"{path} is a safetensors file, but not a uvax {kind}: its metadata has no {', '.join(sorted(missing))}"
        )
    if metadata["kind"] != kind:
        raise DamagedFile(f"{path} holds a uvax {metadata['kind']}; a {kind} was expected")
    if metadata["schema"] != str(SCHEMA):
        raise DamagedFile(
            f"{path} has schema version {metadata['schema']} and this uvax ({uvax.__version__}) reads version"
            f" {SCHEMA}; read it with the uvax that wrote it ({metadata['uvax']})"
        )
    if metadata["seal"] != _seal(metadata):
        raise DamagedFile(f"{path} is damaged: its header does not match its checksum; make or copy it again")
    arrays = {
        entry.name: np.frombuffer(
            buffer, entry.dtype, count=math.prod(entry.shape), offset=start + entry.offset
        ).reshape(entry.shape)
        for entry in table
    }
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


class _Entry(NamedTuple):
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int


def _open(path: Path, kind: str, *, mmap: bool) -> Any:
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise InvalidInput(f"{path} is a folder; a uvax {kind} is one file: give its path")
        if not stat.S_ISREG(info.st_mode):  # opening a named pipe would wait for ever
            raise InvalidInput(f"{path} is not a regular file; a uvax {kind} was expected there")
        if info.st_size == 0:
            raise DamagedFile(f"{path} is empty; a uvax {kind} was expected: make or copy it again")
        with open(path, "rb") as file:
            return mmap_module.mmap(file.fileno(), 0, access=mmap_module.ACCESS_READ) if mmap else file.read()
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}; a uvax {kind} was expected there") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {reason(error)}") from error


def _parse(buffer: Any, path: Path, kind: str) -> tuple[list[_Entry], dict[str, str], int]:
    """The table of arrays, the metadata, and where the bytes start; a sentence if they do not fit together."""
    size = len(buffer)
    start = 8 + int.from_bytes(buffer[:8], "little")
    if buffer[8:9] != b"{":  # looked at first: the length of a header may begin like a pickle
        for signature, name in _SIGNATURES:
            if buffer[: len(signature)] == signature:
                raise DamagedFile(f"{path} is {name}; a uvax {kind} was expected, as save() writes it")
        raise DamagedFile(f"{path} is not a uvax {kind}, or was cut off: it does not begin like a safetensors file")
    if start > size:
        raise DamagedFile(f"{path} is damaged: it ends within its header; make or copy it again")
    try:
        table = json.loads(buffer[8:start])
        metadata = {str(k): v for k, v in table.pop("__metadata__", {}).items() if isinstance(v, str)}
        entries = [_entry(name, fields) for name, fields in table.items()]
        end = 0
        for entry, length in sorted(entries, key=lambda pair: (pair[0].offset, pair[1])):
            if entry.offset != end:
                raise ValueError(f"array {entry.name!r} is out of place")
            end += length
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: its header cannot be read ({error}); make or copy it again") from None
    if start + end != size:
        raise DamagedFile(
            f"{path} is damaged: it has {size} bytes where its header says {start + end}; it was cut off or added"
            " to: make or copy it again"
        )
    return [entry for entry, _ in entries], metadata, start


def _entry(name: str, fields: Mapping[str, Any]) -> tuple[_Entry, int]:
    dtype, shape, (first, last) = _DTYPES[fields["dtype"]], tuple(fields["shape"]), fields["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, first, last)):
        raise ValueError(f"array {name!r} has no usable shape")
    if last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"array {name!r} has the wrong size")
    return _Entry(name, dtype, shape, first), last - first


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if name == "__metadata__":
        raise InvalidInput("an array cannot be named '__metadata__': safetensors keeps that name for itself")
    array = np.asarray(array, order="C")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype not in _DTYPE_NAMES:
        raise InvalidInput(
            f"array {name!r} has dtype {array.dtype}, which cannot be stored;"
            f" convert it to one of {', '.join(str(dtype) for dtype in _DTYPE_NAMES)}"
        )
    return array


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _seal(metadata: Mapping[str, str]) -> str:
    text = json.dumps({k: v for k, v in metadata.items() if k != "seal"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
