"""Minari in and out. Everything happens in a folder of the test's own."""

import os
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uvax.data import Dataset, from_arrays, from_minari
from uvax.errors import DamagedFile, InvalidInput, WriteFailed

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def minari_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


def walk(
    lengths: list[int], ends: list[str], *, obs: str = "int8", task: str | None = "int8", discount: bool = False
) -> Dataset:
    """Episodes of the given lengths that end as said: "terminated", "truncated" or "" (cut off)."""
    rng = np.random.default_rng(sum(lengths))
    total = sum(lengths)
    paths = [rng.integers(0, 99, (length + 1, 3)).astype(obs) for length in lengths]
    last = np.cumsum(lengths) - 1
    kind = np.full(total, "", dtype="U10")
    kind[last] = ends
    tasks = np.repeat(np.eye(4)[rng.integers(0, 4, len(lengths))], lengths, axis=0)
    return Dataset(
        obs=np.concatenate([p[:-1] for p in paths]),
        next_obs=np.concatenate([p[1:] for p in paths]),
        task=tasks.astype(task) if task else np.zeros((total, 0), np.float32),
        action=rng.integers(0, 5, total).astype(np.int8),
        reward=rng.normal(size=total).astype(np.float32),
        terminated=kind == "terminated",
        truncated=kind == "truncated",
        episode_start=np.isin(np.arange(total), np.append(0, last[:-1] + 1)),
        discount=rng.random(total).astype(np.float32) if discount else None,
        header={
            "num_actions": 5,
            "environment": {"name": "Walk", "size": 3},
            "seed": 1,
            "collection": {"steps": total},
        },
    )


def assert_equal(left: Dataset, right: Dataset) -> None:
    for name, array in left.arrays().items():
        other = right.arrays()[name]
        assert (name, array.dtype) == (name, other.dtype)
        np.testing.assert_array_equal(array, other, err_msg=name)
    assert left.checksum == right.checksum
    assert left.header == right.header


@pytest.mark.parametrize("backend", ["hdf5", "arrow"])
@pytest.mark.parametrize("obs", ["int8", "uint8", "bool", "float32", "float16", "bfloat16", "int32"])
def test_round_trip_gives_equal_transitions(backend, obs):
    data = walk([3, 1, 5, 2], ["truncated", "terminated", "", "truncated"], obs=obs, discount=obs == "int8")
    written = data.to_minari("uvax/walk-v0", backend=backend)
    assert isinstance(written, minari.MinariDataset)
    assert written.total_steps == len(data)
    assert_equal(data, from_minari("uvax/walk-v0"))
    assert_equal(data, from_minari(written))
    assert_equal(data, from_minari(written.storage.data_path))


@pytest.mark.parametrize("backend", ["hdf5", "arrow"])
def test_round_trip_without_tasks(backend):
    data = walk([2, 4], ["terminated", "truncated"], task=None)
    data.to_minari("uvax/walk-v0", backend=backend)
    assert_equal(data, from_minari("uvax/walk-v0"))
    assert isinstance(minari.load_dataset("uvax/walk-v0").observation_space, spaces.Box)


COUNTER = iter(range(1_000_000))


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    episodes=st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from(["terminated", "truncated", ""])), min_size=1, max_size=4
    ),
    backend=st.sampled_from(["hdf5", "arrow"]),
    discount=st.booleans(),
    task=st.sampled_from([None, "int8", "float32"]),
)
def test_any_round_trip(episodes, backend, discount, task):
    lengths, ends = zip(*episodes, strict=True)
    data = walk(list(lengths), list(ends), discount=discount, task=task)
    name = f"uvax/walk{next(COUNTER)}-v0"
    data.to_minari(name, backend=backend)
    assert_equal(data, from_minari(name))


def test_what_minari_sees():
    data = walk([3, 2], ["truncated", "terminated"])
    written = data.to_minari("uvax/walk-v0", author="me", description="a walk")
    first, second = written.iterate_episodes()
    np.testing.assert_array_equal(first.observations["obs"], np.vstack([data.obs[:3], data.next_obs[2]]))
    np.testing.assert_array_equal(first.observations["task"][:3], data.task[:3])
    np.testing.assert_array_equal(first.actions, data.action[:3])
    np.testing.assert_array_equal(first.rewards, data.reward[:3])
    assert first.truncations.tolist() == [False, False, True]
    assert second.terminations.tolist() == [False, True]
    assert written.action_space == spaces.Discrete(5)
    assert written.storage.metadata["author"] == {"me"}
    assert written.storage.metadata["dataset_size"] >= 0


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # the collector's own folder
@pytest.mark.parametrize("backend", ["hdf5", "arrow"])
def test_data_that_minari_recorded(backend):
    """CartPole, recorded by Minari's own collector, against the transitions as they were seen."""
    env = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=9), data_format=backend)
    seen = []
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            action = int(seed > 0)  # always the same side: terminates around step 9
            next_obs, reward, terminated, truncated, _ = env.step(action)
            seen.append((obs, action, reward, terminated, truncated, next_obs))
            obs, over = next_obs, terminated or truncated
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env.create_dataset("other/cartpole-v0")
    env.close()
    data = from_minari("other/cartpole-v0")
    columns = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    for name, column in zip(columns, zip(*seen, strict=True), strict=True):
        np.testing.assert_array_equal(data.arrays()[name], np.array(column), err_msg=name)
    assert data.truncated.any() or data.terminated.any()
    assert (data.num_actions, data.obs.dtype, data.task.shape[1]) == (2, np.float32, 0)
    assert data.header["environment"]["name"] == "CartPole-v1"
    assert data.header["collection"]["minari"] == "other/cartpole-v0"
    assert data.episode_start.sum() == 3


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_go_to_door_recorded_from_minigrid():
    pytest.importorskip("minigrid")
    import uvax.envs.gymnasium  # noqa: F401  registers the environment

    env = minari.DataCollector(gymnasium.make("uvax/GoToDoor-v0", size=6, max_episode_steps=5))
    rng = np.random.default_rng(0)
    seen = []
    for seed in range(4):
        obs, _ = env.reset(seed=seed)
        for _ in range(5):
            action = int(rng.integers(4))
            next_obs, reward, _, truncated, _ = env.step(action)
            seen.append((obs["obs"], obs["task"], action, reward, truncated, next_obs["obs"]))
            obs = next_obs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env.create_dataset("other/gotodoor-v0")
    env.close()
    data = from_minari("other/gotodoor-v0")
    for name, column in zip(
        ("obs", "task", "action", "reward", "truncated", "next_obs"), zip(*seen, strict=True), strict=True
    ):
        np.testing.assert_array_equal(data.arrays()[name], np.array(column), err_msg=name)
    assert (data.obs.dtype, data.num_actions) == (np.int8, 4)
    assert data.header["environment"]["size"] == 6
    assert sum(part.episodes for part in data.summary().parts["wall"]) == 4


def test_a_key_called_observation_will_do():
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    source = record({"observation": rows, "goal": rows}, spaces.Dict({"observation": box(2), "goal": box(2)}))
    data = from_minari(source, task="goal")
    np.testing.assert_array_equal(data.obs, rows[:2])
    np.testing.assert_array_equal(data.task, rows[:2])


def record(observations, space, *, actions=(2, 1), action_space=None, infos=None, steps=2, name="other/made-v0"):
    """A dataset of one episode, as some other program would have written it."""
    buffer = minari.data_collector.EpisodeBuffer(
        id=0,
        observations=observations,
        actions=np.array(actions),
        rewards=np.ones(steps),
        terminations=np.zeros(steps, bool),
        truncations=np.arange(steps) == steps - 1,
        infos=infos,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minari.create_dataset_from_buffers(
            name, [buffer], observation_space=space, action_space=action_space or spaces.Discrete(2, start=1)
        )


def box(*shape: int, dtype: type = np.float32) -> spaces.Box:
    return spaces.Box(0, 9, shape, dtype)


def test_boxes_are_flattened_and_actions_counted_from_zero():
    rows = np.arange(12.0).reshape(3, 2, 2) % 9
    data = from_minari(record(rows, box(2, 2, dtype=np.float64)))
    np.testing.assert_array_equal(data.obs, rows[:2].reshape(2, 4))
    np.testing.assert_array_equal(data.next_obs, rows[1:].reshape(2, 4))
    assert data.action.tolist() == [1, 0]
    assert data.obs.dtype == np.float32
    assert data.header["environment"] is None


def test_discrete_observations_become_one_hot():
    data = from_minari(record(np.array([3, 5, 4]), spaces.Discrete(3, start=3)))
    assert data.obs.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert data.next_obs.tolist() == [[0, 0, 1], [0, 1, 0]]


MIXED = spaces.Dict({"image": box(2), "task": box(3), "mission": spaces.Text(10)})
MIXED_ROWS = {
    "image": np.arange(6, dtype=np.float32).reshape(3, 2),
    "task": np.tile(np.float32([0, 1, 0]), (3, 1)),
    "mission": ["go", "go", "stop"],
}


def test_entries_of_dicts_are_named():
    source = record(MIXED_ROWS, MIXED)
    with pytest.raises(InvalidInput, match=r"no entry 'observation', only image, mission, task.*obs="):
        from_minari(source)
    data = from_minari(source, obs="image")
    np.testing.assert_array_equal(data.obs, MIXED_ROWS["image"][:2])
    np.testing.assert_array_equal(data.task, MIXED_ROWS["task"][:2])
    data = from_minari(source, obs="image", task=lambda e: [[len(m)] for m in e.observations["mission"]])
    assert data.task.tolist() == [[2], [2]]
    data = from_minari(source, obs=lambda e: e.observations["image"][:, :1])
    assert data.obs.tolist() == [[0], [2]]
    with pytest.raises(InvalidInput, match="no entry 'goal' for the task"):
        from_minari(source, obs="image", task="goal")
    with pytest.raises(InvalidInput, match="obs must be an array of numbers"):
        from_minari(source, obs="mission")
    with pytest.raises(InvalidInput, match="2 rewards, 2 actions, 1 observations"):
        from_minari(source, obs=lambda e: e.observations["image"][:1])


def test_tasks_may_be_in_the_infos():
    infos = {"task": np.tile(np.float32([1, 0]), (3, 1)), "discount": np.full((3, 1), 7.0)}
    data = from_minari(record(np.zeros((3, 2), np.float32), box(2), infos=infos))
    assert data.task.tolist() == [[1, 0], [1, 0]]
    assert data.discount is None  # somebody else's "discount" may mean anything


def test_what_cannot_be_used_is_refused(minari_folder):
    with pytest.raises(InvalidInput, match="uvax needs Discrete actions"):
        from_minari(record(np.zeros((3, 2), np.float32), box(2), actions=[[1.0], [1.0]], action_space=box(1)))
    text = record(["a", "b", "c"], spaces.Text(3), name="other/text-v0")
    with pytest.raises(InvalidInput, match=r"are Text.*pass obs="):
        from_minari(text)
    with pytest.raises(InvalidInput, match=r"no Minari dataset other/none-v0 .* other/made-v0, other/text-v0"):
        from_minari("other/none-v0")
    for bad in ("x/made-v0", "other/made", "../made-v0", ""):
        with pytest.raises(InvalidInput, match="is no Minari id; it must look like"):
            from_minari(bad)
    with pytest.raises(DamagedFile, match="Minari cannot read"):
        from_minari(minari_folder)


@pytest.mark.usefixtures("users_view")
def test_existing_minari_datasets_are_left_alone():
    data = walk([2], ["truncated"])
    data.to_minari("uvax/walk-v0")
    with pytest.raises(InvalidInput, match="exists and is left as it is"):
        walk([3], ["terminated"]).to_minari("uvax/walk-v0")
    assert_equal(data, from_minari("uvax/walk-v0"))
    for bad in ("x/made-v0", "other/made"):
        with pytest.raises(InvalidInput, match="is no Minari id"):
            data.to_minari(bad)
    with pytest.raises(InvalidInput, match="backend must be 'hdf5' or 'arrow', got 'csv'"):
        data.to_minari("uvax/walk-v1", backend="csv")  # type: ignore[arg-type]


def test_jumps_within_an_episode_are_refused():
    rows = np.arange(4, dtype=np.float32)[:, None]
    data = from_arrays(rows, [0, 1, 0, 1], rows[:, 0], rows + 5, episode_start=[1, 0, 0, 0])
    with pytest.raises(InvalidInput, match="next_obs of row 0 is not obs of row 1"):
        data.to_minari("uvax/jump-v0")


def test_a_failed_write_leaves_nothing(minari_folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    from minari.dataset._storages.hdf5_storage import HDF5Storage

    monkeypatch.setattr(HDF5Storage, "update_episodes", full)
    with pytest.raises(WriteFailed, match="disk is full"):
        walk([2], ["truncated"]).to_minari("uvax/walk-v0")
    assert not os.path.exists(minari_folder / "uvax" / "walk-v0")


def test_episodes_too_long_for_arrow_are_refused():
    n = 32_768
    rows = np.zeros((n, 1), np.int8)
    data = from_arrays(rows, np.zeros(n, int), np.zeros(n), rows, truncated=np.arange(n) == n - 1)
    with pytest.raises(InvalidInput, match="use backend='hdf5'"):
        data.to_minari("uvax/long-v0", backend="arrow")
    part = data.subset(np.arange(1, n))
    part.to_minari("uvax/long-v0", backend="arrow")
    assert from_minari("uvax/long-v0").checksum == part.checksum


def test_missing_minari_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(InvalidInput, match=r"pip install 'uvax\[minari\]'"):
        from_minari("uvax/walk-v0")
