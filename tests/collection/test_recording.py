"""Recorded actions: the same dataset again, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uvax
from uvax import storage
from uvax.collection import CollectionSettings, collect, read_recording, record, replay
from uvax.collection.recording import KIND, pack, unpack
from uvax.envs import GoToDoor
from uvax.errors import DamagedFile, InvalidInput
from uvax.estimators import DQN

# Boards that grow, so that sizes change on the way; a number of actions that does not fill its last byte.
SETTINGS = CollectionSettings(
    steps=1_206,
    environments=3,
    learning_starts=30,
    curriculum=0.5,
    dqn=DQN(width=8, depth=1, batch_size=8, learning_rate=1e-3),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("recorded") / "size7"
    collect(GoToDoor(size=7, max_steps=20), settings=SETTINGS, seed=3, out=out, progress=False)
    return out


@pytest.fixture
def altered(folder, tmp_path):
    """Writes the recording anew with something changed in what it says."""

    def write(**changes):
        arrays, content = storage.read(folder / "actions.safetensors", KIND)
        arrays = {name: changes.pop(name, array) for name, array in arrays.items()}
        storage.write(tmp_path / "altered.safetensors", KIND, arrays, {**content, **changes})
        return tmp_path / "altered.safetensors"

    return write


def test_the_actions_make_the_dataset_again(folder):
    made, again = uvax.load(folder), replay(folder / "actions.safetensors")
    assert again.checksum == made.checksum
    assert again.header == made.header
    assert (folder / "actions.safetensors").stat().st_size < 0.1 * (folder / "data.safetensors").stat().st_size


def test_a_replayed_folder_is_like_a_collected_one(folder, tmp_path):
    out = tmp_path / "again"
    replay(folder / "actions.safetensors", out=out)
    for name in ("data.safetensors", "actions.safetensors", "collection.json"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    with pytest.raises(InvalidInput, match="already holds a finished dataset"):
        replay(folder / "actions.safetensors", out=out)
    assert replay(folder / "actions.safetensors", out=out, resume=True).checksum == uvax.load(folder).checksum
    env = GoToDoor(size=7, max_steps=20)
    assert len(collect(env, settings=SETTINGS, seed=3, out=out, resume=True, progress=False)) == 1_206


def test_actions_that_make_other_data_are_refused(folder, altered):
    arrays, _ = storage.read(folder / "actions.safetensors", KIND)
    with pytest.raises(DamagedFile, match="gives another dataset"):
        replay(altered(actions=arrays["actions"] ^ np.uint8(1)))


def test_a_recording_that_does_not_fit_its_header_is_refused(folder, altered):
    _, content = storage.read(folder / "actions.safetensors", KIND)
    header = content["dataset"]
    longer = {**header, "collection": {**header["collection"], "steps": 2_412}}
    with pytest.raises(DamagedFile, match="does not hold the 2,412 actions"):
        read_recording(altered(dataset=longer))


@pytest.mark.parametrize("name", ["environment", "collection", "seed"])
def test_a_header_with_something_missing_is_refused(folder, altered, name):
    _, content = storage.read(folder / "actions.safetensors", KIND)
    header = {key: value for key, value in content["dataset"].items() if key != name}
    with pytest.raises(DamagedFile, match=f"not a recording that this uvax can play: .*{name}"):
        read_recording(altered(dataset=header))


def test_other_files_are_refused(folder, tmp_path):
    with pytest.raises(DamagedFile, match="holds a uvax dataset; a recording was expected"):
        replay(folder / "data.safetensors")
    with pytest.raises(InvalidInput, match="there is no file"):
        replay(tmp_path / "nothing.safetensors")


def test_only_a_whole_collection_can_be_recorded(folder, tmp_path):
    data = uvax.load(folder)
    with pytest.raises(InvalidInput, match="part of a collection"):
        record(data.subset(np.arange(100)), tmp_path / "part.safetensors")
    zeros = np.zeros(4, np.float32)
    mine = uvax.from_arrays(zeros[:, None], zeros.astype(int), zeros, next_obs=zeros[:, None])
    with pytest.raises(InvalidInput, match="only what uvax collected can be recorded"):
        record(mine, tmp_path / "mine.safetensors")


@given(st.lists(st.integers(0, 3), max_size=50))
def test_packing_loses_nothing(actions):
    packed = pack(np.asarray(actions, np.int32))
    assert len(packed) == -(-len(actions) // 4)
    assert unpack(packed, len(actions)).tolist() == actions


def test_actions_of_more_than_two_bits_are_refused():
    with pytest.raises(InvalidInput, match="actions go from 0 to 4; expected 0 to 3"):
        pack(np.asarray([0, 4]))
