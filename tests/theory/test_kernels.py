"""Kernels against 50-digit references, and what must hold for any points."""

import re
from functools import partial

import hypothesis.extra.numpy as hnp
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf, ndtr
from theory_oracle import load

from uvax.theory import kernels
from uvax.theory.duals import DUALS, SIGMOID_SCALE

REFERENCE = load("kernels.npz")
ENTRIES = [
    match.groups()
    for key in REFERENCE
    if (match := re.fullmatch(r"(nngp|ntk)_(\w+?)_(randn|sphere|edge)_d(\d)_c(\d)_(xx|xy)", key))
]


@pytest.mark.parametrize(("phi", "points"), sorted({(phi, points) for _, phi, points, *_ in ENTRIES}))
def test_agrees_with_the_reference(phi, points):
    seen = 0
    for which, phi_, points_, depth, combo, pair in ENTRIES:
        if (phi_, points_) != (phi, points):
            continue
        sigma_w, sigma_b = REFERENCE["combos_wstd_bstd"][int(combo)]
        kernel = partial(kernels, depth=int(depth), sigma_w=sigma_w, sigma_b=sigma_b, nonlinearity=phi)
        x = REFERENCE[f"x_{points}"]
        y = x if pair == "xx" else REFERENCE[f"y_{points}"]
        part = ("nngp", "ntk").index(which)
        scale = np.sqrt(np.outer(*(np.diagonal(kernel(z, z)[part]) for z in (x, y))))
        error = np.abs(kernel(x, y)[part] - REFERENCE[f"{which}_{phi}_{points}_d{depth}_c{combo}_{pair}"])
        # Ours keeps the digits that an arccos loses at collinear points, so ReLU gets no looser tolerance.
        assert (error <= 1e-12 * scale).all(), (which, depth, combo, pair)
        seen += 1
    assert seen >= 12


def _gelu_slope(z):
    return ndtr(z) + z * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)


def _sigmoid_slope(z):
    return np.exp(-((z / SIGMOID_SCALE) ** 2)) / (SIGMOID_SCALE * np.sqrt(np.pi))


FUNCTIONS = {
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(float)),
    "erf": (erf, lambda z: 2 / np.sqrt(np.pi) * np.exp(-z * z)),
    "gelu": (lambda z: z * ndtr(z), _gelu_slope),
    "sigmoid_like": (lambda z: 0.5 * erf(z / SIGMOID_SCALE) + 0.5, _sigmoid_slope),
}


def _gauss(covariance, f, degree):
    """E[f(u) f(v)] by quadrature; `degree` of homogeneity in z, or None for a smooth function."""
    if degree is None:
        node, weight = np.polynomial.hermite_e.hermegauss(60)
        grid = np.stack([a.ravel() for a in np.meshgrid(node, node)])
        weight = np.outer(weight, weight).ravel() / (2 * np.pi)
    else:
        # ReLU's kinks are lines through the origin: integrate the radius exactly and the angle by midpoints.
        angle = (np.arange(200_000) + 0.5) * 2 * np.pi / 200_000
        grid = np.stack([np.cos(angle), np.sin(angle)])
        weight = np.full(200_000, (2.0 if degree else 1.0) / 200_000)
    y = f(np.linalg.cholesky(covariance) @ grid)
    return (y * weight) @ y.T


@pytest.mark.parametrize("phi", sorted(DUALS))
def test_the_recursion_is_the_one_of_gaussian_expectations(phi):
    value, slope = FUNCTIONS[phi]
    degrees = (1, 0) if phi == "relu" else (None, None)
    sigma_w, sigma_b = 1.3, 0.4
    points = np.array([[0.3, -1.1, 0.8], [1.2, 0.5, 0.1]])
    k = theta = sigma_w**2 / 3 * points @ points.T + sigma_b**2
    for depth in (1, 2, 3):
        kdot = sigma_w**2 * _gauss(k, slope, degrees[1])
        k = sigma_b**2 + sigma_w**2 * _gauss(k, value, degrees[0])
        theta = theta * kdot + k
        nngp, ntk = kernels(points, points, depth=depth, sigma_w=sigma_w, sigma_b=sigma_b, nonlinearity=phi)
        np.testing.assert_allclose(nngp, k, rtol=2e-5)
        np.testing.assert_allclose(ntk, theta, rtol=2e-5)


POINTS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.just(3)),
    elements=st.sampled_from([0.0, 1.0, -1.0, 2.0, 1e-8, 1e-4, 1.0 + 1e-9, 0.3, 100.0]),
)
NETWORKS = st.fixed_dictionaries(
    {
        "depth": st.integers(0, 4),
        "sigma_w": st.sampled_from([0.5, 1.0, 1.5]),
        "sigma_b": st.sampled_from([0.0, 0.1, 1.0]),
        "nonlinearity": st.sampled_from(sorted(DUALS)),
    }
)


@settings(deadline=None, max_examples=60)
@given(POINTS, NETWORKS)
def test_any_points_give_symmetric_positive_semidefinite_kernels(x, network):
    for part in kernels(x, x, **network):
        assert np.isfinite(part).all()
        np.testing.assert_allclose(part, part.T, rtol=1e-13, atol=0)
        scale = np.sqrt(np.maximum(np.diagonal(part), 1e-300))
        assert np.linalg.eigvalsh(part / np.outer(scale, scale)).min() > -1e-12


@settings(deadline=None, max_examples=40)
@given(POINTS, NETWORKS)
def test_duplicates_are_exact(x, network):
    """A repeated point has the rows of the original to the last bits, so kernel matrices have their true rank."""
    twice = np.concatenate([x, x[:1]])
    for part in kernels(twice, twice, **network):
        np.testing.assert_allclose(part[-1], part[0], rtol=4e-15, atol=0)


def test_collinear_points_of_a_bias_free_relu_network_have_rank_one():
    x = np.outer([1.0, 2.0, 1e-3, 1.0 + 1e-9], [0.3, -1.2, 0.7])
    for depth in (1, 2, 5):
        for part in kernels(x, x, depth=depth, sigma_w=1.4, sigma_b=0.0, nonlinearity="relu"):
            scale = np.sqrt(np.diagonal(part))
            np.testing.assert_allclose(part / np.outer(scale, scale), 1.0, rtol=1e-14)


def test_blocks_do_not_change_the_result():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(23, 4)), rng.normal(size=(17, 4))
    network = {"depth": 2, "sigma_w": 1.5, "sigma_b": 0.1, "nonlinearity": "gelu"}
    for whole, small in zip(kernels(x, y, **network), kernels(x, y, **network, workspace=2000), strict=True):
        np.testing.assert_allclose(whole, small, rtol=1e-14)


def test_memory_stays_within_the_workspace():
    import tracemalloc

    x = np.random.default_rng(0).normal(size=(700, 4))
    workspace = 2**20
    tracemalloc.start()
    kernels(x, x, depth=3, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu", workspace=workspace)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    results = 16 * 700 * 700
    assert results <= peak <= results + 1.5 * workspace + 2**19


def test_float64_inside_and_the_jax_setting_untouched():
    before = jax.config.jax_enable_x64
    x = np.random.default_rng(0).normal(size=(4, 3))
    network = {"depth": 1, "sigma_w": 1.5, "sigma_b": 0.1, "nonlinearity": "relu"}
    exact = kernels(x, x, **network)[1]
    assert exact.dtype == np.float64
    single = kernels(x.astype(np.float32), x.astype(np.float32), **network)[1]
    assert single.dtype == np.float64
    np.testing.assert_allclose(single, exact, rtol=1e-5)
    assert jax.config.jax_enable_x64 == before


def test_importing_theory_does_not_import_jax():
    import subprocess
    import sys

    code = "import sys, uvax.theory; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
