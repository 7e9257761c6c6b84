"""Against scipy where scipy has it, against counting by hand and against known coverage where it has not."""

import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from uvax.errors import InvalidInput
from uvax.evaluation import statistics

few_values = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=40)


def paired(*elements):
    return st.integers(2, 40).flatmap(lambda n: st.tuples(*(st.lists(e, min_size=n, max_size=n) for e in elements)))


def test_t_interval_is_scipys():
    x = np.random.default_rng(0).normal(size=7)
    ours = statistics.mean_interval(x, level=0.9)
    low, high = scipy.stats.t.interval(0.9, df=6, loc=x.mean(), scale=scipy.stats.sem(x))
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-12)
    assert ours.half_width == pytest.approx((high - low) / 2)
    assert ours.n == 7


def test_t_interval_covers_at_its_level():
    """2,000 samples of five normals: 3.9 standard errors of the coverage are exceeded once in 10,000."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2_000, 5))
    inside = [(i := statistics.mean_interval(row)).low < 0 < i.high for row in x]
    assert abs(np.mean(inside) - 0.9) < 3.9 * math.sqrt(0.9 * 0.1 / 2_000)


def test_too_few_samples_have_no_interval_and_say_why():
    one = statistics.mean_interval([3.0])
    assert one.estimate == 3.0
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert "one sample" in one.note
    none = statistics.mean_interval([])
    assert math.isnan(none.estimate)
    assert none.note == "no samples"
    assert str(none) == "-"
    assert str(one) == "3"
    assert json.loads(json.dumps(none.row("x"), allow_nan=False)) == {
        "x": None,
        "x_low": None,
        "x_high": None,
        "x_n": 0,
    }


@given(n=st.integers(1, 500), data=st.data())
@settings(deadline=None)
def test_share_interval_is_wilsons(n, data):
    count = data.draw(st.integers(0, n))
    ours = statistics.share_interval(count, n)
    theirs = scipy.stats.binomtest(count, n).proportion_ci(0.9, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert 0 <= ours.low <= ours.estimate <= ours.high <= 1


def test_paired_difference_is_the_paired_t_test():
    rng = np.random.default_rng(2)
    luck = rng.normal(size=12)
    a, b = luck + 0.3 + 0.1 * rng.normal(size=12), luck + 0.1 * rng.normal(size=12)
    ours = statistics.paired_difference(a, b)
    theirs = scipy.stats.ttest_rel(a, b).confidence_interval(0.9)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.half_width < 0.3 * statistics.mean_interval(a).half_width


@given(few_values)
@settings(deadline=None)
def test_iqm_is_the_quarter_trimmed_mean(x):
    assert statistics.iqm(x) == pytest.approx(scipy.stats.trim_mean(x, 0.25), abs=1e-12)


def test_iqm_interval_resamples_within_tasks_only():
    """Two tasks without spread, far apart: resampling across tasks would spread, resampling within cannot."""
    still = statistics.iqm_interval({"easy": [1.0] * 5, "hard": [9.0] * 5})
    assert (still.estimate, still.low, still.high) == (5.0, 5.0, 5.0)
    assert statistics.iqm_interval([[1.0, 9.0]] * 5).low == 5.0


def test_iqm_interval_covers_at_about_its_level():
    """The percentile bootstrap is approximate: 25 runs of 2 tasks cover 80..97% at level 90%."""
    rng = np.random.default_rng(3)
    inside = []
    for _ in range(200):
        interval = statistics.iqm_interval(rng.normal(size=(25, 2)), resamples=200)
        inside.append(interval.low < 0 < interval.high)
    assert 0.80 < np.mean(inside) < 0.97


def test_ratio_interval_covers_at_about_its_level():
    """Of 500 intervals from 200 pairs, 90% cover the ratio 2 / 5 within four standard errors (5.4%)."""
    rng = np.random.default_rng(9)
    inside = []
    for _ in range(500):
        luck = rng.normal(size=200)
        interval = statistics.ratio_interval(2 + luck + rng.normal(size=200), 5 + 2 * luck)
        inside.append(interval.low < 0.4 < interval.high)
    assert abs(np.mean(inside) - 0.9) < 0.054
    assert statistics.ratio_interval([1.0, 2.0], [2.0, 4.0]).low == pytest.approx(0.5)
    assert "zero" in statistics.ratio_interval([0.0, 0.0], [1.0, -1.0]).note


def test_iqm_interval_is_reproducible_and_names_the_task_with_one_run():
    x = np.random.default_rng(4).normal(size=(10, 3))
    assert statistics.iqm_interval(x, seed=5) == statistics.iqm_interval(x, seed=5)
    assert statistics.iqm_interval(x, seed=5) != statistics.iqm_interval(x, seed=6)
    short = statistics.iqm_interval({"size 5": [1.0, 2.0], "size 6": [3.0]})
    assert math.isnan(short.low)
    assert "size 6" in short.note


def test_area_under_curve():
    assert statistics.area_under_curve([0, 1, 3], [0.0, 2.0, 2.0]) == pytest.approx(5 / 3)
    many = statistics.area_under_curve(range(6), np.ones((3, 6)))
    np.testing.assert_array_equal(many, np.ones(3))


@given(paired(st.integers(-3, 3).map(float), st.integers(-3, 3).map(float)))
@settings(deadline=None)
def test_spearman_with_ties_is_scipys(xy):
    x, y = xy
    ours = statistics.spearman(x, y)
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)


@given(paired(st.integers(-3, 3).map(float), st.booleans()))
@settings(deadline=None)
def test_auroc_with_ties_counts_pairs(xp):
    x, positive = np.asarray(xp[0]), np.asarray(xp[1])
    ours = statistics.auroc(x, positive)
    if positive.all() or not positive.any():
        assert math.isnan(ours)
        return
    pairs = x[positive][:, None] - x[~positive][None]
    assert ours == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)), abs=1e-12)
    u = scipy.stats.mannwhitneyu(x[positive], x[~positive]).statistic
    assert ours == pytest.approx(u / pairs.size, abs=1e-12)


@given(paired(st.integers(-2, 2).map(float), st.integers(-2, 2).map(float), st.booleans(), st.integers(0, 3)))
@settings(deadline=None)
def test_a_resample_by_multiplicities_is_the_repeated_sample(sample):
    """The bootstrap never builds a resample: its statistics take how often each item was drawn."""
    x, y, positive, times = (np.asarray(column) for column in sample)
    if times.sum() < 2:
        return
    weights = times.astype(float)
    rx, ry, rp = (np.repeat(column, times) for column in (x, y, positive))
    assert statistics._spearman(statistics._codes(x), statistics._codes(y), weights) == pytest.approx(
        statistics.spearman(rx, ry), abs=1e-12, nan_ok=True
    )
    assert statistics._auroc(statistics._codes(x), positive, weights) == pytest.approx(
        statistics.auroc(rx, rp), abs=1e-12, nan_ok=True
    )


def test_clusters_widen_the_interval_as_they_should():
    """Samples repeated ten times carry no news: the naive interval shrinks by sqrt(10), the clustered not."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)
    once = statistics.spearman_interval(x, y, resamples=400)
    label = np.repeat(np.arange(200), 10)
    clustered = statistics.spearman_interval(np.repeat(x, 10), np.repeat(y, 10), cluster=label, resamples=400)
    naive = statistics.spearman_interval(np.repeat(x, 10), np.repeat(y, 10), resamples=400)
    assert clustered.half_width == pytest.approx(once.half_width, rel=0.2)
    assert naive.half_width == pytest.approx(once.half_width / math.sqrt(10), rel=0.3)
    assert once.low < once.estimate < once.high
    # Population value for correlation sqrt(1/2) under normality: (6 / pi) asin(rho / 2) = 0.690
    assert once.low < 6 / math.pi * math.asin(math.sqrt(0.5) / 2) < once.high


def test_auroc_interval_covers_the_known_value():
    """Normals one deviation apart: AUROC = Phi(1 / sqrt 2). Of 100 intervals 80..98 cover it (p > 0.99)."""
    truth = scipy.stats.norm.cdf(1 / math.sqrt(2))
    rng = np.random.default_rng(8)
    positive = np.arange(120) % 2 == 0
    inside = 0
    for _ in range(100):
        i = statistics.auroc_interval(rng.normal(size=120) + positive, positive, resamples=200)
        inside += i.low < truth < i.high
    assert 80 <= inside <= 98


def test_what_has_no_answer_says_why():
    constant = statistics.spearman_interval([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    assert math.isnan(constant.estimate)
    assert "different values" in constant.note
    assert "one positive" in statistics.auroc_interval([1.0, 2.0], np.array([True, True])).note
    one_board = statistics.spearman_interval([1.0, 2.0, 3.0], [1.0, 3.0, 2.0], cluster=[0, 0, 0])
    assert one_board.estimate == pytest.approx(0.5)
    assert "one cluster" in one_board.note


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: statistics.mean_interval([1.0, math.nan]), "samples must be finite, got 1 NaN"),
        (lambda: statistics.mean_interval(np.ones((3, 1))), "one-dimensional, got shape"),
        (lambda: statistics.mean_interval([1.0, 2.0], level=90), "level must lie between 0 and 1"),
        (lambda: statistics.paired_difference([1.0, 2.0], [1.0]), "same length, got 2 and 1"),
        (lambda: statistics.share_interval(3, 2), "count must lie in 0..n"),
        (lambda: statistics.iqm([]), "at least one number"),
        (lambda: statistics.iqm_interval({"a": []}), "at least one score per task"),
        (lambda: statistics.area_under_curve([0, 0, 1], [1, 1, 1]), "strictly rising"),
        (lambda: statistics.area_under_curve([0, 1], [1, 1, 1]), "as long as x"),
        (lambda: statistics.spearman([1.0], [1.0, 2.0]), "same length"),
        (lambda: statistics.auroc([1.0, 2.0], [1, 0]), "boolean vector"),
        (lambda: statistics.auroc_interval([1.0, 2.0], [True, False], cluster=[1]), "one label per sample"),
    ],
)
def test_wrong_input_is_one_sentence(call, sentence):
    with pytest.raises(InvalidInput, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)
