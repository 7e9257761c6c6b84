"""The TD posterior against the oracle, against itself along other paths, and against trained networks."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_oracle import CHAINS, FIXTURES, TD_CASES, by_name, load, relative_to_max

from uvax.errors import Diverged
from uvax.theory import kernel_blocks, kernels, posterior_from_blocks, td_posterior

TOLERANCE = 1e-9  # the oracle states 1e-7


@pytest.mark.parametrize("case", TD_CASES, ids=by_name)
def test_limit(case):
    post = td_posterior(*case.problem(case.values["T"]))
    assert relative_to_max(post.mean, case.values["mean_inf"]) < TOLERANCE
    assert relative_to_max(post.cov, case.values["cov_inf"]) < TOLERANCE
    half_square = 0.5 * np.diagonal(post.uvu_error().cov)
    assert relative_to_max(half_square, case.values["uvu_half_sq_err"]) < TOLERANCE


@pytest.mark.parametrize("case", TD_CASES + FIXTURES, ids=by_name)
def test_finite_time_of_gradient_flow(case):
    for t, mean, cov in zip(case.values["ts"], case.values["mean_t"], case.values["cov_t"], strict=True):
        post = td_posterior(*case.problem(case.values["T"]), t=t)
        assert relative_to_max(post.mean, mean) < TOLERANCE
        assert relative_to_max(post.cov, cov) < TOLERANCE


@pytest.mark.parametrize("case", TD_CASES, ids=by_name)
def test_gradient_descent(case):
    v = case.values
    post = td_posterior(*case.problem(v["T"]), steps=int(v["gd_steps"]), learning_rate=float(v["gd_lr"]))
    assert relative_to_max(post.mean, v["gd_mean"]) < TOLERANCE
    assert relative_to_max(post.cov, v["gd_cov"]) < TOLERANCE


@pytest.mark.parametrize("case", TD_CASES, ids=by_name)
def test_ridge(case):
    post = td_posterior(*case.problem(case.values["T"]), ridge=float(case.values["ridge"]))
    assert relative_to_max(post.mean, case.values["ridge_mean"]) < TOLERANCE
    assert relative_to_max(post.cov, case.values["ridge_cov"]) < TOLERANCE


@pytest.mark.parametrize("action", ["a", "b"])
@pytest.mark.parametrize("case", CHAINS, ids=by_name)
def test_chain_surfaces(case, action):
    problem = case.problem(case.values[f"T_{action}"])
    shape = case.values[f"mean_{action}"].shape
    for tag, time in (("", {}), ("_t1", {"t": 1.0}), ("_t30", {"t": 30.0})):
        post = td_posterior(*problem, **time)
        assert relative_to_max(post.mean.reshape(shape), case.values[f"mean_{action}{tag}"]) < TOLERANCE
        assert relative_to_max(post.variance.reshape(shape), case.values[f"var_{action}{tag}"]) < TOLERANCE
    myopic = td_posterior(*problem[:5], 0.0, problem[6])
    assert relative_to_max(myopic.variance.reshape(shape), case.values[f"var_myopic_{action}"]) < TOLERANCE


@pytest.mark.parametrize("case", FIXTURES, ids=by_name)
def test_limit_on_the_range_or_a_refusal(case):
    problem = case.problem(case.values["T"])
    if not case.values["converges"]:
        with pytest.raises(Diverged, match=r"diverges.*finite t"):
            td_posterior(*problem)
        return
    post = td_posterior(*problem)
    assert relative_to_max(post.mean, case.values["mean_inf"]) < TOLERANCE
    assert relative_to_max(post.cov, case.values["cov_inf"]) < TOLERANCE


def test_unstable_data_give_finite_but_wrong_numbers_only_without_check():
    """What the refusal protects from: the formula is finite where nothing converges."""
    case = FIXTURES[1]
    post = td_posterior(*case.problem(case.values["T"]), check=False)
    assert np.isfinite(post.mean).all()
    assert post.certified == "none"


def test_overflow_of_a_diverging_flow_is_refused():
    case = FIXTURES[1]
    with pytest.raises(Diverged, match="overflow"):
        td_posterior(*case.problem(case.values["T"]), t=1e4)


def _random_problem(seed: int, n: int = 7, duplicates: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    x[n - duplicates :] = x[:duplicates]
    y, test = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    p = rng.dirichlet(np.ones(5), size=n) * (rng.random(n) < 0.8)[:, None]
    return x, y, p, rng.normal(size=n), 0.5, test


def _kernel(a, b):
    return kernels(a, b, depth=2, sigma_w=1.5, sigma_b=0.3, nonlinearity="relu")


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(0, 2))
def test_late_times_of_flow_and_descent_reach_the_limit(seed, duplicates):
    """Three code paths: a linear solve, a matrix exponential, and repeated steps."""
    x, y, p, r, gamma, test = _random_problem(seed, duplicates=duplicates)
    limit = td_posterior(_kernel, x, y, p, r, gamma, test)
    flow = td_posterior(_kernel, x, y, p, r, gamma, test, t=1e6)
    delta = _kernel(x, x)[1] - gamma * p @ _kernel(y, x)[1]
    rate = 0.5 / np.linalg.norm(delta, 2)
    descent = td_posterior(_kernel, x, y, p, r, gamma, test, steps=10**7, learning_rate=rate)
    for late in (flow, descent):
        np.testing.assert_allclose(late.mean, limit.mean, atol=1e-6 * np.abs(limit.mean).max())
        np.testing.assert_allclose(late.cov, limit.cov, atol=1e-6 * np.abs(limit.cov).max())


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.01, 1.0, 30.0, np.inf]))
def test_covariances_are_positive_semidefinite(seed, t):
    x, y, p, r, gamma, test = _random_problem(seed)
    post = td_posterior(_kernel, x, y, p, r, gamma, np.concatenate([test, x, y]), t=t)
    spectrum = np.linalg.eigvalsh(post.cov)
    assert spectrum.min() > -1e-10 * spectrum.max()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6, 7, 64, 101])
def test_descent_is_the_loop_it_describes(steps):
    x, y, p, r, gamma, test = _random_problem(3)
    rate = 0.02
    rng = np.random.default_rng(0)
    f = rng.normal(size=len(test) + len(x) + len(y))
    points = np.concatenate([test, x, y])
    post = td_posterior(_kernel, x, y, p, r, gamma, test, steps=steps, learning_rate=rate)
    predicted = post.evolve(f[:4], f[4:11], f[11:])
    theta = _kernel(points, x)[1]
    for _ in range(steps):
        f = f - rate * theta @ (f[4:11] - gamma * p @ f[11:] - r)
    np.testing.assert_allclose(predicted, f[:4], rtol=1e-11, atol=1e-12)


def test_flow_is_the_differential_equation_it_describes():
    from scipy.integrate import solve_ivp

    x, y, p, r, gamma, test = _random_problem(5)
    f = np.random.default_rng(1).normal(size=16)
    theta = _kernel(np.concatenate([test, x, y]), x)[1]
    path = solve_ivp(
        lambda _, f: -theta @ (f[4:11] - gamma * p @ f[11:] - r), (0, 2.0), f, rtol=1e-10, atol=1e-12, method="LSODA"
    )
    post = td_posterior(_kernel, x, y, p, r, gamma, test, t=2.0)
    np.testing.assert_allclose(post.evolve(f[:4], f[4:11], f[11:]), path.y[:4, -1], rtol=1e-6, atol=1e-7)


def test_duplicates_average_their_rewards():
    """Two observations of one transition: the limit solves the Bellman equation for their mean reward."""
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    p = sp.csr_array((3, 1))
    post = td_posterior(_kernel, x, x[:1], p, np.array([1.0, 3.0, -1.0]), 0.9, x)
    np.testing.assert_allclose(post.mean, [2.0, 2.0, -1.0], rtol=1e-12)
    np.testing.assert_allclose(post.cov, 0.0, atol=1e-12)


def test_a_small_ridge_has_the_limit_of_duplicates():
    case = FIXTURES[2]
    problem = case.problem(case.values["T"])
    exact, ridged = td_posterior(*problem), td_posterior(*problem, ridge=1e-9)
    assert relative_to_max(ridged.mean, exact.mean) < 1e-7
    assert relative_to_max(ridged.cov, exact.cov) < 1e-7


def test_the_limit_on_duplicates_is_not_the_pseudo_inverse():
    """A duplicate whose copies bootstrap from different points: Moore-Penrose gives another function."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3))
    x[3] = x[0]
    y, r = rng.normal(size=(4, 3)), np.array([1.0, 2.0, 3.0, -1.0])
    post = td_posterior(_kernel, x, y, None, r, 0.9, x)
    theta, delta = _kernel(x, x)[1], _kernel(x, x)[1] - 0.9 * _kernel(y, x)[1]
    late = theta @ scipy.linalg.solve(delta + 1e-9 * np.eye(4), r)
    np.testing.assert_allclose(post.mean, late, rtol=1e-5)
    assert np.abs(theta @ np.linalg.pinv(delta, rcond=1e-12) @ r - late).max() > 1e-2


def test_gamma_zero_is_kernel_regression():
    x, y, p, r, _, test = _random_problem(11)
    post = td_posterior(_kernel, x, y, p, r, 0.0, test)
    k, theta = _kernel(x, x)
    k_t, theta_t = _kernel(test, x)
    b = theta_t @ np.linalg.inv(theta)
    np.testing.assert_allclose(post.mean, b @ r, rtol=1e-8)
    cov = _kernel(test, test)[0] - b @ k_t.T - k_t @ b.T + b @ k @ b.T
    np.testing.assert_allclose(post.cov, cov, rtol=1e-7, atol=1e-10)


def test_weights_may_be_dense_sparse_or_none():
    x, y, _, r, gamma, test = _random_problem(2)
    y = np.random.default_rng(3).normal(size=x.shape)
    rows = td_posterior(_kernel, x, y, None, r, gamma, test)
    for p in (np.eye(7), sp.eye_array(7, format="csr"), sp.eye_array(7, format="coo")):
        np.testing.assert_allclose(td_posterior(_kernel, x, y, p, r, gamma, test).cov, rows.cov, rtol=1e-10)


def test_blocks_give_the_same_posterior():
    x, y, p, r, gamma, test = _random_problem(4)
    blocks = kernel_blocks(_kernel, x, y, test)
    for time in ({}, {"t": 2.0}, {"steps": 5, "learning_rate": 0.01}, {"ridge": 0.1}):
        direct, given_blocks = (
            td_posterior(_kernel, x, y, p, r, gamma, test, **time),
            posterior_from_blocks(blocks, p, r, gamma, **time),
        )
        np.testing.assert_array_equal(direct.mean, given_blocks.mean)
        np.testing.assert_array_equal(direct.cov, given_blocks.cov)


def test_samples_have_the_stated_moments():
    case = TD_CASES[0]
    post = td_posterior(*case.problem(case.values["T"]))
    draws = post.sample(20_000, seed=0)
    error = np.sqrt(post.variance / len(draws))
    assert (np.abs(draws.mean(axis=0) - post.mean) < 5 * error).all()
    spread = np.abs(np.cov(draws.T) - post.cov) / np.sqrt(np.outer(post.variance, post.variance))
    assert spread.max() < 5 * np.sqrt(2 / len(draws))
    np.testing.assert_array_equal(draws, post.sample(20_000, seed=0))


def test_trained_networks_follow_the_formula():
    """48 networks of width 512 trained by somebody else: each is predicted from its own initial outputs."""
    case = CHAINS[0]
    run = load("ensemble_c0.npz")
    sizes = np.cumsum([len(case.values["T_a"]), len(case.X)])
    f0 = np.split(run["f0"].astype(float), sizes, axis=1)
    end = run["f_end"][:, : sizes[0]].astype(float)
    post = td_posterior(
        *case.problem(case.values["T_a"]), steps=int(run["gd_steps"]), learning_rate=float(run["gd_lr"])
    )
    predicted = post.evolve(*f0)
    moved = np.sqrt(np.mean((end - f0[0]) ** 2))
    assert np.sqrt(np.mean((end - predicted) ** 2)) < 0.15 * moved
    ratio = end.var(axis=0, ddof=1).mean() / predicted.var(axis=0, ddof=1).mean()
    assert abs(ratio - 1) < 0.08
    # Unpaired, the same 48 networks scatter around the law of Corollary 2 by sqrt(2 / 47) per independent point.
    assert abs(end.var(axis=0, ddof=1).mean() / post.variance.mean() - 1) < 4 * np.sqrt(2 / 47)


def test_uvu_errors_follow_the_posterior_with_synthetic_rewards():
    """Corollary 1 by simulation of the linear dynamics: u and g drawn from the prior, r_g from g."""
    x, y, p, r, gamma, test = _random_problem(8)
    post = td_posterior(_kernel, x, y, p, r, gamma, test, t=3.0)
    points = np.concatenate([test, x, y])
    prior = np.linalg.cholesky(_kernel(points, points)[0] + 1e-12 * np.eye(16))
    rng = np.random.default_rng(0)
    u0, g = (np.split(rng.standard_normal((40_000, 16)) @ prior.T, [4, 11], axis=1) for _ in range(2))
    u = post.evolve(*u0, reward=post.synthetic_reward(g[1], g[2]))
    half_square = 0.5 * (u - g[0]) ** 2
    error = half_square.std(axis=0) / np.sqrt(len(u))
    assert (np.abs(half_square.mean(axis=0) - post.variance) < 5 * error).all()
