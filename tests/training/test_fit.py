"""The training loop: what it computes, when it evaluates, how it stops."""

import inspect
import re
import signal
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvax.errors import InvalidInput
from uvax.estimators import BDQNP, DQN, RND, UVU, Policy
from uvax.training import TrainingDiverged, TrainingInterrupted, fit, loop
from uvax.training.schedule import make_schedule

STEPS = 20


def by_hand(estimator, data, steps, seed):
    """The documented randomness, one step at a time."""
    init_key, rows_key, update_key = jax.random.split(jax.random.key(seed), 3)
    state = estimator.init(data.spec, key=init_key)
    whole = data.batch(estimator.gamma)
    losses = []
    update = jax.jit(lambda state, batch, key: estimator.update(state, batch, key=key))
    for i in range(steps):
        batch = whole
        if estimator.batch_size is not None:
            rows = jax.random.randint(jax.random.fold_in(rows_key, i), (estimator.batch_size,), 0, len(data))
            batch = jax.tree.map(lambda x, rows=rows: x[rows], whole)
        state, metrics = update(state, batch, jax.random.fold_in(update_key, i))
        losses.append(float(metrics["loss"]))
    return state, losses


@pytest.mark.parametrize("batch_size", [8, None])
def test_fit_is_the_loop_one_would_write(data, linear, batch_size):
    estimator = linear(batch_size=batch_size)
    expected, losses = by_hand(estimator, data, STEPS, seed=5)
    got = fit(estimator, data, STEPS, seed=5, log_every=7, progress=False)
    np.testing.assert_allclose(got.state["w"], expected["w"], rtol=1e-5, atol=1e-6)
    assert int(got.state["step"]) == got.steps == STEPS
    assert [row["step"] for row in got.log] == [7, 14, 20]
    means = [np.mean(part) for part in (losses[:7], losses[7:14], losses[14:])]
    np.testing.assert_allclose([row["loss"] for row in got.log], means, rtol=1e-5)
    assert got.status.name == "finished"
    assert (got.best.step, got.best.score) == (STEPS, None)


def test_rows_in_order_of_their_actions_are_the_same_batch(data):
    """For many heads, `fit` sorts the rows of a batch; the loop by hand does not."""
    estimator = UVU(width=16, depth=1, heads=20, batch_size=24, target_period=4)
    assert estimator.by_action
    assert not UVU(heads=4).by_action
    expected, losses = by_hand(estimator, data, STEPS, seed=3)
    got = fit(estimator, data, STEPS, seed=3, log_every=STEPS, progress=False)
    np.testing.assert_allclose(got.log[0]["loss"], np.mean(losses), rtol=1e-4)
    for a, b in zip(jax.tree.leaves(got.state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)


def test_a_method_that_asks_for_it_is_told_the_order(data, linear):
    class ByAction(type(linear())):
        by_action = True

        def update(self, state, batch, *, key):
            state, metrics = super().update(state, batch, key=key)
            if batch.groups is None:  # while the contract is checked
                return state, metrics
            wrong = jnp.sum(jnp.diff(batch.action) < 0) + jnp.sum(
                jnp.abs(jnp.bincount(batch.action, length=3) - batch.groups.counts)
            )
            return state, {**metrics, "wrong": wrong.astype(jnp.float32), "told": jnp.float32(1)}

    got = fit(ByAction(batch_size=30), data, STEPS, log_every=STEPS, progress=False)
    assert (got.log[0]["told"], got.log[0]["wrong"]) == (1, 0)
    plain = fit(linear(batch_size=30), data, STEPS, log_every=STEPS, progress=False)
    # The same rows: their rewards have the same mean, though sampled next actions are those of other rows.
    assert got.log[0]["loss"] != plain.log[0]["loss"]
    np.testing.assert_allclose(got.log[0]["loss"], plain.log[0]["loss"], rtol=0.2)


def test_same_seed_same_bits_whatever_the_chunks(data, linear, same):
    first = fit(linear(), data, STEPS, seed=1, log_every=5, progress=False)
    same(first.state, fit(linear(), data, STEPS, seed=1, log_every=5, progress=False).state)
    for log_every in (4, 20):
        same(first.state, fit(linear(), data, STEPS, seed=1, log_every=log_every, progress=False).state)
    other = fit(linear(), data, STEPS, seed=2, log_every=5, progress=False)
    assert not np.array_equal(first.state["w"], other.state["w"])


def test_the_batch_has_the_promised_dtypes_and_the_data_stay_compact(data, linear):
    seen = []

    @dataclass(frozen=True)
    class Watching(linear):
        def update(self, state, batch, *, key):
            seen.append(jax.tree.map(lambda x: (x.dtype.name, x.shape), batch))
            return super().update(state, batch, key=key)

    fit(Watching(), data, 1, progress=False)
    batch = seen[-1]
    assert batch.obs == batch.next_obs == ("int8", (8, 4))
    assert batch.task == ("float32", (8, 2))
    assert batch.action == ("int32", (8,))
    assert batch.reward == batch.discount == ("float32", (8,))
    stored = loop.Trainer(linear(), data, [0], stacked=False)._data
    rows = stored.slice(0, len(data))
    assert (rows.obs.dtype, rows.task.dtype, rows.action.dtype) == (jnp.int8, jnp.int8, jnp.int8)
    assert stored.words.nbytes == len(data) * 4 * (1 + 1 + 1 + 1 + 1 + 1)  # 4 + 2 + 1 + 4 + 4 + 4 bytes in whole words
    np.testing.assert_array_equal(rows.discount, data.batch(0.9).discount)


@pytest.mark.slow
def test_theorem_1_setting_is_gradient_descent_on_all_transitions(data):
    """An ensemble without priors, NTK networks f(s, a, z), a given policy, no target network, plain SGD, full batch."""
    uniform = Policy(lambda obs, task: jnp.full((*obs.shape[:-1], 3), 1 / 3))
    setting = {"network": "mlp", "optimiser": "sgd", "batch_size": None, "target_period": 0, "bootstrap": uniform}
    estimator = BDQNP(members=2, prior_scale=0.0, width=16, depth=1, **setting)
    expected, _ = by_hand(estimator, data, 5, seed=0)
    got = fit(estimator, data, 5, progress=False)
    assert got.state.target is None
    for x, y in zip(jax.tree.leaves(got.state.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


SMALL = {
    "dqn": DQN(width=16, depth=1, batch_size=32),
    "bdqnp": BDQNP(members=2, width=16, depth=1, batch_size=32),
    "rnd": RND(heads=4, width=16, depth=1, batch_size=32),
    "uvu": UVU(heads=4, width=16, depth=1, batch_size=32),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_many_seeds_equal_single_runs(data, name):
    together = fit(SMALL[name], data, STEPS, seed=3, seeds=3, log_every=10, progress=False)
    assert [f.seed for f in together] == [3, 4, 5]
    for one in (together[0], together[2]):
        alone = fit(SMALL[name], data, STEPS, seed=one.seed, log_every=10, progress=False)
        for x, y in zip(jax.tree.leaves(one.state), jax.tree.leaves(alone.state), strict=True):
            # Moments of RND's gradients are up to 500: rounding is of the largest, not of each.
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 + 1e-6 * np.abs(y).max(initial=0.0))
        for got, expected in zip(one.log, alone.log, strict=True):
            assert got["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert any(
        not np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(together[0].state), jax.tree.leaves(together[1].state), strict=True)
    )


@pytest.mark.slow
def test_cached_features_change_nothing_but_rounding(data):
    with_cache = fit(SMALL["uvu"], data, STEPS, log_every=10, progress=False)
    without = fit(SMALL["uvu"], data, STEPS, log_every=10, progress=False, cache_bytes=0)
    for x, y in zip(jax.tree.leaves(with_cache.state), jax.tree.leaves(without.state), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)


def test_the_cache_holds_the_right_rows_and_respects_its_limit(data, linear, monkeypatch):
    @dataclass(frozen=True)
    class Caching(linear):
        """Its loss is the largest difference between what was cached and what belongs to the row."""

        def cache(self, state, obs, task, action, next_obs):
            return {"sum": self._features(obs, task, action, next_obs)}

        def _features(self, obs, task, action, next_obs):
            parts = (obs, next_obs)
            return (
                sum(jnp.sum(x.astype(jnp.float32), -1) for x in parts)
                + task[:, 0].astype(jnp.float32) * 7.0
                + action.astype(jnp.float32) * 0.5
            )

        def update(self, state, batch, *, key):
            expected = self._features(batch.obs, batch.task, batch.action, batch.next_obs)
            wrong = jnp.float32(3.0) if batch.cache is None else jnp.max(jnp.abs(batch.cache["sum"] - expected))
            return state, {"loss": wrong}

    monkeypatch.setattr(loop, "_CACHE_BLOCK", 64)  # 150 rows: two whole blocks and one that overlaps
    size = len(data) * 4
    for batch_size in (8, None):
        estimator = Caching(batch_size=batch_size)
        assert fit(estimator, data, 20, progress=False, cache_bytes=size).log[-1]["loss"] == 0.0
        assert fit(estimator, data, 20, progress=False, cache_bytes=size - 1).log[-1]["loss"] == 3.0
        assert fit(estimator, data, 20, progress=False, seeds=2, cache_bytes=2 * size)[1].log[-1]["loss"] == 0.0
        assert fit(estimator, data, 20, progress=False, seeds=2, cache_bytes=size)[1].log[-1]["loss"] == 3.0

    # Where the large one does not fit, the small one is taken, and where neither does, none.
    @dataclass(frozen=True)
    class TwoCaches(Caching):
        def cache(self, state, obs, task, action, next_obs):
            return {"sum": super().cache(state, obs, task, action, next_obs)["sum"] + 1.0, "more": task[:, 0]}

        def compact_cache(self, state, obs, task, action, next_obs):
            return super().cache(state, obs, task, action, next_obs)

    for bytes_, loss in ((2 * size, 1.0), (2 * size - 1, 0.0), (size, 0.0), (size - 1, 3.0)):
        assert fit(TwoCaches(), data, 20, progress=False, cache_bytes=bytes_).log[-1]["loss"] == loss
    # 18 batches of 8 are fewer than 150 rows: filling the cache would cost more.
    assert fit(Caching(), data, 18, progress=False).log[-1]["loss"] == 3.0


def test_evaluations_are_equally_spaced_and_decide_the_best(data, linear):
    asked = []

    def evaluate(estimator, state, step):
        assert estimator == linear()
        assert int(state["step"]) == step
        asked.append(step)
        return {"return": -abs(step - 12.0), "other": float("nan") if step < 12 else step}

    got = fit(linear(), data, STEPS, evaluate=evaluate, evaluations=5, progress=False)
    assert asked == [4, 8, 12, 16, 20]
    assert (got.best.step, got.best.score) == (12, 0.0)
    assert int(got.best.state["step"]) == got.at_best().steps == 12
    rows = [row for row in got.log if row["kind"] == "evaluation"]
    assert [row["return"] for row in rows] == [-8.0, -4.0, 0.0, -4.0, -8.0]
    assert [row["other"] for row in rows] == [None, None, 12.0, 16.0, 20.0]
    by_other = fit(linear(), data, STEPS, evaluate=evaluate, evaluations=5, score="other", progress=False)
    assert by_other.best.step == 20
    two = fit(linear(), data, STEPS, evaluate=evaluate, evaluations=5, seeds=2, progress=False)
    assert [f.best.step for f in two] == [12, 12]
    np.testing.assert_allclose(two[0].best.state["w"], got.best.state["w"], atol=1e-5)


def test_an_evaluation_without_the_score_is_a_sentence(data, linear):
    with pytest.raises(InvalidInput, match="dict with 'return', got reward; pass score= to name another"):
        fit(linear(), data, 4, evaluate=lambda *_: {"reward": 1.0}, evaluations=1, progress=False)
    with pytest.raises(InvalidInput, match=r"must return numbers by name, got \{'return': 'high'\}"):
        fit(linear(), data, 4, evaluate=lambda *_: {"return": "high"}, evaluations=1, progress=False)
    with pytest.raises(InvalidInput, match="'step', a name the log needs"):
        fit(linear(), data, 4, evaluate=lambda *_: {"return": 1.0, "step": 2}, evaluations=1, progress=False)


@settings(deadline=None)
@given(steps=st.integers(1, 200_000), count=st.integers(0, 300), log_every=st.none() | st.integers(1, 2_000))
def test_schedule(steps, count, log_every):
    try:
        schedule = make_schedule(steps, count, log_every)
    except InvalidInput:
        assert log_every > steps // min(count, steps)
        return
    chunks = list(schedule.chunks(0))
    assert sum(length for _, length in chunks) == steps
    assert len({length for _, length in chunks[:-1]}) <= 1
    ends = {first + length for first, length in chunks}
    assert ends >= set(schedule.evaluations)
    if count == 0:
        assert schedule.evaluations == ()
        return
    assert schedule.evaluations[-1] == steps
    assert len(schedule.evaluations) <= count
    places = [k * steps / min(count, steps) for k in range(1, min(count, steps) + 1)]
    if log_every is None and steps % min(count, steps) == 0 and steps // min(count, steps) <= 100:
        assert list(schedule.evaluations) == places
    for place in places:
        assert min(abs(place - step) for step in schedule.evaluations) <= max(1, schedule.chunk)


def test_the_presets_are_evaluated_exactly_on_time():
    for steps in (20_000, 50_000, 100_000):
        schedule = make_schedule(steps, 50, None)
        assert schedule.chunk == 100
        assert list(schedule.evaluations) == [steps // 50 * k for k in range(1, 51)]


def test_divergence_names_the_step_and_keeps_the_last_good_state(data, linear, same):
    good = fit(linear(), data, 10, log_every=5, progress=False)
    with pytest.raises(
        TrainingDiverged, match=r"diverged at step 13: the loss is nan; try a smaller learning_rate"
    ) as e:
        fit(linear(spoil_at=13), data, STEPS, log_every=5, progress=False)
    assert e.value.fit.status.name == "diverged"
    assert (e.value.fit.status.step, e.value.fit.steps) == (13, 10)
    assert str(e.value) == str(e.value.fit.status)
    same(e.value.fit.state, good.state)
    assert [row["step"] for row in e.value.fit.log] == [5, 10]


def test_divergence_is_exact_at_the_borders_of_chunks(data, linear):
    for step in (5, 6):
        with pytest.raises(TrainingDiverged, match=rf"at step {step}: the loss is inf"):
            fit(linear(spoil_at=step, spoil_to=float("inf")), data, STEPS, log_every=5, progress=False)


def test_an_exploding_loss_stops_before_it_overflows(data, linear):
    with pytest.raises(TrainingDiverged, match=r"at step 7: the loss is 2e\+06, more than 1e\+06 times what it began"):
        fit(linear(spoil_at=7, spoil_to=2e6), data, STEPS, progress=False)
    assert fit(linear(spoil_at=7, spoil_to=2e6), data, STEPS, explosion=float("inf"), progress=False).steps == STEPS
    with pytest.raises(TrainingDiverged, match="more than"):  # a true one: TD with far too long steps
        fit(linear(learning_rate=5.0), data, 500, progress=False)


def test_infinite_parameters_with_a_finite_loss_are_noticed(data, linear):
    with pytest.raises(TrainingDiverged, match=r"at step 10: the parameters are not finite") as e:
        fit(linear(spoil_params_at=10), data, STEPS, log_every=5, progress=False)
    assert np.isfinite(e.value.fit.state["w"]).all()
    assert e.value.fit.steps == 5


def test_a_state_may_hold_infinities_of_its_own(data, linear):
    @dataclass(frozen=True)
    class WithBound(linear):
        def init(self, spec, *, key):
            return super().init(spec, key=key) | {"bound": jnp.float32(jnp.inf)}

        def update(self, state, batch, *, key):
            new, metrics = super().update(state, batch, key=key)
            return new | {"bound": state["bound"]}, metrics

    assert fit(WithBound(), data, 4, progress=False).steps == 4


def test_one_diverging_seed_does_not_stop_the_others(data, linear):
    @dataclass(frozen=True)
    class Unlucky(linear):
        """The seed whose first weight is the smallest of the three meets a NaN at step 8."""

        threshold: float = 0.0

        def init(self, spec, *, key):
            state = super().init(spec, key=key)
            return state | {"luck": state["w"][0, 0]}

        def update(self, state, batch, *, key):
            new, metrics = super().update(state, batch, key=key)
            bad = (state["luck"] <= self.threshold) & (new["step"] == 8)
            return new | {"luck": state["luck"]}, metrics | {"loss": jnp.where(bad, jnp.nan, metrics["loss"])}

    keys = [jax.random.split(jax.random.key(seed), 3)[0] for seed in range(3)]
    lucks = [float(Unlucky().init(data.spec, key=key)["luck"]) for key in keys]
    estimator = Unlucky(threshold=min(lucks))
    with pytest.warns(UserWarning, match=rf"seed {np.argmin(lucks)}: diverged at step 8"):
        fits = fit(estimator, data, STEPS, seeds=3, log_every=5, progress=False)
    assert [f.status.name for f in fits].count("diverged") == 1
    for k, one in enumerate(fits):
        lost = k == np.argmin(lucks)
        assert one.steps == int(one.state["step"]) == (5 if lost else STEPS)
        assert [row["step"] for row in one.log] == ([5] if lost else [5, 10, 15, 20])
        if not lost:
            alone = fit(estimator, data, STEPS, seed=k, log_every=5, progress=False)
            np.testing.assert_allclose(one.state["w"], alone.state["w"], atol=1e-5)
    with pytest.raises(TrainingDiverged), pytest.warns(UserWarning, match="diverged"):
        fit(replace(estimator, threshold=9.0), data, STEPS, seeds=2, progress=False)


def test_ctrl_c_ends_the_chunk_and_says_how_to_go_on(data, linear, tmp_path, same):
    before = signal.getsignal(signal.SIGINT)

    def evaluate(estimator, state, step):
        if step == 10 and not (tmp_path / "asked").exists():
            (tmp_path / "asked").touch()
            signal.raise_signal(signal.SIGINT)
        return {"return": 0.0}

    options = {"evaluate": evaluate, "evaluations": 4, "progress": False, "out": tmp_path / "run"}
    with pytest.raises(
        TrainingInterrupted, match=r"interrupted after step 10 of 20; continue with out=.*resume=True"
    ) as e:
        fit(linear(), data, STEPS, **options)
    assert isinstance(e.value, KeyboardInterrupt)
    assert (e.value.fit.steps, e.value.fit.status.name) == (10, "interrupted")
    assert signal.getsignal(signal.SIGINT) is before
    resumed = fit(linear(), data, STEPS, resume=True, **options)
    same(resumed.state, fit(linear(), data, STEPS, log_every=5, progress=False).state)


def test_a_second_ctrl_c_stops_at_once(data, linear):
    def evaluate(estimator, state, step):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt) as e:
        fit(linear(), data, STEPS, evaluate=evaluate, evaluations=4, progress=False)
    assert not isinstance(e.value, TrainingInterrupted)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_estimator_that_breaks_its_contract_is_told_so(data, linear):
    class Changed(linear):
        """What `update` or `init` returned, changed."""

        def __init__(self, update=lambda *results: results, init=lambda state: state):
            super().__init__()
            vars(self).update(change=update, change_init=init)

        def init(self, spec, *, key):
            return self.change_init(super().init(spec, key=key))

        def update(self, state, batch, *, key):
            return self.change(*super().update(state, batch, key=key))

    for estimator, sentence in (
        (Changed(init=lambda s: s | {"f": jax.nn.relu}), r"has .* at \['f'\]; expected arrays only"),
        (Changed(lambda s, m: (s | {"x": s["w"]}, m)), "another structure than init"),
        (Changed(lambda s, m: (s | {"w": s["w"].astype(jnp.bfloat16)}, m)), r"\['w'\] went from float32\[6, 3\] to bf"),
        (Changed(lambda s, m: (s, {})), "one of them 'loss'"),
        (Changed(lambda s, m: (s, m | {"v": s["w"]})), "a dict of scalars"),
        (Changed(lambda s, m: (s, m | {"step": m["loss"]})), "the metric 'step', a name the log needs"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            fit(estimator, data, 2, progress=False)


def test_a_changed_estimator_is_compiled_anew(data, linear):
    class Mutable:
        gamma, batch_size, scale = 0.9, 8, 1.0

        def __getattr__(self, name):
            return getattr(linear(), name)

        def update(self, state, batch, *, key):
            new, metrics = linear().update(state, batch, key=key)
            return new, metrics | {"scale": jnp.float32(self.scale)}

    estimator = Mutable()
    assert fit(estimator, data, 2, progress=False).log[-1]["scale"] == 1.0
    estimator.scale = 2.0
    assert fit(estimator, data, 2, progress=False).log[-1]["scale"] == 2.0


def test_a_second_fit_does_not_compile_again(data, linear):
    fit(linear(), data, 10, progress=False)
    compiled = loop._compiled()._cache_size()
    fit(linear(), data, 10, seed=9, progress=False)
    assert loop._compiled()._cache_size() == compiled


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "steps is 0; expected an integer of at least 1"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": True}, "steps is True"),
        ({"steps": 2**31}, r"expected less than 2\*\*31"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**31}, r"expected seeds below 2\*\*31"),
        ({"seeds": 0}, "seeds is 0"),
        ({"evaluations": 0}, "evaluations is 0"),
        ({"log_every": 0}, "log_every is 0"),
        (
            {"log_every": 6, "evaluate": lambda *_: {}, "evaluations": 4},
            "log_every is 6, but 4 evaluations",
        ),
        ({"resume": True}, "resume=True needs a folder"),
        ({"tensorboard": True}, "tensorboard=True needs a folder"),
        ({"resume": True, "overwrite": True, "out": "x"}, "both True"),
        ({"cache_bytes": -1}, "cache_bytes is -1"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds is nan"),
        ({"explosion": 0.5}, "explosion is 0.5"),
        ({"dataset": np.zeros(3)}, "dataset is of type ndarray; expected a Dataset"),
        ({"estimator": UVU}, "call the class"),
        ({"estimator": object()}, "lacks init, update, value, uncertainty, gamma, batch_size"),
        ({"devices": []}, "devices has 0 devices"),
    ],
)
def test_impossible_arguments_are_refused_before_any_work(data, linear, change, sentence):
    arguments = {"estimator": linear(), "dataset": data, "steps": STEPS, "progress": False} | change
    unchecked = inspect.unwrap(fit)  # the type checker of the tests would speak first
    with pytest.raises(InvalidInput, match=sentence):
        unchecked(**arguments)


def test_gamma_outside_its_range_is_refused(data, linear):
    with pytest.raises(InvalidInput, match=re.escape("gamma is 1.5; expected a number in [0, 1]")):
        fit(linear(gamma=1.5), data, 2)
