"""Datasets: what they accept, what they hand out, and that saving changes nothing."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import uvax
from uvax import storage
from uvax.data import Dataset, from_arrays, load
from uvax.errors import DamagedFile, InvalidInput, UvaxError

OBS_DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "bfloat16"]


def columns(
    n: int = 6, *, obs: str = "int8", z: int = 2, seed: int = 0, discount: bool = False
) -> dict[str, np.ndarray]:
    """Two episodes: rows 0..3 terminate, the rest is truncated."""
    rng = np.random.default_rng(seed)
    made = {
        "obs": rng.integers(0, 9, (n, 3)).astype(obs),
        "task": rng.integers(0, 2, (n, z)).astype(np.int8),
        "action": rng.integers(0, 4, n).astype(np.int32),
        "reward": rng.normal(size=n).astype(np.float32),
        "terminated": np.arange(n) == 3,
        "truncated": np.arange(n) == n - 1,
        "episode_start": np.isin(np.arange(n), [0, 4]),
        "next_obs": rng.integers(0, 9, (n, 3)).astype(obs),
    }
    if discount:
        made["discount"] = rng.uniform(size=n).astype(np.float32)
    return made


HEADER = {"num_actions": 4, "environment": {"name": "Probe", "size": 3}, "seed": 7}


def make(**kwargs) -> Dataset:
    return Dataset(**columns(**kwargs), header=HEADER)


@st.composite
def parts(draw: st.DrawFn) -> dict[str, Any]:
    """What any dataset is made of. It is made in the test: the type checker draws random numbers of its own."""
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ended, start = rng.random(n) < 0.3, rng.random(n) < 0.2
    terminated = ended & (rng.random(n) < 0.5)
    obs = rng.normal(0, 50, (2, n, draw(st.integers(1, 4)))).clip(0, 99).astype(draw(st.sampled_from(OBS_DTYPES)))
    task = rng.integers(0, 2, (n, draw(st.integers(0, 3)))).astype(draw(st.sampled_from(OBS_DTYPES)))
    return {
        "obs": obs[0],
        "next_obs": obs[1],
        "task": task,
        "action": rng.integers(0, 3, n).astype(draw(st.sampled_from(["int8", "uint8", "int32"]))),
        "reward": rng.normal(size=n).astype(np.float32),
        "terminated": terminated,
        "truncated": ended & ~terminated,
        "episode_start": start | np.append(True, ended[:-1]),
        "discount": rng.random(n).astype(np.float32) if draw(st.booleans()) else None,
        "header": {"num_actions": 3, "seed": draw(st.none() | st.integers()), "note": draw(st.text(max_size=5))},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


@mock.patch("os.fsync", new=int)  # the examples need not wait for the disk
@settings(deadline=None, max_examples=50)
@given(made=parts(), mmap=st.booleans())
def test_saving_and_loading_changes_nothing(folder, made, mmap):
    data = Dataset(**made)
    data.save(folder / "data", overwrite=True)
    read = load(folder / "data", mmap=mmap)
    assert read.checksum == data.checksum
    assert read.header == data.header
    for name, array in data.arrays().items():
        assert read.arrays()[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays()[name], array)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_damage_is_refused_or_harmless(folder, data):
    whole, path = folder / "whole", folder / "damaged"
    original = make(discount=True)
    if not whole.exists():
        original.save(whole)
    content = bytearray(whole.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    try:
        read = load(path, mmap=False)
    except DamagedFile:
        return
    assert read.checksum == original.checksum
    assert read.header == original.header


def test_header_is_filled_in_and_plain():
    data = make()
    assert data.header == {**HEADER, "schema": 1, "uvax": uvax.__version__}
    assert json.loads(json.dumps(data.header)) == data.header
    assert data.num_actions == 4
    assert len(data) == 6
    assert "Probe" in repr(data)
    assert "6 transitions, 2 episodes" in repr(data)


def test_frozen_and_read_only_but_the_callers_arrays_are_theirs():
    mine = columns()
    data = Dataset(**mine, header=HEADER)
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.obs = mine["obs"]  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        data.obs[0] = 0
    assert np.shares_memory(data.obs, mine["obs"])
    mine["obs"][0] = 1


def test_spec():
    spec = make(obs="int8", z=2).spec
    assert (spec.obs_dim, spec.task_dim, spec.num_actions) == (3, 2, 4)
    assert spec.obs.dtype == jnp.int8


@pytest.mark.parametrize("obs", OBS_DTYPES)
def test_batch_keeps_compact_observations(obs):
    data = make(obs=obs)
    batch = data.batch(0.9)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batch))
    assert batch.obs.dtype == batch.next_obs.dtype == data.obs.dtype
    assert (batch.task.dtype, batch.action.dtype, batch.reward.dtype) == (jnp.float32, jnp.int32, jnp.float32)
    np.testing.assert_array_equal(batch.obs, data.obs)
    np.testing.assert_array_equal(batch.next_obs, data.next_obs)
    np.testing.assert_array_equal(batch.task, data.task.astype(np.float32))
    np.testing.assert_array_equal(batch.action, data.action)


def test_discount_is_zero_where_terminated_and_gamma_where_truncated():
    batch = make().batch(0.9)
    np.testing.assert_array_equal(batch.discount, np.float32([0.9, 0.9, 0.9, 0.0, 0.9, 0.9]))
    data = make(discount=True)
    expected = np.float32([0.5, 0.5, 0.5, 0.0, 0.5, 0.5]) * data.discount
    np.testing.assert_array_equal(data.batch(0.5).discount, expected)
    for gamma in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInput, match=r"gamma must be in \[0, 1\]"):
            data.batch(gamma)


def test_next_action_stays_in_its_episode():
    data = make()
    action, known = data.next_action()
    assert known.tolist() == [True, True, True, False, True, False]
    np.testing.assert_array_equal(action[known], data.action[[1, 2, 3, 5]])
    assert (action[~known] == 0).all()


def test_episodes_and_returns():
    data = make()
    assert list(data.episodes()) == [slice(0, 4), slice(4, 6)]
    np.testing.assert_allclose(data.returns(), [data.reward[:4].sum(), data.reward[4:].sum()], rtol=1e-6)


@settings(deadline=None, max_examples=50)
@given(made=parts(), draw=st.data())
def test_subset_takes_rows_and_never_joins_strangers(made, draw):
    data = Dataset(**made)
    index = draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=15))
    part = data.subset(index)
    for name, array in data.arrays().items():
        if name != "episode_start":
            np.testing.assert_array_equal(part.arrays()[name], array[index])
    action, known = part.next_action()
    whole_action, whole_known = data.next_action()
    for row in np.flatnonzero(known):
        assert whole_known[index[row]]
        assert action[row] == whole_action[index[row]]
    assert part.header["subset_of"] == data.checksum
    assert data.subset(np.arange(len(data))).checksum == data.checksum


def test_subset_by_mask_and_from_the_end():
    data = make()
    assert data.subset(data.reward > -np.inf).checksum == data.checksum
    np.testing.assert_array_equal(data.subset([-1]).reward, data.reward[[5]])
    for bad, sentence in [
        ([], "selects no row"),
        (np.zeros(6, bool), "selects no row"),
        ([6], r"0\.\.5, got 6"),
        ([-7], r"0\.\.5, got -7"),
        ([0.5], "row numbers"),
        ([[0]], "row numbers"),
        (np.ones(5, bool), "mask"),
    ]:
        with pytest.raises(InvalidInput, match=sentence):
            data.subset(bad)


def test_equal_transitions_have_equal_checksums():
    first = make()
    second = Dataset(**columns(), header={"num_actions": 9})
    assert first.checksum == second.checksum
    assert first.checksum != make(seed=1).checksum


BAD_COLUMNS = [
    ("obs", lambda a: a[:, :, None], r"obs must have shape \[6, D\], got \[6, 3, 1\]; flatten it"),
    ("obs", lambda a: a[:5], r"obs must have shape \[6, D\], got \[5, 3\]"),
    ("obs", lambda a: a.astype(np.int64), "obs has dtype int64; .* at most 32 bits"),
    ("obs", lambda a: a.astype(np.float64), "obs has dtype float64"),
    ("obs", lambda a: a.astype(str), "obs has dtype <U"),
    ("obs", lambda a: a.tolist(), "obs must be a NumPy array, got list"),
    ("obs", lambda a: jnp.asarray(a), "obs must be a NumPy array"),
    ("next_obs", lambda a: a[:, :2], r"next_obs must look like obs, int8\[6, 3\], got int8\[6, 2\]"),
    ("next_obs", lambda a: a.astype(np.int16), "next_obs must look like obs"),
    ("task", lambda a: a[:, 0], r"task must have shape \[6, Z\]"),
    ("task", lambda a: a.astype(object), "task has dtype object"),
    ("task", lambda a: np.where(a == a, np.float32(np.nan), np.float32(0)), "task must be finite, but 6 of 6 rows"),
    ("action", lambda a: a.astype(np.float32), "action has dtype float32; .* continuous actions are not supported"),
    ("action", lambda a: a[:, None], r"action must have shape \[N\], got \[6, 1\]"),
    ("action", lambda a: a + 4, r"actions must be in 0\.\.3, got [4-7] in row 0; .* larger num_actions"),
    ("action", lambda a: a - 9, r"actions must be in 0\.\.3, got -[6-9] in row 0"),
    ("reward", lambda a: a.astype(np.float64), "reward has dtype float64"),
    ("reward", lambda a: a[:, None], r"reward must have shape \[6\], got \[6, 1\]"),
    ("reward", lambda a: np.where(np.arange(6) > 3, np.float32(np.nan), a), "2 of 6 rows .* the first of them row 4"),
    ("reward", lambda a: np.where(np.arange(6) == 2, np.float32(-np.inf), a), "1 of 6 rows .* row 2"),
    ("terminated", lambda a: a.astype(int), "terminated has dtype int64; it must hold bool"),
    ("truncated", lambda a: a[:3], r"truncated must have shape \[6\], got \[3\]"),
    ("episode_start", lambda a: a & False, "episode_start must be set in row 0"),
    ("episode_start", lambda a: np.arange(6) == 0, "row 3 ends an episode .* row 4 must have episode_start"),
    ("discount", lambda a: a + 1, r"discount must be in \[0, 1\], got 1.* in row 0"),
    ("discount", lambda a: -a - 1, r"discount must be in \[0, 1\], got -"),
    ("discount", lambda a: a * np.float32(np.nan), r"discount must be in \[0, 1\], got nan in row 0"),
    ("discount", lambda a: a[:2], r"discount must have shape \[6\]"),
    ("discount", lambda a: a.astype(np.float64), "discount has dtype float64"),
]


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("name", "change", "sentence"), BAD_COLUMNS, ids=[f"{c[0]}-{i}" for i, c in enumerate(BAD_COLUMNS)]
)
def test_bad_columns_are_refused(name, change, sentence):
    made = columns(discount=True)
    with pytest.raises(InvalidInput, match=sentence):
        Dataset(**(made | {name: change(made[name])}), header=HEADER)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["obs", "next_obs"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_observations_must_be_finite(dtype, name, value):
    made = columns(obs=dtype)
    made[name][4, 1] = value
    with pytest.raises(InvalidInput, match=f"{name} must be finite, but 1 of 6 rows .* row 4"):
        Dataset(**made, header=HEADER)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({}, "num_actions.* got None"),
        ({"num_actions": 0}, "positive integer, got 0"),
        ({"num_actions": 4.0}, "positive integer, got 4.0"),
        ({"num_actions": True}, "positive integer, got True"),
        ({"num_actions": 4, "schema": 2}, "dataset schema 2"),
        ({"num_actions": 4, "seed": float("nan")}, "plain JSON"),
        ({"num_actions": 4, "seed": np.int64(3)}, "plain JSON"),
        ({"num_actions": 4, "environment": "GoToDoor"}, "dict with a 'name'"),
        ({"num_actions": 4, "environment": {"size": 5}}, "dict with a 'name'"),
    ],
)
def test_bad_headers_are_refused(header, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        Dataset(**columns(), header=header)


def test_empty_datasets_are_refused():
    empty = {name: array[:0] for name, array in columns().items()}
    with pytest.raises(InvalidInput, match="empty: at least one transition"):
        Dataset(**empty, header=HEADER)
    made = columns()
    made["obs"] = made["next_obs"] = made["obs"][:, :0]
    with pytest.raises(InvalidInput, match="at least one number per row"):
        Dataset(**made, header=HEADER)


def test_files_that_are_no_datasets(tmp_path):
    path = tmp_path / "f"
    arrays = make().arrays()
    header = dict(make().header)
    cases = [
        ({k: v for k, v in arrays.items() if k != "reward"}, header, "has no reward"),
        (arrays | {"extra": np.zeros(6)}, header, "also has extra"),
        (
            arrays | {"reward": arrays["reward"] * np.float32(np.nan)},
            header,
            "not hold a usable dataset: reward must be",
        ),
        (arrays, header | {"schema": 9}, "dataset schema 9 .* knows 1"),
        (arrays, {"schema": 1}, "num_actions"),
    ]
    for columns_, header_, sentence in cases:
        storage.write(path, "dataset", columns_, header_, overwrite=True)
        with pytest.raises(DamagedFile, match=sentence):
            load(path)
    storage.write(path, "fit", arrays, header, overwrite=True)
    with pytest.raises(DamagedFile, match="holds a uvax fit; a dataset was expected"):
        load(path)
    path.write_bytes(pickle.dumps(arrays))
    with pytest.raises(DamagedFile, match="pickle"):
        load(path)


def test_saving_does_not_overwrite_unasked(tmp_path):
    make().save(tmp_path / "f")
    with pytest.raises(InvalidInput, match="overwrite=True"):
        make(seed=1).save(tmp_path / "f")
    assert load(tmp_path / "f").checksum == make().checksum
    make(seed=1).save(tmp_path / "f", overwrite=True)
    assert load(tmp_path / "f").checksum == make(seed=1).checksum


def test_a_folder_made_by_collect_is_loaded(tmp_path):
    make().save(tmp_path / "run" / "data.safetensors")
    assert load(tmp_path / "run").checksum == make().checksum
    with pytest.raises(InvalidInput, match="is a folder; a uvax dataset is one file"):
        load(tmp_path)


def test_a_loaded_dataset_survives_its_file_being_replaced(tmp_path):
    make().save(tmp_path / "f")
    first = load(tmp_path / "f")
    make(seed=1).save(tmp_path / "f", overwrite=True)
    assert first.checksum == make().checksum


def test_every_error_is_a_sentence_with_a_path(tmp_path):
    with pytest.raises(UvaxError, match=r"there is no file .*nothing"):
        load(tmp_path / "nothing")


def test_bfloat16_is_kept(tmp_path):
    data = from_arrays(np.zeros((3, 2), ml_dtypes.bfloat16), [0, 1, 0], [0, 0, 1], terminated=[0, 0, 1])
    data.save(tmp_path / "f")
    assert load(tmp_path / "f").obs.dtype == ml_dtypes.bfloat16
