"""Checkpoints: what is read is what was written, or the sentence says why not."""

import json
import logging
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uvax.errors import DamagedFile, InvalidInput, WriteFailed
from uvax.training import Checkpoints


def state_of(number: float) -> dict:
    return {
        "weights": (jnp.full((3, 2), number), jnp.arange(4, dtype=jnp.int8)),
        "half": jnp.full((2,), number, jnp.bfloat16),
        "mask": jnp.asarray([True, False]),
        "empty": jnp.zeros((0, 3)),
        "nothing": None,
        "step": jnp.asarray(7, jnp.int32),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2),
    }


def assert_state(state: dict, number: float) -> None:
    expected = state_of(number)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype  # the kind of a PRNG key is its dtype
        if jnp.issubdtype(want.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def two(tmp_path) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(10, state_of(1.0), {"config": {"a": 1}})
    checkpoints.save(20, state_of(2.0), {"config": {"a": 2}})
    return checkpoints


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Path:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("pristine") / "c")
    checkpoints.save(10, state_of(1.0), {})
    checkpoints.save(20, state_of(2.0), {})
    return checkpoints.folder


def test_nothing_to_restore(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.restore(state_of(0.0)) is None
    assert checkpoints.restore_best(state_of(0.0)) is None
    assert not (tmp_path / "none").exists()


def test_newest_comes_back_with_every_kind_of_leaf(two):
    for template in (state_of(0.0), jax.eval_shape(lambda: state_of(0.0))):
        restored = two.restore(template)
        assert (restored.step, restored.meta, restored.note) == (20, {"config": {"a": 2}}, None)
        assert_state(restored.state, 2.0)


def test_the_last_ones_are_kept_and_nothing_else(two):
    two.save(30, state_of(3.0), {})
    assert two.steps() == [20, 30]
    assert sorted(p.name for p in two.folder.iterdir()) == ["step-0000000020", "step-0000000030"]


def test_going_back_drops_what_came_after(two):
    two.save(15, state_of(1.5), {})
    assert two.steps() == [10, 15]


def test_best_is_apart_from_last(two):
    for step in (10, 12, 14, 16, 18):
        two.save_best(step, state_of(float(step)), {"score": step})
    two.save(30, state_of(3.0), {})
    assert two.restore_best(state_of(0.0)).meta == {"score": 18}
    earlier = two.restore_best(state_of(0.0), at_most=17)
    assert_state(earlier.state, 16.0)
    assert two.restore_best(state_of(0.0), at_most=13) is None  # one more than `keep` is kept
    assert two.restore(state_of(0.0)).step == 30


def test_state_is_a_copy_that_can_be_donated(two):
    state = two.restore(state_of(0.0)).state
    jax.jit(lambda x: x + 1, donate_argnums=0)(state["weights"][0])
    assert_state(two.restore(state_of(0.0)).state, 2.0)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True), which=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(pristine, tmp_path_factory, position, which, bit):
    folder = tmp_path_factory.mktemp("flipped") / "c"
    shutil.copytree(pristine, folder)
    files = [path for path in files_of(folder / "step-0000000020") if path.stat().st_size]
    path = files[which % len(files)]
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1 << bit
    path.write_bytes(bytes(content))
    restored = Checkpoints(folder).restore(state_of(0.0))
    assert restored.step == 10
    assert "step 20" in restored.note
    assert "damaged" in restored.note
    assert "step 10 is used" in restored.note
    assert_state(restored.state, 1.0)
    shutil.rmtree(folder)


def test_any_missing_file_is_noticed(pristine, tmp_path):
    names = [path.relative_to(pristine) for path in files_of(pristine / "step-0000000020")]
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        shutil.copytree(pristine, folder)
        (folder / name).unlink()
        assert Checkpoints(folder).restore(state_of(0.0)).step == 10, name


def test_a_damaged_one_is_replaced_by_the_next_save(two):
    (two.folder / "step-0000000020" / "uvax.json").write_text("{")
    assert two.restore(state_of(0.0)).step == 10
    two.save(20, state_of(5.0), {})
    restored = two.restore(state_of(0.0))
    assert restored.note is None
    assert_state(restored.state, 5.0)


def test_all_damaged_is_an_error_not_a_new_start(two):
    for step in (10, 20):
        (two.folder / f"step-{step:010d}" / "uvax.json").unlink()
    with pytest.raises(DamagedFile, match=r"step 20 .*step 10 .*there is no other"):
        two.restore(state_of(0.0))


def test_another_configuration_is_refused_by_name(two):
    with pytest.raises(InvalidInput, match=r"another configuration: \['weights'\]\[0\] is float32\[3, 2\] there"):
        two.restore(state_of(0.0) | {"weights": (jnp.zeros((3, 3)), jnp.arange(4, dtype=jnp.int8))})
    with pytest.raises(InvalidInput, match=r"it lacks \['more'\]"):
        two.restore(state_of(0.0) | {"more": jnp.zeros(())})
    smaller = state_of(0.0)
    del smaller["mask"]
    with pytest.raises(InvalidInput, match=r"it has \['mask'\]"):
        two.restore(smaller)


def test_an_unknown_format_is_not_called_damage(two):
    path = two.folder / "step-0000000020" / "uvax.json"
    from uvax.training import checkpoints as module

    record = json.loads(path.read_bytes()) | {"format": 99}
    path.write_text(json.dumps(record | {"seal": module._seal(record)}))
    with pytest.raises(InvalidInput, match="format 99"):
        two.restore(state_of(0.0))


def test_rubbish_of_a_killed_save_is_ignored_then_removed(two):
    rubbish = two.folder / ".tmp-0123456789abcdef"
    shutil.copytree(two.folder / "step-0000000020", rubbish)
    assert Checkpoints(two.folder).restore(state_of(0.0)).step == 20
    assert rubbish.exists()  # reading removes nothing: another process may be writing it
    Checkpoints(two.folder).save(30, state_of(3.0), {})
    assert not rubbish.exists()


def test_what_cannot_be_stored_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(InvalidInput, match="step is -1"):
        Checkpoints(tmp_path).save(-1, {}, {})
    with pytest.raises(InvalidInput, match="meta of a checkpoint must be plain JSON"):
        Checkpoints(tmp_path).save(1, {}, {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_a_sentence(tmp_path):
    (tmp_path / "c").write_text("")
    with pytest.raises(WriteFailed, match="could not be made"):
        Checkpoints(tmp_path / "c").save(1, state_of(1.0), {})


def test_orbax_says_nothing(tmp_path, capfd, caplog):
    level = logging.getLogger("absl").level
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(1, state_of(1.0), {})
        checkpoints.restore(state_of(0.0))
    assert said == []
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("absl").level == level


def test_a_full_disk_leaves_the_earlier_ones(tmp_path):
    """A limit on the size of files, in a process of its own: every write beyond it fails as on a full disk."""
    program = """
import resource, sys
import jax.numpy as jnp
from uvax.errors import WriteFailed
from uvax.training import Checkpoints

checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(10, {"w": jnp.arange(50_000)}, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    checkpoints.save(20, {"w": jnp.arange(50_000) * 7}, {})
except WriteFailed as error:
    print(error)
print(checkpoints.restore({"w": jnp.arange(50_000)}).step, [p.name for p in checkpoints.folder.iterdir()])
"""
    folder = tmp_path / "c"
    command = [sys.executable, "-W", "error", "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sentence, left = done.stdout.splitlines()
    assert "the checkpoint of step 20 could not be written" in sentence
    assert "larger than this system allows" in sentence
    assert "the earlier ones (newest: step 10) are unchanged" in sentence
    assert left == "10 ['step-0000000010']"
    assert done.stderr == ""
