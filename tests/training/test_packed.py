"""Rows come back bit for bit, whatever they are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvax.training.packed import Packed

ROWS = 7


def tree(seed: int = 0) -> dict:
    """Arrays of several sizes of number; random bits, so NaN, infinities and denormals occur too."""
    rng = np.random.default_rng(seed)

    def bits(dtype, *shape):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return rng.integers(0, 256, (ROWS, size), np.uint8).view(dtype).reshape(ROWS, *shape)

    return {
        "obs": {"board": bits(np.int8, 5, 7), "pixel": bits(np.uint8, 3)},
        "short": bits(np.int16, 3),
        "half": bits(np.float16, 2, 2),
        "action": bits(np.int32),
        "reward": bits(np.float32),
        "flag": rng.random((ROWS, 3)) < 0.5,
        "bfloat": bits(jnp.bfloat16, 5),
        "nothing": np.zeros((ROWS, 0), np.float32),
        "outputs": bits(np.float32, 4, 50),
        "many": bits(np.int32, 64),
        "image": bits(np.uint8, 20, 20),
    }


def same_bits(a, b) -> bool:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_come_back_bit_for_bit(compiled):
    data, rows = tree(), np.array([6, 0, 3, 3, 1])
    packed = Packed.from_host(data)

    def some(packed, rows):
        return packed.take(rows), packed.slice(2, 3)

    taken, cut = (jax.jit(some) if compiled else some)(packed, jnp.asarray(rows))
    assert len(packed) == ROWS
    assert all(jax.tree.leaves(jax.tree.map(same_bits, taken, jax.tree.map(lambda x: x[rows], data))))
    assert all(jax.tree.leaves(jax.tree.map(same_bits, cut, jax.tree.map(lambda x: x[2:5], data))))


@pytest.mark.parametrize("name", ["action", "short", "flag", "outputs", "nothing"])
def test_one_array_alone(name):
    data, rows = tree(), np.array([6, 0, 3, 3, 1])
    alone = Packed.from_host(data).take_one(jnp.asarray(rows), lambda columns: columns[name])
    assert same_bits(alone, data[name][rows])


def test_packing_on_the_device_equals_packing_on_the_host():
    data = tree(1)
    host = Packed.from_host(data)
    device = jax.jit(lambda data: Packed.of(data, ROWS))(jax.tree.map(jnp.asarray, data))
    assert all(jax.tree.leaves(jax.tree.map(same_bits, device, host)))
    assert host.wide.shape == (ROWS, 200 + 64)  # those of many 32-bit numbers


def test_nothing_can_be_packed():
    packed = Packed.of(None, ROWS)
    assert len(packed) == ROWS
    assert packed.take(jnp.arange(3)) is None


def test_a_transition_takes_little_more_than_its_bytes():
    data = tree()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    # Every array is rounded up to whole words.
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(Packed.from_host(data)))
    assert size <= stored <= size + 3 * ROWS * len(jax.tree.leaves(data))


def test_doubles_become_what_the_device_makes_of_them():
    exact = np.linspace(0, 1, ROWS)
    assert same_bits(Packed.from_host({"x": exact}).slice(0, ROWS)["x"], np.asarray(jnp.asarray(exact)))
    with jax.enable_x64(True):
        assert same_bits(Packed.from_host({"x": exact}).take(jnp.arange(ROWS))["x"], exact)
