"""Resuming: the same bits, whatever stopped the run, and a sentence when it cannot be."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from uvax.errors import DamagedFile, InvalidInput, WriteFailed
from uvax.training import Checkpoints, TrainingDiverged, fit, load_fit

STEPS, CHUNK = 40, 5
SOAK = Path(__file__).resolve().parents[2] / "tools" / "soak.py"


class Crash(Exception):
    pass


def hilly(estimator, state, step):
    """The best is at step 15, then at step 35."""
    return {"return": {15: 3.0, 35: 4.0}.get(step, math.sin(step))}


def crash_at(step, then=None):
    def evaluate(estimator, state, now):
        if now == step:
            if then is None:
                raise Crash
            then()
        return hilly(estimator, state, now)

    return evaluate


def options(out, **more):
    return {
        "seed": 2,
        "out": out,
        "evaluate": hilly,
        "evaluations": STEPS // CHUNK,
        "checkpoint_seconds": 0.0,
        "progress": False,
    } | more


def rows(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in lines]


@pytest.fixture(scope="session")
def whole(tmp_path_factory, data, linear):
    """An undisturbed run and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return fit(linear(), data, STEPS, **options(folder)), folder


@pytest.fixture
def check_equal(whole, same):
    expected, undisturbed = whole

    def check(got, folder):
        same(got.state, expected.state)
        same(got.best.state, expected.best.state)
        assert (got.best.step, got.best.score) == (expected.best.step, expected.best.score) == (35, 4.0)
        assert (got.steps, got.status) == (expected.steps, expected.status)
        assert rows(folder) == rows(undisturbed)
        for name in ("model.safetensors", "best.safetensors"):
            same(load_fit(folder / name, got.estimator).state, load_fit(undisturbed / name, got.estimator).state)

    return check


@pytest.mark.parametrize(("step", "seconds"), [(5, 0.0), (20, 0.0), (25, 1e9), (35, 0.0), (40, 0.0)])
def test_a_crash_anywhere_leaves_no_trace(data, linear, tmp_path, check_equal, step, seconds):
    run = options(tmp_path / "run", checkpoint_seconds=seconds)
    with pytest.raises(Crash):
        fit(linear(), data, STEPS, **run | {"evaluate": crash_at(step)})
    check_equal(fit(linear(), data, STEPS, **run, resume=True), tmp_path / "run")


def test_many_seeds_resume_too(data, linear, tmp_path, same):
    run = options(tmp_path / "run", seeds=2)
    expected = fit(linear(), data, STEPS, **run | {"out": tmp_path / "whole"})
    with pytest.raises(Crash):
        fit(linear(), data, STEPS, **run | {"evaluate": crash_at(30)})
    got = fit(linear(), data, STEPS, **run, resume=True)
    for one, other in zip(got, expected, strict=True):
        same(one.state, other.state)
        same(one.best.state, other.best.state)
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    same(load_fit(tmp_path / "run" / "seed-3", linear()).state, got[1].state)


def test_a_finished_run_is_loaded_not_repeated(data, linear, whole, tmp_path, check_equal):
    folder = tmp_path / "run"
    shutil.copytree(whole[1], folder)
    (folder / "model.safetensors").unlink()

    def never(*_):
        raise AssertionError("evaluated again")

    check_equal(fit(linear(), data, STEPS, **options(folder, evaluate=never), resume=True), folder)


def test_resume_begins_where_there_is_nothing(data, linear, tmp_path, check_equal):
    check_equal(fit(linear(), data, STEPS, **options(tmp_path / "new"), resume=True), tmp_path / "new")


def test_a_damaged_checkpoint_falls_back_and_says_so(data, linear, tmp_path, check_equal):
    run = options(tmp_path / "run")
    with pytest.raises(Crash):
        fit(linear(), data, STEPS, **run | {"evaluate": crash_at(40)})
    newest = tmp_path / "run" / "checkpoints" / "step-0000000035"
    part = next(path for path in sorted((newest / "arrays").rglob("*")) if path.is_file())
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"step 35 .* is damaged .*; the one of step 30 is used instead"):
        got = fit(linear(), data, STEPS, **run, resume=True)
    assert "step 30 is used" in got.notes[0]
    check_equal(got, tmp_path / "run")


def test_a_lost_best_is_not_hidden(data, linear, tmp_path):
    run = options(tmp_path / "run")
    with pytest.raises(Crash):
        fit(linear(), data, STEPS, **run | {"evaluate": crash_at(30)})
    for best in (tmp_path / "run" / "checkpoints").glob("best-*"):
        shutil.rmtree(best)
    with pytest.warns(UserWarning, match="the best state before step 25 is lost"):
        assert fit(linear(), data, STEPS, **run, resume=True).best.step == 35


def test_a_torn_line_of_the_log_is_cut_off(data, linear, tmp_path, check_equal):
    run = options(tmp_path / "run")
    with pytest.raises(Crash):
        fit(linear(), data, STEPS, **run | {"evaluate": crash_at(30)})
    with open(tmp_path / "run" / "log.jsonl", "a") as log:
        log.write('{"step": 30, "se')
    check_equal(fit(linear(), data, STEPS, **run, resume=True), tmp_path / "run")


def test_other_settings_are_refused_by_name(data, make_data, linear, whole):
    folder = whole[1]
    for change, sentence in (
        ({"seed": 3}, "seed was 2 and is 3"),
        ({"evaluations": 4}, "log_every was 5 and is 10"),
        ({"seeds": 2}, "seeds was None and is 2"),
        ({"score": "other"}, "score was 'return' and is 'other'"),
    ):
        with pytest.raises(InvalidInput, match=f"cannot be resumed with other settings: {sentence}"):
            fit(linear(), data, STEPS, **options(folder, resume=True) | change)
    with pytest.raises(InvalidInput, match=r"estimator.learning_rate was 0.01 and is 0.02"):
        fit(linear(learning_rate=0.02), data, STEPS, **options(folder, resume=True))
    with pytest.raises(InvalidInput, match=r"dataset.checksum was '.*' and is '.*'"):
        fit(linear(), make_data(150, seed=1), STEPS, **options(folder, resume=True))
    with pytest.raises(InvalidInput, match="steps was 40 and is 80"):
        fit(linear(), data, 2 * STEPS, **options(folder, resume=True, evaluations=16))


def test_a_folder_is_never_overwritten_silently(data, linear, whole, tmp_path, check_equal):
    folder = tmp_path / "run"
    shutil.copytree(whole[1], folder)
    with pytest.raises(InvalidInput, match=r"holds a run already; pass resume=True .* overwrite=True"):
        fit(linear(), data, STEPS, **options(folder))
    (folder / "notes.txt").write_text("mine")
    check_equal(fit(linear(), data, STEPS, **options(folder, overwrite=True)), folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_overwriting_with_other_settings_leaves_nothing_of_the_old_run(data, linear, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole[1], folder)
    got = fit(linear(learning_rate=0.02), data, 10, out=folder, overwrite=True, progress=False)
    assert json.loads((folder / "config.json").read_text())["steps"] == 10
    assert [row["step"] for row in rows(folder)] == [10]
    assert Checkpoints(folder / "checkpoints").steps() == [10]
    assert got.best.score is None


def test_a_folder_that_is_no_run_is_left_alone(data, linear, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for more in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(InvalidInput, match="not empty and holds no run"):
            fit(linear(), data, STEPS, **options(tmp_path, **more))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InvalidInput, match="which is a file"):
        fit(linear(), data, STEPS, **options(tmp_path / "thesis.tex"))


def test_a_broken_configuration_is_a_sentence(data, linear, tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DamagedFile, match=r"config.json cannot be read .* overwrite=True"):
        fit(linear(), data, STEPS, **options(tmp_path, resume=True))


def test_two_processes_do_not_share_a_folder(data, linear, tmp_path):
    def again():
        with pytest.raises(InvalidInput, match="another process is training in"):
            fit(linear(), data, STEPS, **options(tmp_path / "run", resume=True))

    fit(linear(), data, STEPS, **options(tmp_path / "run", evaluate=crash_at(10, again)))


def test_a_diverged_run_keeps_its_last_good_checkpoint(data, linear, tmp_path):
    for more in ({}, {"resume": True}):  # resumed, it meets the same fate
        with pytest.raises(TrainingDiverged, match="diverged at step 23: the loss is nan") as e:
            fit(linear(spoil_at=23), data, STEPS, **options(tmp_path / "run", checkpoint_seconds=1e9, **more))
        assert e.value.fit.steps == 20
        assert e.value.fit.best.step == 15
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [20]
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True)
    except OSError as error:
        pytest.skip(f"no mount here: {error}")
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(disk):
    with open(disk / "ballast", "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass


def test_a_full_disk_stops_the_run_and_loses_nothing(data, linear, small_disk, check_equal):
    folder = small_disk / "run"
    run = options(folder)
    with pytest.raises(WriteFailed, match="the disk is full"):
        fit(linear(), data, STEPS, **run | {"evaluate": crash_at(25, lambda: fill(small_disk))})
    kept = Checkpoints(folder / "checkpoints")
    assert kept.steps() == [15, 20]
    restored = kept.restore(linear().init(data.spec, key=jax.random.key(0)))
    assert (restored.step, restored.note) == (20, None)
    with pytest.raises(WriteFailed, match="the disk is full"):  # still full: the same sentence, nothing lost
        fit(linear(), data, STEPS, **run, resume=True)
    assert kept.steps() == [15, 20]
    (small_disk / "ballast").unlink()
    check_equal(fit(linear(), data, STEPS, **run, resume=True), folder)


@pytest.mark.slow
def test_sigkill_at_random_moments():
    """Five kills of a real process; `make soak` does fifty."""
    command = [sys.executable, str(SOAK), "--kills", "5", "--method", "dqn", "--out", "", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": "error"})
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == 5
    assert result["differences"] == []
    assert np.ptp(result["killed_at"]) > 0  # not all in the same place
