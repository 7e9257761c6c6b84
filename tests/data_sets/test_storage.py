"""The container: whole or not there, and never read as something it is not."""

import contextlib
import io
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import h5py
import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from uvax import files, storage
from uvax.errors import DamagedFile, InvalidInput, WriteFailed

DTYPES = [np.dtype(d) for d in (bool, "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")]
UNSYNCED = mock.patch("os.fsync", new=int)  # hundreds of examples need not wait for the disk
SMALL = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.array([True, False])}


@st.composite
def some_arrays(draw: st.DrawFn) -> dict[str, np.ndarray]:
    names = draw(st.lists(st.text(min_size=1, max_size=8), max_size=4, unique=True))
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return {n: draw(hnp.arrays(draw(st.sampled_from(DTYPES)), draw(shapes))) for n in names if n != "__metadata__"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
headers = st.dictionaries(st.text(max_size=5), json_values, max_size=3)


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert left[name].shape == right[name].shape
        assert left[name].tobytes() == right[name].tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a test: making one takes longer than the example."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small"
    storage.write(path, "test", SMALL, {"seed": 3})
    return path


@UNSYNCED
@settings(deadline=None, max_examples=50)
@given(arrays=some_arrays(), header=headers, mmap=st.booleans())
def test_what_is_written_is_read(folder, arrays, header, mmap):
    path = folder / "file"
    storage.write(path, "test", arrays, header, overwrite=True)
    read, read_header = storage.read(path, "test", mmap=mmap)
    assert_same(read, arrays)
    assert read_header == header
    assert_same(safetensors.numpy.load_file(path), arrays)  # an ordinary safetensors file


def test_bfloat16_big_endian_and_strided_arrays(tmp_path):
    arrays = {
        "bf16": np.linspace(-1, 1, 7, dtype=np.float32).astype(ml_dtypes.bfloat16),
        "big": np.arange(5, dtype=">i4"),
        "strided": np.arange(20, dtype=np.float32).reshape(4, 5)[::2, ::-1],
    }
    storage.write(tmp_path / "f", "test", arrays, {})
    read, _ = storage.read(tmp_path / "f", "test")
    assert read["bf16"].dtype == ml_dtypes.bfloat16
    for name in arrays:
        np.testing.assert_array_equal(read[name], arrays[name])


def test_reading_maps_the_file_without_copying(tmp_path):
    storage.write(tmp_path / "f", "test", {"x": np.zeros(4_000_000, np.float32)}, {})
    arrays, _ = storage.read(tmp_path / "f", "test", verify=False)
    x = arrays["x"]
    maps = Path("/proc/self/maps")
    if maps.exists():
        ranges = [line.split()[0].split("-") for line in maps.read_text().splitlines() if line.endswith("/f")]
        assert any(int(low, 16) <= x.ctypes.data < int(high, 16) for low, high in ranges)
    assert x.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1


def test_checksum_depends_on_names_dtypes_shapes_and_values_only():
    base = {"a": np.zeros((2, 3), np.int8), "b": np.ones(2)}
    assert storage.checksum(base) == storage.checksum(dict(reversed(base.items())))
    others = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].astype(np.uint8), "b": base["b"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"], "b": base["b"] * 2},
        {"a": base["a"]},
    ]
    assert len({storage.checksum(o) for o in [base, *others]}) == 6


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(folder, data):
    path, whole = folder / "changed", folder / "whole"
    if not whole.exists():
        storage.write(whole, "test", SMALL, {"seed": 3, "name": "GoToDoor"})
    content = bytearray(whole.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        arrays, header = storage.read(path, "test", mmap=False)
    except DamagedFile:
        return
    assert_same(arrays, SMALL)
    assert header == {"seed": 3, "name": "GoToDoor"}


def test_a_file_cut_off_anywhere_is_refused(file):
    content = file.read_bytes()
    for length in [*range(0, len(content), 5), *range(len(content) - 20, len(content))]:
        file.write_bytes(content[:length])
        with pytest.raises(DamagedFile):
            storage.read(file, "test")
    for tail in (b"\0", b"more"):
        file.write_bytes(content + tail)
        with pytest.raises(DamagedFile, match="added"):
            storage.read(file, "test")


def test_without_verification_the_header_is_still_checked(file):
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    storage.read(file, "test", verify=False)
    with pytest.raises(DamagedFile, match="arrays do not match"):
        storage.read(file, "test")
    file.write_bytes(content.replace(b"seed", b"leed"))
    with pytest.raises(DamagedFile, match="header does not match"):
        storage.read(file, "test", verify=False)


class Bomb:
    """A pickle that would make a file if it were ever loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_named_and_not_run(tmp_path, protocol):
    path, victim = tmp_path / "data.pkl", tmp_path / "victim"
    path.write_bytes(pickle.dumps(Bomb(str(victim)), protocol))
    with pytest.raises(DamagedFile, match="pickle"):
        storage.read(path, "dataset")
    assert not victim.exists()


def foreign_files() -> Iterator[tuple[str, bytes, str]]:
    npz, npy, hdf5, archive = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(npz, x=np.zeros(3))
    np.save(npy, np.zeros(3))
    with h5py.File(hdf5, "w") as file:
        file["x"] = np.zeros(3)
    with zipfile.ZipFile(archive, "w"):
        pass
    yield "npz", npz.getvalue(), "npz"
    yield "npy", npy.getvalue(), "npy"
    yield "hdf5", hdf5.getvalue(), "HDF5.*from_minari"
    yield "empty zip", archive.getvalue(), "zip"
    yield "text", b"obs,action,reward\n1,2,3\n", "does not begin like a safetensors file"
    yield "json", b'{"a": 1, "b": [1, 2, 3]}', "does not begin like a safetensors file"
    yield "short", b"abc", "does not begin like a safetensors file"
    yield "zeros", bytes(4096), "does not begin like a safetensors file"
    yield "foreign safetensors", safetensors.numpy.save({"x": np.zeros(3)}), "not a uvax dataset"
    yield "empty", b"", "empty"


@pytest.mark.parametrize(("name", "content", "sentence"), [pytest.param(*f, id=f[0]) for f in foreign_files()])
@pytest.mark.parametrize("mmap", [True, False])
def test_other_files_are_refused_by_name(tmp_path, name, content, sentence, mmap):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFile, match=sentence):
        storage.read(tmp_path / name, "dataset", mmap=mmap)


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path):
    for padding in range(0, 512, 64):  # some length of these is 0x280 or 0x380: a pickle's first two bytes
        storage.write(tmp_path / "f", "test", SMALL, {"note": "x" * padding}, overwrite=True)
        content = (tmp_path / "f").read_bytes()
        text = content[8 : 8 + int.from_bytes(content[:8], "little")].rstrip().ljust(0x280)
        (tmp_path / "f").write_bytes((0x280).to_bytes(8, "little") + text[:0x280] + content[-14:])
        if len(text) == 0x280:
            arrays, _ = storage.read(tmp_path / "f", "test")
            assert_same(arrays, SMALL)
            return
    pytest.fail("no header was short enough")


def test_missing_folder_pipe_kind_and_schema(tmp_path, file, monkeypatch):
    with pytest.raises(InvalidInput, match="no file"):
        storage.read(tmp_path / "nothing", "test")
    with pytest.raises(InvalidInput, match="is a folder"):
        storage.read(tmp_path, "test")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="not a regular file"):
        storage.read(tmp_path / "pipe", "test")
    with pytest.raises(DamagedFile, match="holds a uvax test; a dataset was expected"):
        storage.read(file, "dataset")
    monkeypatch.setattr(storage, "SCHEMA", 7)
    with pytest.raises(DamagedFile, match=r"schema version 1 .* reads version 7"):
        storage.read(file, "test")


def test_what_cannot_be_stored_is_refused_before_writing(tmp_path):
    for arrays, header, sentence in [
        ({"x": np.array(["a"])}, {}, "'x' has dtype <U1"),
        ({"x": np.array([object()])}, {}, "'x' has dtype object"),
        ({"__metadata__": np.zeros(1)}, {}, "__metadata__"),
        ({}, {"x": float("nan")}, "plain JSON"),
        ({}, {"x": np.float32(1)}, "plain JSON"),
    ]:
        with pytest.raises(InvalidInput, match=sentence):
            storage.write(tmp_path / "f", "test", arrays, header)
    assert os.listdir(tmp_path) == []


def test_nothing_is_overwritten_unasked(tmp_path, file):
    before = file.read_bytes()
    with pytest.raises(InvalidInput, match="overwrite=True"):
        storage.write(file, "test", {}, {})
    assert file.read_bytes() == before
    storage.write(file, "test", {}, {"new": 1}, overwrite=True)
    assert storage.read(file, "test")[1] == {"new": 1}
    with pytest.raises(InvalidInput, match="is a folder"):
        storage.write(tmp_path, "test", {}, {}, overwrite=True)
    assert os.listdir(tmp_path) == [file.name]


def test_a_writer_that_came_first_wins(tmp_path):
    def meanwhile(file):
        (tmp_path / "f").write_text("theirs")
        file.write(b"ours")

    with pytest.raises(InvalidInput, match="exists"):
        files.write_atomic(tmp_path / "f", meanwhile)
    assert (tmp_path / "f").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["f"]


def test_filesystems_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    storage.write(tmp_path / "f", "test", SMALL, {})
    assert_same(storage.read(tmp_path / "f", "test")[0], SMALL)
    with pytest.raises(InvalidInput, match="exists"):
        storage.write(tmp_path / "f", "test", SMALL, {})


def test_folders_are_made_and_links_followed(tmp_path):
    storage.write(tmp_path / "a" / "b" / "f", "test", SMALL, {})
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "f")
    storage.write(tmp_path / "link", "test", SMALL, {"new": True}, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert storage.read(tmp_path / "a" / "b" / "f", "test")[1] == {"new": True}


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_the_system_stops_leaves_the_old_file(file):
    before = file.read_bytes()
    with largest_file(50_000), pytest.raises(WriteFailed, match=r"larger than this system allows.*unchanged"):
        storage.write(file, "test", {"x": np.zeros(100_000)}, {}, overwrite=True)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        if subprocess.run(command, capture_output=True).returncode == 0:
            yield folder
            subprocess.run(["umount", str(folder)], check=True)
            return
    pytest.skip("mounting a small disk needs root")


def test_a_full_disk_leaves_the_old_file(small_disk):
    path = small_disk / "f"
    storage.write(path, "test", SMALL, {"old": True})
    with pytest.raises(WriteFailed, match=r"the disk is full; free some space.*unchanged"):
        storage.write(path, "test", {"x": np.zeros(100_000)}, {}, overwrite=True)
    assert storage.read(path, "test")[1] == {"old": True}
    assert os.listdir(small_disk) == ["f"]
    storage.write(path, "test", SMALL, {"old": False}, overwrite=True)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(file, monkeypatch, call):
    before = file.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(WriteFailed, match="disk is full"):
        storage.write(file, "test", SMALL, {}, overwrite=True)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    def interrupted(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(tmp_path / "f", interrupted)
    assert os.listdir(tmp_path) == []


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may do anything: step down for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission_to_write_or_read():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "f")
        storage.write(path, "test", SMALL, {})
        before = path.read_bytes()
        os.chmod(path, 0o000)
        os.chmod(folder, 0o555)
        try:
            with as_nobody():
                with pytest.raises(WriteFailed, match="no permission"):
                    storage.write(path, "test", SMALL, {}, overwrite=True)
                with pytest.raises(WriteFailed, match="no permission"):
                    storage.write(Path(folder, "new", "g"), "test", SMALL, {})
                with pytest.raises(WriteFailed, match="no permission"):
                    files.append_jsonl(Path(folder, "rows.jsonl"), {})
                with pytest.raises(InvalidInput, match=r"cannot be read: no permission"):
                    storage.read(path, "test")
        finally:
            os.chmod(folder, 0o755)
            os.chmod(path, 0o644)
        assert path.read_bytes() == before
        assert os.listdir(folder) == ["f"]


def test_a_file_in_the_way_of_a_folder(tmp_path, file):
    for call in (
        lambda: storage.write(file / "g", "test", {}, {}),
        lambda: storage.write(file / "g" / "h", "test", {}, {}),
        lambda: files.append_jsonl(file / "rows.jsonl", {}),
    ):
        with pytest.raises(WriteFailed, match="is a file, not a folder"):
            call()


WRITER = """
import sys, numpy as np
from uvax import storage
path, value = sys.argv[1], int(sys.argv[2])
while True:
    value += 1
    storage.write(path, "test", {"x": np.full(500_000, value)}, {"value": value}, overwrite=True)
    print(value, flush=True)
"""


def test_killed_writers_leave_a_whole_file(tmp_path):
    path = tmp_path / "f"
    value = 0
    for wait in (0.0, 0.004, 0.009):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(value)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(wait)
            child.send_signal(signal.SIGKILL)
        arrays, header = storage.read(path, "test")
        assert header["value"] > value
        value = header["value"]
        assert (arrays["x"] == value).all()


ONCE = """
import sys, numpy as np
from uvax import storage
from uvax.errors import InvalidInput
try:
    storage.write(sys.argv[1], "test", {"x": np.full(100_000, int(sys.argv[2]))}, {"writer": int(sys.argv[2])})
except InvalidInput:
    sys.exit(3)
"""


def test_of_many_writers_one_wins(tmp_path):
    path = tmp_path / "f"
    children = [subprocess.Popen([sys.executable, "-c", ONCE, str(path), str(i)]) for i in range(4)]
    codes = [child.wait() for child in children]
    assert sorted(codes) == [0, 3, 3, 3]
    arrays, header = storage.read(path, "test")
    assert header["writer"] == codes.index(0)
    assert (arrays["x"] == codes.index(0)).all()
    assert os.listdir(tmp_path) == ["f"]


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a" / "x.json"
    storage.write_json_atomic(path, {"b": [1, 2.5, "é"]})
    assert json.loads(path.read_text()) == {"b": [1, 2.5, "é"]}
    with pytest.raises(InvalidInput, match="plain JSON"):
        storage.write_json_atomic(path, {"b": float("inf")})
    with pytest.raises(InvalidInput, match="exists"):
        storage.write_json_atomic(path, {}, overwrite=False)
    assert json.loads(path.read_text()) == {"b": [1, 2.5, "é"]}


def test_json_lines_come_back_with_their_numbers(tmp_path):
    path = tmp_path / "x.jsonl"
    for i in range(3):
        storage.append_jsonl(path, {"i": i, "text": "two\nlines"})
    lines, problems = storage.read_jsonl(path)
    assert [(number, row["i"]) for number, row in lines] == [(1, 0), (2, 1), (3, 2)]
    assert problems == []
    with pytest.raises(InvalidInput, match="plain JSON"):
        storage.append_jsonl(path, {"x": float("nan")})
    with pytest.raises(InvalidInput, match="no file"):
        storage.read_jsonl(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="is a folder"):
        storage.append_jsonl(tmp_path, {})


@pytest.mark.parametrize("bad", [b"{", b"[1]", b'{"a": NaN}', b"\xff\xfe", b"null", b"[" * 100_000, b"\x00"])
def test_damaged_json_lines_are_named(tmp_path, bad):
    path = tmp_path / "x.jsonl"
    storage.append_jsonl(path, {"i": 0})
    with open(path, "ab") as file:
        file.write(bad + b"\n\n")
    storage.append_jsonl(path, {"i": 1})
    lines, problems = storage.read_jsonl(path)
    assert [row["i"] for _, row in lines] == [0, 1]
    assert len(problems) == 1
    assert "line 2: damaged" in problems[0]


@pytest.mark.parametrize("cut", [1, 2, 7, 10, 29])
def test_an_unfinished_line_spoils_no_row_but_its_own(tmp_path, cut):
    path = tmp_path / "x.jsonl"
    storage.append_jsonl(path, {"i": 0})
    with open(path, "ab") as file:
        file.write(b'{"i": 1, "text": "a long result"}'[:cut])
    assert "unfinished" in storage.read_jsonl(path)[1][0]
    storage.append_jsonl(path, {"i": 2})
    lines, problems = storage.read_jsonl(path)
    assert [row["i"] for _, row in lines] == [0, 2]
    assert len(problems) == 1


def test_a_row_that_does_not_fit_leaves_the_others(tmp_path):
    path = tmp_path / "x.jsonl"
    storage.append_jsonl(path, {"i": 0})
    before = path.read_bytes()
    with largest_file(10_000), pytest.raises(WriteFailed, match="its rows are unchanged"):
        storage.append_jsonl(path, {"text": "x" * 50_000})
    assert path.read_bytes() == before
