"""When TD converges: fixtures with known answers, every status, and the cheap certificates against full spectra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_oracle import CHAINS, FIXTURES, TD_CASES, by_name

from uvax.errors import Diverged
from uvax.theory import indicator_kernel, kernels, spectrum, stability, td_posterior


def linear(a, b):
    return a @ b.T, a @ b.T


def relu(a, b):
    return kernels(a, b, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu")


@pytest.mark.parametrize("case", FIXTURES, ids=by_name)
def test_fixtures(case):
    report = stability(*case.dynamics)
    v = case.values
    assert report.converges is bool(v["converges"])
    np.testing.assert_allclose(report.eigenvalues, v["eig"], atol=1e-12)
    np.testing.assert_allclose(report.reduced_eigenvalues, v["reduced_eig"], atol=1e-12)
    np.testing.assert_allclose(report.symmetric_min, v["sym_eig"][0], atol=1e-12)
    assert report.rank == len(v["reduced_eig"])
    assert report.gershgorin[0] <= v["eig"].real.min() + 1e-12
    assert report.gershgorin[1] >= v["eig"].real.max() - 1e-12


@pytest.mark.parametrize(
    ("index", "kind", "words"),
    [
        (0, "converges", "positive definite"),
        (1, "diverges", "grow at least like exp(3.2 t)"),
        (2, "converges_singular", "1 duplicate"),
        (3, "converges_not_definite", "although Delta is not positive definite"),
    ],
)
def test_every_fixture_has_its_status(index, kind, words):
    report = stability(*FIXTURES[index].dynamics)
    assert report.kind == kind
    assert words in report.status
    assert str(report).startswith(report.status)


@pytest.mark.parametrize("case", CHAINS, ids=by_name)
def test_the_papers_chain_converges_without_being_positive_definite(case):
    report = stability(*case.dynamics)
    assert report.kind == "converges_not_definite"
    assert report.rate == pytest.approx(float(case.values["min_re_eig"]), rel=1e-9)
    assert report.symmetric_min == pytest.approx(float(case.values["sym_min_eig"]), rel=1e-9)
    assert np.abs(report.eigenvalues).max() == pytest.approx(float(case.values["max_abs_eig"]), rel=1e-9)


@pytest.mark.parametrize("case", TD_CASES, ids=by_name)
def test_spectra_of_the_td_cases(case):
    report = stability(*case.dynamics)
    assert report.converges is bool(case.values["stable"])
    np.testing.assert_allclose(report.eigenvalues, case.values["eig"], rtol=1e-8, atol=1e-10)
    assert report.symmetric_min == pytest.approx(case.values["sym_eig"][0], rel=1e-8, abs=1e-10)


def test_marginal():
    one = np.array([[1.0]])
    report = stability(linear, one, 2.0 * one, None, 0.5)
    assert report.kind == "marginal"
    assert report.converges is False
    with pytest.raises(Diverged, match="does not settle"):
        td_posterior(linear, one, 2.0 * one, None, np.array([1.0]), 0.5, one)


def test_advice_works():
    """Every remedy named for a divergent problem is tried again from outside."""
    x, y = np.array([[1.0, 0.2], [0.1, 1.0]]), np.array([[3.0, 0.5], [0.2, 2.0]])
    report = stability(linear, x, y, None, 0.9)
    assert report.kind == "diverges"
    ridge = 1.01 * -report.eigenvalues.real.min()
    assert f"{ridge / 1.01:.3g}" in report.advice[0]
    assert stability(linear, x, y, None, 0.9, ridge=ridge).converges
    assert not stability(linear, x, y, None, 0.9, ridge=0.95 * ridge).converges
    gamma = float(report.advice[1].split()[-1].rstrip("."))
    assert stability(linear, x, y, None, gamma).converges
    assert not stability(linear, x, y, None, gamma + 0.01).converges

    def normalised(a, b):
        a, b = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (a, b))
        return a @ b.T, a @ b.T

    promised = "So do gradients of equal norm" in report.advice[2]
    assert stability(normalised, x, y, None, 0.9).converges is promised


@pytest.mark.parametrize("case", [FIXTURES[0], FIXTURES[2], CHAINS[0]], ids=by_name)
def test_the_largest_learning_rate_separates_decay_from_growth(case):
    rate = stability(*case.dynamics).max_learning_rate
    assert stability(*case.dynamics, learning_rate=0.99 * rate).converges
    beyond = stability(*case.dynamics, learning_rate=1.01 * rate)
    assert beyond.kind == "diverges_at_rate"
    assert beyond.converges is False
    assert f"below {rate:.3g}" in beyond.advice[0]
    problem = (case.kernel, case.X, case.Y, case.P, case.reward, case.gamma, case.X)
    limit = np.abs(td_posterior(*problem).gain).max()
    inside = td_posterior(*problem, steps=4_000, learning_rate=0.99 * rate)
    outside = td_posterior(*problem, steps=4_000, learning_rate=1.01 * rate)
    assert np.abs(inside.gain).max() < 2 * limit
    assert np.abs(outside.gain).max() > 100 * limit


def test_modes_are_the_slowest_td_errors():
    case = CHAINS[0]
    report = stability(*case.dynamics, modes=3)
    delta = case.kernel(case.X, case.X)[1] - case.gamma * case.P @ case.kernel(case.Y, case.X)[1]
    assert report.modes.shape == (len(case.X), 3)
    np.testing.assert_allclose(delta @ report.modes, report.modes * report.eigenvalues[:3], atol=1e-11)


def test_rank_deficiency_without_duplicates():
    """More points than a linear kernel has features: Delta is singular, TD converges on the range."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 3)), 0.3 * rng.normal(size=(9, 3))
    report = stability(linear, x, y, None, 0.5)
    assert (report.kind, report.rank, report.duplicates) == ("converges_singular", 3, 0)
    assert "cannot tell apart" in report.status
    post = td_posterior(linear, x, y, None, rng.normal(size=9), 0.5, x)
    # LSTD: w = (x^T (x - gamma y))^-1 x^T r.
    weights = np.linalg.solve(x.T @ (x - 0.5 * y), x.T @ post.reward)
    np.testing.assert_allclose(post.mean, x @ weights, rtol=1e-9)


def test_range_of_many_rows_by_pivoted_cholesky():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(90, 40))
    theta = features @ features.T
    basis = spectrum.range_basis(theta, limit=10)
    assert basis.shape == (90, 40)
    np.testing.assert_allclose(basis.T @ basis, np.eye(40), atol=1e-12)
    np.testing.assert_allclose(basis @ (basis.T @ theta), theta, atol=1e-10)


def test_contraction_is_a_matter_of_the_symmetric_part_in_the_inner_product_of_theta():
    rng = np.random.default_rng(2)
    found = set()
    for scale in (0.5, 1.0, 1.5, 2.5):
        x = rng.normal(size=(30, 4))
        theta = relu(x, x)[1]
        a = theta - 0.95 * relu(scale * x[rng.permutation(30)], x)[1]
        weighted = theta @ a + a.T @ theta
        expected = bool(np.linalg.eigvalsh(weighted).min() > 0)
        assert spectrum.is_contraction(a, theta) is expected
        for order in ("C", "F"):
            assert spectrum.is_contraction(a.copy(order), theta.copy(order), overwrite=True) is expected
            assert spectrum.is_positive_definite(a.copy(order), overwrite=True) is spectrum.is_positive_definite(a)
        if expected:
            assert np.linalg.eigvals(a).real.min() > 0
        found.add(expected)
    assert found == {True, False}


def _rotated(values: np.ndarray, pairs: list[complex], seed: int) -> np.ndarray:
    """A real matrix with these eigenvalues, mildly non-normal."""
    n = len(values) + 2 * len(pairs)
    a = np.zeros((n, n))
    a[range(len(values)), range(len(values))] = values
    for i, z in enumerate(pairs):
        j = len(values) + 2 * i
        a[j : j + 2, j : j + 2] = [[z.real, z.imag], [-z.imag, z.real]]
    rng = np.random.default_rng(seed)
    basis = np.eye(n) + 0.8 * rng.normal(size=(n, n)) / np.sqrt(n)
    return basis @ a @ np.linalg.inv(basis)


@pytest.mark.parametrize("bad", [None, -0.02 + 0j, -0.1 + 5j, -1.0 + 0.3j, -3.0 + 20j, -0.5 + 90j])
def test_arnoldi_finds_what_would_diverge(bad):
    """Among 150 stable eigenvalues over five decades, one unstable pair, wherever it hides."""
    values = np.geomspace(1e-3, 100.0, 150)
    a = _rotated(values, [bad] if bad is not None else [0.05 + 3j], seed=0)
    decision = spectrum.decide(a, np.eye(len(a)), limit=0)
    assert decision.method == "arnoldi"
    assert decision.kind == ("stable" if bad is None else "divergent")
    if bad is not None:
        assert decision.leftmost.real == pytest.approx(bad.real, rel=1e-6)


def test_arnoldi_settles_real_problems():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 6))
    for scale, expected in ((1.0, True), (3.0, False)):
        y = scale * x[rng.permutation(150)]
        whole = stability(relu, x, y, None, 0.97)
        part = stability(relu, x, y, None, 0.97, spectrum_limit=0)
        assert whole.converges is expected
        assert part.converges is expected
        # Next points spread like the points: a contraction in the inner product of Theta, proved by a Cholesky.
        assert part.method == ("cholesky" if expected else "arnoldi")
        assert not part.complete
        nearest = whole.eigenvalues[np.argsort(np.abs(whole.eigenvalues))[: len(part.eigenvalues)]]
        np.testing.assert_allclose(np.sort(np.abs(part.eigenvalues)), np.sort(np.abs(nearest)), rtol=1e-5)


def test_undecided_raises_unless_told_otherwise(monkeypatch):
    case = CHAINS[0]
    monkeypatch.setattr(spectrum, "decide", lambda *a, **k: spectrum.Decision("undecided", "arnoldi"))
    problem = case.problem(case.values["T_a"])
    with pytest.raises(Diverged, match=r"undecided.*check=False"):
        td_posterior(*problem)
    monkeypatch.undo()
    free, checked = td_posterior(*problem, check=False), td_posterior(*problem)
    assert free.certified == "none"
    np.testing.assert_allclose(free.mean, checked.mean, rtol=1e-12)


def test_undecided_when_arnoldi_does_not_converge(monkeypatch):
    monkeypatch.setattr(
        spectrum, "_arnoldi", lambda op, k: (np.empty(0, complex), np.empty((op.shape[0], 0), complex), False)
    )
    a = _rotated(np.geomspace(1e-3, 100.0, 90), [0.05 + 30j], 3)
    assert spectrum.decide(a, np.eye(len(a)), limit=0).kind == "undecided"


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.0, 0.99), st.floats(0.3, 2.0))
def test_the_verdict_is_what_the_flow_does(seed, gamma, scale):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, 3))
    y = scale * rng.normal(size=(6, 3))
    report = stability(relu, x, y, None, gamma)
    if abs(report.rate) < 0.01:
        return
    theta = relu(x, x)[1]
    start = np.linalg.norm(theta)
    delta = theta - gamma * relu(y, x)[1]
    from scipy.linalg import expm

    late = np.linalg.norm(expm(-delta * (60.0 / abs(report.rate))) @ theta)
    assert report.converges is bool(late < 1e-3 * start)


def test_a_table_always_converges_on_its_own_policy():
    """On-policy, every next point in the data: Delta = I - gamma P, whose eigenvalues lie within gamma of one."""
    rng = np.random.default_rng(0)
    x = np.eye(5)
    report = stability(indicator_kernel, x, x, rng.dirichlet(np.ones(5), size=5), 0.99)
    assert report.converges
    assert np.abs(report.eigenvalues - 1).max() <= 0.99 + 1e-9
