"""The row store: nothing is lost, nothing is read wrongly, whoever writes and whoever dies."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import uvax
from uvax.errors import InvalidInput
from uvax.experiments import rows
from uvax.experiments.rows import RowStore, Trial, provenance, trial_id


def row(seed: int = 0, **config) -> dict:
    return Trial("probe", {"width": 512, **config}, seed).row({"return": 1.5})


def read_quietly(store: RowStore):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return store.read()


def test_rows_come_back(tmp_path):
    store = RowStore(tmp_path / "results")
    assert store.finished() == set()
    rows = [row(seed) for seed in range(3)] + [Trial("other", {}, 0).row({})]
    for r in rows:
        store.append(r)
    assert sorted(os.listdir(tmp_path / "results")) == ["other.jsonl", "probe.jsonl"]
    read = store.read()
    assert read.problems == []
    stripped = [{k: v for k, v in r.items() if k != "check"} for r in read.rows]
    assert stripped == [rows[3], *rows[:3]]
    assert store.finished() == {r["trial_id"] for r in rows}
    assert len(read) == 4


def test_one_file_for_all(tmp_path):
    store = RowStore(tmp_path / "all.jsonl")
    store.append(row())
    store.append(Trial("other", {}, 0).row({}))
    assert len(store.read()) == 2
    assert os.listdir(tmp_path) == ["all.jsonl"]


def test_trial_ids_name_experiment_configuration_and_seed():
    config = {"width": 512, "lr": 1e-3, "layers": [1, 2], "name": "uvu"}
    base = trial_id("probe", config, 0)
    assert base == "2be8088caa8d"  # on every machine and in every version
    assert base == trial_id("probe", dict(reversed(config.items())), 0)
    assert base == trial_id("probe", config | {"width": 512.0, "layers": (1, 2)}, 0)
    others = [
        trial_id("other", config, 0),
        trial_id("probe", config, 1),
        trial_id("probe", config | {"lr": 1e-4}, 0),
        trial_id("probe", config | {"extra": None}, 0),
        trial_id("probe", config | {"width": "512"}, 0),
    ]
    assert len({base, *others}) == 6


@dataclasses.dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    sizes: tuple[int, ...] = (5, 6)


def test_configurations_and_results_of_many_kinds(tmp_path):
    store = RowStore(tmp_path)
    result = {
        "numpy": np.float32(0.5),
        "jax": jnp.arange(3),
        "missing": float("nan"),
        "endless": [float("inf"), 1.0],
        "path": tmp_path.relative_to(tmp_path),
    }
    store.append(Trial("probe", {"settings": Settings()}, 0).row(result))
    (read,) = store.read().rows
    assert read["config"] == {"settings": {"lr": 0.1, "sizes": [5, 6]}}
    assert read["result"] == {"numpy": 0.5, "jax": [0, 1, 2], "missing": None, "endless": [None, 1.0], "path": "."}
    with pytest.raises(InvalidInput, match="config holds inf"):
        Trial("probe", {"t": float("inf")}, 0).row({})
    with pytest.raises(InvalidInput, match="a row cannot hold <object"):
        Trial("probe", {}, 0).row({"x": object()})


def test_provenance(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["/usr/lib/bin/uvax", "train", f"--out={tmp_path}/a/b", "/elsewhere/data", "--n", "3"]
    )
    made = provenance(time.time() - 2)
    assert made["command"] == "uvax train --out=a/b data --n 3"
    assert made["uvax"] == uvax.__version__
    assert 2 <= made["seconds"] < 10
    assert made["started"] < made["finished"]
    assert made["cpu"]
    assert made["commit"] is None or len(made["commit"].removesuffix("-dirty")) == 40
    assert set(made) == {"uvax", "jax", "python", "cpu", "commit", "command", "started", "finished", "seconds"}


def test_a_commit_is_dirty_when_the_code_changed_not_when_rows_were_added(monkeypatch, tmp_path):
    package = tmp_path / "src" / "uvax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "results").mkdir()

    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(uvax, "__file__", str(package / "__init__.py"))
    commit = rows._commit.__wrapped__
    clean = commit()
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "results" / "probe.jsonl").write_text("{}")
    assert commit() == clean
    (package / "__init__.py").write_text("changed = True")
    assert commit() == clean + "-dirty"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": 2}, "schema version 2"),
        ({"config": None}, "'config' is missing or is not a dict"),
        ({"seed": "0"}, "'seed' is missing or is not a int"),
        ({"experiment": "../x"}, r"is called '\.\./x'"),
        ({"trial_id": "0" * 12}, "trial_id '000000000000' is not that of"),
        ({"seed": 5}, "trial_id .* is not that of"),
    ],
)
def test_rows_that_are_not_rows_are_not_stored(tmp_path, change, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        RowStore(tmp_path).append(row() | change)
    assert os.listdir(tmp_path) == []


def test_bad_lines_are_named_and_left_out(tmp_path):
    store = RowStore(tmp_path / "rows.jsonl")
    for seed in range(6):
        store.append(row(seed))
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    lines[1] = lines[1][:50]
    lines[2] = lines[2].replace('"return": 1.5', '"return": 9.5')
    lines[3] = lines[3].replace('"schema": 1', '"schema": 3')
    lines[4] = lines[0]
    lines.append('{"hello": "world"}')
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="5 rows of .*rows.jsonl are left out: .*line 2"):
        read = store.read()
    assert [r["seed"] for r in read.rows] == [0, 5]
    for line, words in [(2, "damaged"), (3, "checksum"), (4, "schema version 3"), (5, "already there"), (7, "schema")]:
        assert any(f"rows.jsonl, line {line}:" in p and words in p for p in read.problems), (line, read.problems)


@settings(deadline=None)
@given(st.data())
def test_a_changed_byte_never_changes_a_result(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "changed"
    store = RowStore(folder / "rows.jsonl")
    whole = folder / "whole.txt"
    if not whole.exists():
        for seed in range(3):
            store.append(row(seed))
        whole.write_bytes(store.path.read_bytes())
    content = bytearray(whole.read_bytes())
    originals = [json.loads(line) for line in content.splitlines()]
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    store.path.write_bytes(content)
    read = read_quietly(store)
    assert len(read.rows) >= 1
    assert all(r in originals for r in read.rows)


WRITER = """
import os, signal, sys
from uvax.experiments.rows import RowStore, Trial
store, writer, count, end = RowStore(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    store.append(Trial("probe", {"writer": writer, "i": i, "padding": "x" * 5000}, i).row({"i": i}))
    print(i, flush=True)
if end == "torn":  # the worst moment to die: half a line written
    write = os.write
    def half(descriptor, line):
        write(descriptor, line[: len(line) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    os.write = half
    store.append(Trial("probe", {"writer": writer, "i": count}, count).row({}))
"""


def start(store, writer, count, end="whole"):
    command = [sys.executable, "-c", WRITER, str(store.path), str(writer), str(count), end]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_many_processes_at_once_and_some_are_killed(tmp_path):
    store = RowStore(tmp_path)
    whole = [start(store, i, 15) for i in range(3)]
    torn = start(store, 3, 4, "torn")
    killed = start(store, 4, 10_000)
    children = [*whole, torn, killed]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    for _ in range(3):
        last_seen = int(killed.stdout.readline())
    time.sleep(random.uniform(0, 0.02))
    killed.send_signal(signal.SIGKILL)
    for child in children:
        child.stdout.read()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    assert [child.returncode for child in children] == [0, 0, 0, -signal.SIGKILL, -signal.SIGKILL]

    read = read_quietly(store)
    found = {(r["config"]["writer"], r["config"]["i"]) for r in read.rows}
    assert {(writer, i) for writer in range(3) for i in range(15)} <= found
    assert {(3, i) for i in range(4)} <= found
    assert {(4, i) for i in range(last_seen + 1)} <= found
    assert 1 <= len(read.problems) <= 2  # the torn line, and perhaps what the killed one was writing

    store.append(row())
    assert read_quietly(store).rows[-1]["config"] == {"width": 512}
    assert len(read_quietly(store)) == len(read) + 1
