"""`from_arrays`: what a person with logged arrays has and expects."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvax.data import from_arrays
from uvax.errors import InvalidInput

OBS = np.arange(10, dtype=np.float32)[:, None]  # observation i is [i]


def arrays(n: int = 10):
    return OBS[:n], np.arange(n) % 3, np.ones(n)


def flags(n: int, *rows: int) -> np.ndarray:
    return np.isin(np.arange(n), rows)


def test_with_next_obs_every_row_is_kept():
    data = from_arrays(*arrays(), OBS + 1, terminated=flags(10, 4), truncated=flags(10, 7))
    np.testing.assert_array_equal(data.next_obs, OBS + 1)
    assert np.flatnonzero(data.episode_start).tolist() == [0, 5, 8]
    assert data.header["created_by"] == "uvax.from_arrays"
    assert "rows_left_out" not in data.header
    assert (data.num_actions, data.task.shape) == (3, (10, 0))
    assert data.discount is None


def test_loose_transitions_are_episodes_of_their_own():
    data = from_arrays(*arrays(), OBS + 100)
    assert data.episode_start.all()
    assert not data.next_action()[1].any()


def test_a_jump_or_another_task_begins_an_episode():
    next_obs = OBS + 1
    next_obs[2] = 50
    task = np.repeat(np.eye(2), [6, 4], axis=0)
    data = from_arrays(*arrays(), next_obs, task=task)
    assert np.flatnonzero(data.episode_start).tolist() == [0, 3, 6]
    assert data.task.dtype == np.float32


def test_starts_can_be_given():
    data = from_arrays(*arrays(), OBS + 100, episode_start=flags(10, 0, 5))
    assert np.flatnonzero(data.episode_start).tolist() == [0, 5]
    with pytest.raises(InvalidInput, match="row 3 ends an episode"):
        from_arrays(*arrays(), OBS, terminated=flags(10, 3), episode_start=flags(10, 0))


def test_without_next_obs_terminated_episodes_are_whole():
    data = from_arrays(*arrays(), terminated=flags(10, 4, 9))
    assert data.next_obs[:, 0].tolist() == [1, 2, 3, 4, 4, 6, 7, 8, 9, 9]
    assert np.flatnonzero(data.episode_start).tolist() == [0, 5]
    assert data.batch(0.9).discount.tolist()[4] == 0
    assert len(data) == 10


def test_without_next_obs_truncated_rows_hand_on_their_observation():
    data = from_arrays(*arrays(), terminated=flags(10, 9), truncated=flags(10, 4))
    # Row 4 is not there; its observation is the outcome of row 3, where the episode is now cut.
    assert data.obs[:, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert data.next_obs[:, 0].tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 9]
    assert np.flatnonzero(data.truncated).tolist() == [3]
    assert np.flatnonzero(data.terminated).tolist() == [8]
    assert np.flatnonzero(data.episode_start).tolist() == [0, 4]
    assert data.header["rows_left_out"] == 1
    assert data.batch(0.9).discount.tolist()[3] == np.float32(0.9)


def test_without_next_obs_starts_alone_will_do():
    data = from_arrays(*arrays(), episode_start=flags(10, 0, 5))
    assert data.obs[:, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert np.flatnonzero(data.truncated).tolist() == [3, 7]


def test_single_truncated_rows_vanish_with_their_episode():
    data = from_arrays(*arrays(4), truncated=flags(4, 0, 3))
    assert data.obs[:, 0].tolist() == [1, 2]
    assert data.episode_start.tolist() == [True, False]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=5))
def test_deriving_next_obs_agrees_with_being_told(episodes):
    """Against a loop over episodes: same rows as if the true next observations had been passed and cut."""
    rows, expected = [], []
    for number, (length, ends) in enumerate(episodes):
        for i in range(length):
            last = i == length - 1
            rows.append((100 * number + i, last and ends, last and not ends))
            if not last:
                expected.append((100 * number + i, 100 * number + i + 1, False, i == length - 2 and not ends, i == 0))
            elif ends:
                expected.append((100 * number + i, 100 * number + i, True, False, i == 0))
    obs, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
    args = (obs[:, None], np.zeros(len(obs), int), np.zeros(len(obs)))
    if not expected:
        with pytest.raises(InvalidInput, match="pass next_obs"):
            from_arrays(*args, terminated=terminated, truncated=truncated)
        return
    data = from_arrays(*args, terminated=terminated, truncated=truncated)
    got = zip(
        data.obs[:, 0].tolist(),
        data.next_obs[:, 0].tolist(),
        data.terminated.tolist(),
        data.truncated.tolist(),
        data.episode_start.tolist(),
        strict=True,
    )
    assert list(got) == expected


def test_without_next_obs_the_ends_must_be_known():
    with pytest.raises(InvalidInput, match="must say where episodes end"):
        from_arrays(*arrays())
    with pytest.raises(InvalidInput, match=r"the last row \(9\) must be terminated or truncated"):
        from_arrays(*arrays(), terminated=flags(10, 4))


def test_types_are_narrowed_or_kept():
    data = from_arrays(
        np.arange(4)[:, None],
        np.array([0, 1, 0, 1], np.uint8),
        [0, 1, 2, 3],
        jnp.arange(1, 5)[:, None],
        task=np.ones((4, 2), np.float16),
        terminated=[0, 0, 0, 1],
        truncated=np.zeros(4),
        discount=[1, 1, 0.5, 0],
    )
    dtypes = {name: str(array.dtype) for name, array in data.arrays().items()}
    assert dtypes["obs"] == dtypes["next_obs"] == "int32"
    assert (dtypes["action"], dtypes["reward"], dtypes["discount"]) == ("uint8", "float32", "float32")
    assert dtypes["task"] == "float16"
    assert (dtypes["terminated"], dtypes["truncated"]) == ("bool", "bool")
    assert from_arrays([[0], [1]], [0, 1], [0, 0], [[0.5], [2]]).obs.dtype == np.float32
    assert from_arrays(np.zeros((2, 1)), [0, 1], [0, 0], terminated=[0, 1]).obs.dtype == np.float32
    assert from_arrays(np.zeros((2, 1), ">i2"), [0, 1], [0, 0], terminated=[0, 1]).obs.dtype == np.int16


def test_the_header_says_where_data_comes_from():
    data = from_arrays(*arrays(), OBS, num_actions=7, environment="Plant", header={"seed": 3, "created_by": "me"})
    assert data.header["environment"] == {"name": "Plant"}
    assert (data.header["seed"], data.header["created_by"], data.num_actions) == (3, "me", 7)
    data = from_arrays(*arrays(), OBS, environment={"name": "Plant", "size": 2})
    assert data.header["environment"] == {"name": "Plant", "size": 2}


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"obs": np.zeros((10, 2, 2))}, r"obs must have shape \[10, D\], got \[10, 2, 2\]; flatten it"),
        ({"obs": np.zeros(10)}, r"obs must have shape \[10, D\], got \[10\]"),
        ({"obs": np.zeros((9, 1))}, "obs must have 10 rows like action, got shape"),
        ({"obs": np.full((10, 1), 2**40)}, "obs has integers that do not fit in int32; pass it as float32"),
        ({"obs": np.full((10, 1), 1e300)}, "obs has values too large for float32"),
        ({"obs": np.full((10, 1), np.nan)}, "obs must be finite, but 10 of 10 rows"),
        ({"obs": np.full((10, 1), "a")}, "obs must hold numbers, got dtype <U1"),
        ({"obs": np.full((10, 1), 1j)}, "obs must hold numbers, got dtype complex128"),
        ({"obs": [[1], [2, 3]]}, "obs must be an array with rows of equal length"),
        ({"next_obs": np.zeros((10, 2))}, "next_obs must look like obs"),
        ({"next_obs": np.zeros((3, 1))}, "next_obs must have 10 rows"),
        ({"action": np.linspace(0, 1, 10)}, "action has dtype float64; .* continuous actions are not supported"),
        ({"action": np.arange(10) - 1}, r"actions must be in 0\.\.8, got -1 in row 0"),
        ({"action": np.arange(10), "num_actions": 9}, r"actions must be in 0\.\.8, got 9 in row 9"),
        ({"action": 3}, r"action must have shape \[N\], got \[\]"),
        ({"action": np.zeros((10, 1), int)}, r"action must have shape \[N\]"),
        ({"reward": np.full(10, np.inf)}, "reward must be finite"),
        ({"reward": ["a"] * 10}, "reward must hold numbers"),
        ({"reward": np.full(10, 1e39)}, "reward has values too large for float32"),
        ({"terminated": np.full(10, 2)}, "terminated must be a mask"),
        ({"terminated": ["yes"] * 10}, "terminated must be a mask"),
        ({"terminated": np.zeros(9)}, "terminated must have 10 rows"),
        ({"discount": np.full(10, 1.5)}, r"discount must be in \[0, 1\], got 1.5 in row 0"),
        ({"discount": np.full(10, np.nan)}, "discount must be finite"),
        ({"task": np.zeros((5, 2))}, "task must have 10 rows"),
        ({"num_actions": 0}, "positive integer"),
        ({"environment": {"size": 3}}, "dict with a 'name'"),
        ({"obs": OBS[:0], "action": [], "reward": [], "next_obs": OBS[:0]}, "empty: at least one transition"),
    ],
)
def test_what_is_refused(change, sentence):
    obs, action, reward = arrays()
    with pytest.raises(InvalidInput, match=sentence):
        from_arrays(**({"obs": obs, "action": action, "reward": reward, "next_obs": OBS} | change))
