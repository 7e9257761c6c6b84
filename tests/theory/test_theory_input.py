"""Bad input is refused in one sentence that names the argument."""

import numpy as np
import pytest
import scipy.sparse as sp

from uvax.errors import InvalidInput
from uvax.theory import kernel_blocks, kernels, posterior_from_blocks, stability, td_posterior

NETWORK = {"depth": 1, "sigma_w": 1.5, "sigma_b": 0.1, "nonlinearity": "relu"}


def kernel(a, b):
    return kernels(a, b, **NETWORK)


def good():
    rng = np.random.default_rng(0)
    return {
        "X": rng.normal(size=(4, 3)),
        "Y": rng.normal(size=(5, 3)),
        "P": rng.dirichlet(np.ones(5), size=4),
        "reward": rng.normal(size=4),
        "gamma": 0.5,
        "test": rng.normal(size=(2, 3)),
    }


def _with(name, **changes):
    array = good()[name].copy()
    for index, value in changes.items():
        array[tuple(int(i) for i in index[1:].split("_"))] = value
    return array


BAD = [
    ({"X": np.zeros((4, 2))}, "Y has points of length 3, but X has points of length 2"),
    ({"X": np.zeros(4)}, r"X has shape \(4,\), expected 2 axes"),
    ({"X": np.zeros((0, 3))}, "X is empty"),
    ({"Y": np.zeros((0, 3))}, "Y is empty"),
    ({"test": np.zeros((0, 3))}, "test is empty"),
    ({"test": np.zeros((2, 4))}, "test has points of length 4"),
    ({"X": np.zeros((4, 3), int)}, r"X has the integer dtype int64.*X\.astype\(float\)"),
    ({"P": np.eye(4, 5, dtype=int)}, "P has the integer dtype"),
    ({"reward": np.arange(4)}, "reward has the integer dtype"),
    ({"X": np.array([["a"] * 3] * 4)}, "X has dtype <U1"),
    ({"X": _with("X", i1_2=np.nan)}, r"X has the non-finite value nan at index \(1, 2\)"),
    ({"reward": _with("reward", i1=np.inf)}, r"reward has the non-finite value inf at index \(1,\)"),
    ({"reward": np.zeros((4, 1))}, r"reward has shape \(4, 1\), expected \(4,\)"),
    ({"reward": np.zeros(5)}, r"reward has shape \(5,\), expected \(4,\)"),
    ({"P": None}, "P=None means"),
    ({"P": np.eye(4)}, r"P has shape \(4, 4\), expected .* \(4, 5\)"),
    ({"P": _with("P", i0_0=-0.1)}, "P has the negative entry -0.1"),
    ({"P": 1.1 * good()["P"]}, "of P sums to 1.1"),
    ({"P": _with("P", i0_0=np.nan)}, "P has the non-finite value nan"),
    ({"P": sp.csr_array(np.eye(4, 5, dtype=int))}, "P has the dtype"),
    ({"P": sp.csr_array(2.0 * np.eye(4, 5))}, "row 0 of P sums to 2"),
    ({"P": sp.csr_array(np.full((4, 5), np.nan))}, "P has a non-finite entry"),
    ({"gamma": 1.0}, "gamma is 1, expected 0 <= gamma < 1"),
    ({"gamma": -0.1}, "gamma is -0.1"),
    ({"gamma": np.nan}, "gamma is NaN"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_problem(change, words):
    arguments = {**good(), **change}
    with pytest.raises(InvalidInput, match=words) as error:
        td_posterior(kernel, **arguments)
    assert "\n" not in str(error.value)
    rest = {name: arguments[name] for name in ("X", "Y", "P", "gamma")}
    if not ("reward" in change or "test" in change):
        with pytest.raises(InvalidInput, match=words):
            stability(kernel, **rest)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"t": -1.0}, "t is -1"),
        ({"t": np.nan}, "t is NaN"),
        ({"steps": 3}, "steps came without learning_rate"),
        ({"learning_rate": 0.1}, "learning_rate came without steps"),
        ({"steps": 3, "learning_rate": 0.0}, "learning_rate is 0, expected a finite number > 0"),
        ({"steps": -3, "learning_rate": 0.1}, "steps is -3"),
        ({"steps": 3, "learning_rate": 0.1, "t": 1.0}, "both t=1 and steps=3"),
        ({"ridge": -1.0}, "ridge is -1"),
        ({"ridge": np.inf}, "ridge is inf"),
        ({"solver": "gmres", "t": 1.0}, "t=inf only"),
    ],
)
def test_options(options, words):
    with pytest.raises(InvalidInput, match=words):
        td_posterior(kernel, **good(), **options)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda a, b: a @ b.T, "expected the pair"),
        (lambda a, b: ((a @ b.T)[:1], a @ b.T), r"k_xx with shape \(1, 4\)"),
        (lambda a, b: (a @ b.T, np.full((len(a), len(b)), np.nan)), "non-finite value in theta_xx"),
        (lambda a, b: (None, a @ b.T), "no NNGP part"),
        (lambda a, b: (a @ b.T, (a @ b.T).astype(int)), "dtype int64"),
    ],
)
def test_kernels_of_users(bad, words):
    with pytest.raises(InvalidInput, match=words):
        td_posterior(bad, **good())


def test_stability_needs_the_ntk_only():
    rest = {name: good()[name] for name in ("X", "Y", "P", "gamma")}
    assert stability(lambda a, b: (None, a @ b.T), **rest).rank == 3
    with pytest.raises(InvalidInput, match="expected the pair"):
        stability(lambda a, b: a @ b.T, **rest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"depth": -1}, "depth is -1"),
        ({"sigma_w": -1.0}, "sigma_w is -1"),
        ({"sigma_b": np.nan}, "sigma_b is NaN"),
        ({"nonlinearity": "rely"}, "did you mean 'relu'"),
        ({"workspace": 0}, "workspace is 0"),
    ],
)
def test_networks(change, words):
    x = np.ones((2, 3))
    with pytest.raises(InvalidInput, match=words):
        kernels(x, x, **{**NETWORK, **change})


def test_blocks_of_wrong_shape():
    g = good()
    blocks = kernel_blocks(kernel, g["X"], g["Y"], g["test"])
    from dataclasses import replace

    with pytest.raises(InvalidInput, match="k_tx"):
        replace(blocks, k_tx=blocks.k_tx[:, :-1])
    with pytest.raises(InvalidInput, match="P has shape"):
        posterior_from_blocks(blocks, np.eye(4), g["reward"], 0.5)


def test_initial_outputs_of_wrong_shape():
    post = td_posterior(kernel, **good())
    with pytest.raises(InvalidInput, match="initial outputs x"):
        post.evolve(np.zeros((3, 2)), np.zeros((3, 5)), np.zeros((3, 5)))
    with pytest.raises(InvalidInput, match="reward has shape"):
        post.evolve(np.zeros((3, 2)), np.zeros((3, 4)), np.zeros((3, 5)), reward=np.zeros((3, 1)))
