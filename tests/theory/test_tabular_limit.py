"""Tables: values one can say aloud, and the same numbers through the kernel formulas."""

import doctest
import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvax.errors import InvalidInput
from uvax.theory import indicator_kernel, tabular_td, tabular_uvu, tabular_values, td_posterior


def test_two_steps():
    """Reward 1 at the end of two steps: values gamma and 1; the other action stays and is worth less."""
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 1] = transition[0, 1, 0] = transition[1, 1, 1] = 1.0  # (1, 0) terminates
    reward = np.array([[0.0, 0.0], [1.0, 0.0]])
    forward = np.array([[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(tabular_values(transition, reward, forward, 0.7), [[0.7, 0.49], [1.0, 0.7]], rtol=1e-12)


def test_the_papers_chain():
    """Figure toy_viz: with full trajectories u recovers g; an unseen action chosen later leaves an error before it."""
    n, gamma = 4, 0.7
    entries = 2 * n  # (s, a) at 2 s, (s, b) at 2 s + 1; only a was seen
    seen = np.arange(entries) % 2 == 0
    rng = np.random.default_rng(0)
    u0, g = rng.normal(size=(2, 4, entries))
    follow = np.zeros((entries, entries))
    for s in range(n - 1):
        follow[2 * s, 2 * (s + 1)] = 1.0
    u = tabular_uvu(u0, g, follow, seen, gamma)
    np.testing.assert_allclose(u[:, seen], g[:, seen], rtol=1e-12)
    np.testing.assert_array_equal(u[:, ~seen], u0[:, ~seen])

    astray = follow.copy()
    astray[2] = 0.0
    astray[2, 5] = 1.0  # after (s1, a), action b in s2
    u = tabular_uvu(u0, g, astray, seen, gamma)
    gap = u0[:, 5] - g[:, 5]
    np.testing.assert_allclose(u[:, 2] - g[:, 2], gamma * gap, rtol=1e-9)
    np.testing.assert_allclose(u[:, 0] - g[:, 0], gamma**2 * gap, rtol=1e-9)
    np.testing.assert_allclose(u[:, [4, 6]], g[:, [4, 6]], rtol=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.0, 0.95))
def test_a_table_is_the_td_posterior_of_the_indicator_kernel(seed, seen_count, gamma):
    rng = np.random.default_rng(seed)
    size = 6
    points = np.eye(size)
    p = rng.dirichlet(np.ones(size), size=size) * (rng.random(size) < 0.8)[:, None]
    seen = np.arange(size) < seen_count
    r = rng.normal(size=size)
    post = td_posterior(indicator_kernel, points[seen], points, p[seen], r[seen], gamma, points)
    np.testing.assert_allclose(post.mean, tabular_td(np.zeros(size), p, r, seen, gamma), atol=1e-10)
    # tabular_td is linear in f0, whose entries are independent with variance one: columns give the covariance.
    response = tabular_td(np.eye(size), p, np.zeros(size), seen, gamma)
    np.testing.assert_allclose(post.cov, response.T @ response, atol=1e-10)


def test_bad_tables():
    with pytest.raises(InvalidInput, match="seen has shape"):
        tabular_td(np.zeros(3), np.eye(3), np.zeros(3), np.ones(2, bool), 0.5)
    with pytest.raises(InvalidInput, match="sums to 2"):
        tabular_values(2 * np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)), 0.5)
    with pytest.raises(InvalidInput, match="expected"):
        tabular_values(np.ones((1, 1, 1)), np.ones((2, 1)), np.ones((1, 1)), 0.5)


@pytest.mark.parametrize("module", ["kernels", "td", "laws", "stability", "tabular", "empirical"])
def test_docstring_examples(module):
    found = doctest.testmod(importlib.import_module(f"uvax.theory.{module}"))
    assert found.attempted > 0
    assert found.failed == 0
