"""Corollary 2: finite estimators follow scaled chi-square laws."""

import numpy as np
import pytest
import scipy.stats
from theory_oracle import TD_CASES

from uvax.errors import InvalidInput
from uvax.theory import Gaussian, ensemble_law, head_law, td_posterior


def test_heads_and_ensembles_have_the_same_law():
    case = TD_CASES[0]
    post = td_posterior(*case.problem(case.values["T"]))
    m, runs = 5, 10_000
    errors = post.uvu_error().sample(runs * m, seed=0).reshape(runs, m, -1)
    from_heads = 0.5 * np.mean(errors**2, axis=1)
    members = post.sample(runs * (m + 1), seed=1).reshape(runs, m + 1, -1)
    from_members = members.var(axis=1, ddof=1)
    heads, ensemble = head_law(post.variance, heads=m), ensemble_law(post.variance, members=m + 1)
    for estimate, law in ((from_heads, heads), (from_members, ensemble)):
        assert law.dof == m
        for point in range(estimate.shape[1]):
            uniform = law.cdf(estimate)[:, point]
            assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-4
    # One degree of freedom more is told apart, so the test above has power.
    assert scipy.stats.kstest(head_law(post.variance, heads=m + 1).cdf(from_heads)[:, 0], "uniform").pvalue < 1e-4


def test_quantiles_invert_the_distribution():
    law = head_law(np.array([0.5, 2.0]), heads=3)
    for q in (0.05, 0.5, 0.95):
        np.testing.assert_allclose(law.cdf(law.quantile(q)), q, rtol=1e-12)
    np.testing.assert_allclose(law.quantile(np.array([[0.1], [0.9]])).shape, (2, 2))
    draws = law.sample(50_000, seed=0)
    np.testing.assert_allclose(draws.mean(axis=0), law.mean, rtol=0.02)
    np.testing.assert_allclose(draws.std(axis=0), law.std, rtol=0.02)


def test_a_known_value():
    """One head: eps^2 / 2 with eps ~ N(0, 2) is chi-square with one degree of freedom, median 0.4549."""
    assert head_law(np.array([1.0]), heads=1).quantile(0.5)[0] == pytest.approx(0.454936, abs=1e-6)


def test_singular_covariances_can_be_sampled():
    draws = Gaussian(np.array([1.0, 2.0]), np.ones((2, 2))).sample(100, seed=0)
    np.testing.assert_allclose(draws[:, 1] - draws[:, 0], 1.0, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: head_law(np.array([-1.0]), 3), "variance"),
        (lambda: head_law(np.array([1.0]), 0), "heads is 0"),
        (lambda: ensemble_law(np.array([1.0]), 1), "members is 1"),
        (lambda: head_law(np.array([1.0]), 2).quantile(1.5), "q is 1.5"),
        (lambda: Gaussian(np.zeros(1), np.eye(1)).sample(0, seed=0), "n is 0"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InvalidInput, match=words):
        call()
