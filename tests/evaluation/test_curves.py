"""Rejection curves and calibration from small tables, worked by hand or by other code."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from uvax.errors import InvalidInput
from uvax.evaluation import calibration, rejection_curve

tables = st.tuples(st.integers(1, 6), st.integers(2, 6)).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float64, shape, elements=st.integers(0, 12).map(float)),
        st.integers(0, 2**31).map(
            lambda seed: np.argsort(np.random.default_rng(seed).random(shape), axis=1),
        ),
    )
)


def test_a_curve_by_hand():
    """Two boards, three tasks; the method keeps task 2, then 0; the oracle the best ones."""
    returns = np.array([[1.0, 0.0, 5.0], [9.0, 3.0, 0.0]])
    order = np.array([[2, 0, 1], [2, 0, 1]])
    curve = rejection_curve(returns, order)
    assert [p.estimate for p in curve.method] == [3.0, (3.0 + 4.5) / 2, 2.5]
    assert [p.estimate for p in curve.random] == [3.0, 3.0, 3.0]
    assert [p.estimate for p in curve.oracle] == [3.0, (3.0 + 6.0) / 2, 7.0]
    assert curve.area.estimate == pytest.approx((3.0 + 2 * 3.75 + 2.5) / 4)
    assert curve.area_random.estimate == 3.0
    assert curve.area_oracle.estimate == pytest.approx((3.0 + 2 * 4.5 + 7.0) / 4)
    assert curve.gain.estimate == pytest.approx((3.25 - 3.0) / (4.75 - 3.0))


@given(tables)
@settings(deadline=None)
def test_what_holds_for_every_curve(table):
    returns, order = table
    curve = rejection_curve(returns, order)
    worst = rejection_curve(returns, np.argsort(returns, axis=1, kind="stable"))
    method, oracle, lowest = (
        np.array([p.estimate for p in points]) for points in (curve.method, curve.oracle, worst.method)
    )
    assert method[0] == pytest.approx(returns.mean())
    assert curve.method[0].estimate == pytest.approx(curve.random[0].estimate)
    assert (oracle >= method - 1e-9).all()
    assert (method >= lowest - 1e-9).all()
    assert (np.diff(oracle) >= -1e-9).all()
    assert oracle[-1] == pytest.approx(returns.max(axis=1).mean())
    last = np.take_along_axis(returns, order[:, :1], axis=1)
    assert method[-1] == pytest.approx(last.mean())
    assert worst.area.estimate - 1e-9 <= curve.area.estimate <= curve.area_oracle.estimate + 1e-9


def test_the_oracle_gains_everything_and_random_orders_gain_nothing():
    rng = np.random.default_rng(0)
    returns = rng.integers(0, 12, size=(4_000, 6)).astype(float)
    perfect = rejection_curve(returns, np.argsort(-returns, axis=1))
    assert perfect.gain.estimate == pytest.approx(1)
    assert perfect.gain.half_width == pytest.approx(0, abs=1e-12)
    blind = rejection_curve(returns, np.argsort(rng.random(returns.shape), axis=1))
    assert abs(blind.gain.estimate) < 4 * blind.gain.half_width / 1.65


def test_returns_that_are_all_alike_leave_nothing_to_gain():
    curve = rejection_curve(np.zeros((10, 6)), np.tile(np.arange(6), (10, 1)))
    assert math.isnan(curve.gain.estimate)
    assert curve.row()["gain"] is None
    assert curve.row()["area"] == 0.0
    curve.table()


@pytest.mark.parametrize(
    ("returns", "order", "sentence"),
    [
        (np.zeros(6), np.arange(6), "returns must be"),
        (np.zeros((2, 3)), np.zeros((2, 3), int), "order must list each board's 3 tasks once"),
        (np.zeros((2, 3)), np.tile(np.arange(3), (1, 1)), "order must list"),
    ],
)
def test_bad_tables_are_refused(returns, order, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        rejection_curve(returns, order)


def test_calibration_by_hand():
    """Three boards, one impossible task each. Fails: return below half the best, and the impossible ones."""
    best = np.array([[2.0, 0.0, 2.0], [2.0, 2.0, 0.0], [0.0, 2.0, 2.0]])
    returns = np.array([[2.0, 0.0, 0.9], [1.0, 0.0, 0.0], [0.0, 2.5, 1.5]])
    value = np.array([[1.9, 0.5, 1.9], [1.2, 1.0, 0.6], [0.7, 2.1, 1.8]])
    uncertainty = np.array([[0.1, 0.5, 0.9], [0.2, 1.0, 0.6], [0.7, 0.25, 0.3]])
    result = calibration(value, uncertainty, returns, best)
    failed = np.array([[False, True, True], [False, True, True], [True, False, False]])
    assert result.every.failures.estimate == pytest.approx(5 / 9)
    assert result.possible.failures.estimate == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert result.every.failure_auroc.estimate == 1.0
    assert uncertainty[failed].min() > uncertainty[~failed].max()
    error = np.abs(value - returns)
    for group, mask in ((result.every, best >= 0), (result.possible, best > 0)):
        expected = scipy.stats.spearmanr(uncertainty[mask], error[mask]).statistic
        assert group.rank_correlation.estimate == pytest.approx(expected)
        assert group.rank_correlation.low <= expected <= group.rank_correlation.high
    assert result.every.value_bias.estimate == pytest.approx((value - returns).mean())
    assert result.every.value_error.estimate == pytest.approx(error.mean())


def test_a_return_of_exactly_half_the_best_is_no_failure():
    ones = np.ones((2, 2))
    result = calibration(ones, np.array([[0.0, 1.0], [2.0, 3.0]]), 0.5 * ones, ones)
    assert result.every.failures.estimate == 0
    assert "one positive" in result.every.failure_auroc.note


def test_calibration_refuses_shapes_that_would_broadcast():
    with pytest.raises(InvalidInput, match=r"must all be \[boards, tasks\]"):
        calibration(np.ones((3, 2)), np.ones((3, 1)), np.ones((3, 2)), np.ones((3, 2)))
