"""The protocol with an agent whose every move is known, so that its outcome is too."""

import io
import json
import math
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
import scipy.stats
from optimal_agent import ENV, OptimalAgent, opinion, tables

from uvax.data.transition import Spec
from uvax.envs import GoToDoor
from uvax.envs.optimal import ceiling, optimal_return
from uvax.errors import InvalidInput
from uvax.estimators import DQN
from uvax.evaluation import evaluate, final_evaluation, protocol, rank_tasks, report, rollouts, task_rejection
from uvax.evaluation.statistics import mean_interval

N = 400
KEY = jax.random.key(3)
# Uncertainty by place, north, south, west, east, impossible.
WISE = opinion([2.0, 1.0, 0.0, 3.0, 4.0])
BLIND = opinion([0.0] * 5)
agent = OptimalAgent()


@pytest.fixture(scope="module")
def wise():
    return report(agent, WISE, ENV, key=KEY, episodes=N)


@pytest.fixture(scope="module")
def episodes():
    return jax.tree.map(np.asarray, protocol.play_every_task(agent, WISE, ENV, key=KEY, episodes=N, reject=4))


def score(state, **options):
    numbers = evaluate(agent, state, ENV, **({"key": KEY, "episodes": N} | options))
    return {name: float(value) for name, value in numbers.items()}


def test_the_wise_agent_attempts_what_it_is_sure_of(wise):
    """Four of six rejected leave south and west, half and half: a binomial share, four standard errors wide."""
    attempts = {place: share.estimate for place, share in wise.attempts.items()}
    assert attempts["north"] == attempts["east"] == attempts["impossible"] == 0
    assert attempts["south"] + attempts["west"] == 1
    assert abs(attempts["south"] - 0.5) < 4 * math.sqrt(0.25 / N)
    assert wise.returns["north"].n == 0
    assert "no samples" in wise.returns["north"].note
    assert wise.status == "ok"


def test_perfect_play_reaches_the_ceiling(wise, episodes):
    """Paired with the exact expectation from the same start: zero within four standard errors, 0.1% of a return."""
    best = protocol.best_returns(ENV, key=KEY, gamma=1.0, episodes=N, grid=5)
    wall = episodes.episodes.offers.wall
    luck = (episodes.returns.score - np.asarray(best))[wall < 4].reshape(N, 4).mean(axis=1)
    error = mean_interval(luck)
    assert abs(error.estimate) < 4 * luck.std(ddof=1) / math.sqrt(N)
    assert error.half_width < 0.1
    # Over fresh boards as well, against all boards gone through.
    exact = ceiling(ENV).mean
    assert abs(wise.mean_return.estimate - exact) < 4 * wise.mean_return.half_width / 1.65
    assert wise.curve.oracle[5].estimate > exact


def test_impossible_tasks_earn_nothing_and_are_worth_nothing(episodes):
    absent = episodes.episodes.offers.wall == 4
    assert (absent.sum(axis=1) == 2).all()
    assert (episodes.returns.score[absent] == 0).all()
    assert (episodes.episodes.offers.value[absent] == 0).all()
    assert (episodes.returns.score[~absent] > 0).all()


def test_an_attempt_is_one_of_the_least_uncertain_tasks(episodes):
    played, returns = episodes
    rows = np.arange(N)
    uncertainty = played.offers.uncertainty
    assert (np.sort(played.order, axis=1) == np.arange(6)).all()
    assert (np.diff(np.take_along_axis(uncertainty, played.order, axis=1), axis=1) >= 0).all()
    assert (uncertainty[rows, played.attempted] <= np.sort(uncertainty, axis=1)[:, 1]).all()
    np.testing.assert_array_equal(played.place, played.offers.wall[rows, played.attempted])
    np.testing.assert_array_equal(played.score, returns.score[rows, played.attempted])
    np.testing.assert_array_equal(played.offers.uncertainty, np.asarray(WISE.uncertainty)[played.offers.wall])


def test_one_rollout_per_board_gives_the_same_score_as_all_of_them(wise):
    quick = score(WISE)
    assert quick["return"] == pytest.approx(wise.mean_return.estimate, rel=1e-6)
    assert quick["return_low"] == pytest.approx(wise.mean_return.low, rel=1e-5)
    assert quick["return_high"] == pytest.approx(wise.mean_return.high, rel=1e-5)
    row = wise.row()
    for name, value in quick.items():
        assert value == pytest.approx(math.nan if row[name] is None else row[name], rel=1e-5, nan_ok=True), name


@pytest.mark.parametrize("block", [7, 128])
def test_rollouts_are_the_environment_played_step_by_step(block, monkeypatch):
    """Actions that are remembered, in blocks that do not divide the boards, are those of asking every time."""
    monkeypatch.setattr(rollouts, "_BLOCK", block)
    boards = ENV.batch_reset(20, key=KEY)
    starts = jax.tree.map(lambda x: x[None], boards)
    got = jax.jit(lambda starts: rollouts.greedy_returns(agent, WISE, ENV, starts, key=KEY, gamma=0.5))(starts)

    @jax.jit
    def step(states, key):
        action = jnp.argmax(agent.action_value(WISE, ENV.observe(states), ENV.task(boards)), axis=-1)
        return ENV.batch_step_autoreset(states, action, key=key)[1:]

    states, total, discounted = boards, np.zeros(20), np.zeros(20)
    for t in range(50):
        states, (reward, _, _) = step(states, jax.random.fold_in(KEY, t))
        total += np.asarray(reward)
        discounted += 0.5**t * np.asarray(reward)
    np.testing.assert_array_equal(got.score[0], total)
    np.testing.assert_allclose(got.discounted[0], discounted, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("reject", range(6))
def test_attempts_follow_the_ranking_for_every_number_of_rejections(reject):
    """Kept are the first 6 - reject of west, south, north, east, impossible, impossible, each equally often."""
    kept = ["west", "south", "north", "east", "impossible", "impossible"][: 6 - reject]
    numbers = score(WISE, reject=reject)
    for place in protocol.PLACES:
        share = kept.count(place) / len(kept)
        assert abs(numbers[f"attempt_{place}"] - share) <= 4 * math.sqrt(share * (1 - share) / N), place


def test_ties_are_broken_uniformly():
    """Chi-square at 1 in 10,000: the task in each place of the order, and all 720 orders of six equal tasks."""
    order = np.asarray(rank_tasks(jnp.zeros((72_000, 6)), key=KEY))
    for place in range(6):
        assert scipy.stats.chisquare(np.bincount(order[:, place], minlength=6)).pvalue > 1e-4
    orders = np.unique(order, axis=0, return_counts=True)[1]
    assert len(orders) == 720
    assert scipy.stats.chisquare(orders).pvalue > 1e-4


def test_ties_within_an_order_keep_to_their_places():
    """-0 equals 0; NaN and infinity come last; between equals the order is a fair coin (1 in 10,000)."""
    row = jnp.array([0.0, jnp.nan, -1.0, -0.0, jnp.inf, 0.5])
    order = np.asarray(rank_tasks(jnp.tile(row, (4_000, 1)), key=KEY))
    assert (order[:, 0] == 2).all()
    assert (order[:, 3] == 5).all()
    assert set(np.unique(order[:, 1:3])) == {0, 3}
    assert set(np.unique(order[:, 4:])) == {1, 4}
    for column, task in ((1, 0), (4, 1)):
        heads = int((order[:, column] == task).sum())
        assert scipy.stats.binomtest(heads, 4_000).pvalue > 1e-4


def test_an_agent_without_an_opinion_rejects_at_random():
    """Every place is attempted as often as it is offered: 1/6 a wall, 1/3 impossible (chi-square, 1 in 10,000)."""
    result = report(agent, BLIND, ENV, key=KEY, episodes=N)
    counts = [round(share.estimate * N) for share in result.attempts.values()]
    assert scipy.stats.chisquare(counts, [N / 6] * 4 + [N / 3]).pvalue > 1e-4
    assert "at random" in result.status
    assert math.isnan(result.calibration.every.rank_correlation.estimate)
    assert result.calibration.every.failure_auroc.estimate == 0.5
    spread = result.curve.area_over_random
    assert abs(spread.estimate) < 4 * spread.half_width / 1.65


def test_the_curve_of_a_known_agent(wise):
    """On the paths south and west are as long as north and east: all that rejection can do is avoid the impossible,
    and the curve is 4/6, 4/5, 1, 1, 1, 1 of the ceiling, within four standard errors."""
    exact = ceiling(ENV).mean
    for point, share in zip(wise.curve.method, (4 / 6, 4 / 5, 1, 1, 1, 1), strict=True):
        assert abs(point.estimate - share * exact) < 4 * point.half_width / 1.65
    assert wise.curve.method[0] == wise.curve.random[0] == wise.curve.oracle[0]
    for method, oracle in zip(wise.curve.method, wise.curve.oracle, strict=True):
        assert oracle.estimate >= method.estimate
    assert 0 < wise.curve.gain.estimate < 1


def test_calibration_of_an_agent_that_knows_its_values(wise, episodes):
    """Q is the exact expectation, so its bias is zero within four standard errors, the cut after 50 steps included:
    the oracle's horizon is 50 as well. It fails at the impossible only, of which it is the most uncertain."""
    every, possible = wise.calibration.every, wise.calibration.possible
    assert abs(possible.value_bias.estimate) < 4 * possible.value_bias.half_width / 1.65
    assert every.failures.estimate == pytest.approx(1 / 3, abs=0.01)
    assert every.failure_auroc.estimate > 0.99
    assert every.rank_correlation.n == 6 * N
    assert possible.rank_correlation.n == 4 * N
    error = np.abs(episodes.episodes.offers.value - episodes.returns.discounted)
    wall = episodes.episodes.offers.wall
    theirs = scipy.stats.spearmanr(episodes.episodes.offers.uncertainty[wall < 4], error[wall < 4]).statistic
    assert possible.rank_correlation.estimate == pytest.approx(theirs)


def test_calibration_of_an_agent_that_fails_where_it_says():
    """Helpless in the north: half of all tasks fail, and the uncertainty, highest there, says which (AUROC 1)."""
    result = report(agent, opinion([1.0, 0.1, 0.1, 0.1, 2.0], helpless=[0]), ENV, key=KEY, episodes=N)
    assert result.calibration.every.failures.estimate == pytest.approx(0.5, abs=0.01)
    assert result.calibration.possible.failures.estimate == pytest.approx(0.25, abs=0.01)
    assert result.calibration.possible.failure_auroc.estimate > 0.98
    assert result.value["north"].estimate == 0
    assert result.attempts["north"].estimate == result.attempts["impossible"].estimate == 0


def test_the_cut_after_fifty_steps_costs_little():
    """What the docstring of `greedy_returns` says: gamma^50 of a value of at most about 3."""
    board = jax.tree.map(lambda x: x[0], ENV.batch_reset(1, key=KEY))
    poses = jnp.stack(jnp.meshgrid(*[jnp.arange(1, 4)] * 2, jnp.arange(4), indexing="ij"), axis=-1).reshape(-1, 3)

    def endless(pose):
        at = board._replace(pos=pose[:2], direction=pose[2], target=board.door_color[0])
        return optimal_return(at, horizon=200, gamma=0.9, grid=5)

    whole = np.asarray(jax.jit(jax.vmap(endless))(poses))
    cut = tables()[1][(0, *np.asarray(poses).T)]
    assert whole.max() < 3.0
    assert (whole - cut).min() > 0
    assert (whole - cut).max() < 0.015


def test_two_methods_meet_the_same_boards_and_the_same_luck(episodes):
    """Another ranking, the same policy: the same tasks earn the same. Another policy: still the same boards."""
    other = protocol.play_every_task(agent, opinion([4, 3, 0, 1, 2]), ENV, key=KEY, episodes=N, reject=4)
    np.testing.assert_array_equal(other.episodes.offers.wall, episodes.episodes.offers.wall)
    np.testing.assert_array_equal(other.returns.score, episodes.returns.score)
    assert not np.array_equal(other.episodes.attempted, episodes.episodes.attempted)
    dqn = DQN(width=8, depth=1)
    state = dqn.init(ENV.spec, key=jax.random.key(0))
    learner = protocol.play_every_task(dqn, state, ENV, key=KEY, episodes=N, reject=4)
    np.testing.assert_array_equal(learner.episodes.offers.wall, episodes.episodes.offers.wall)


def test_another_state_seed_size_or_rejection_compiles_nothing():
    score(WISE)
    compiled = protocol._evaluate._cache_size()
    score(BLIND, key=jax.random.key(99))
    score(WISE, reject=2)
    evaluate(OptimalAgent(), WISE, GoToDoor(size=7), key=KEY, episodes=N)
    assert protocol._evaluate._cache_size() == compiled
    one = score(WISE, episodes=1)
    assert protocol._evaluate._cache_size() == compiled + 1
    assert math.isnan(one["return_low"])


def test_vmapped_over_states_equals_a_loop():
    states = [WISE, BLIND, opinion([0, 1, 2, 3, 4], helpless=[0])]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    together = jax.vmap(lambda s: evaluate(agent, s, ENV, key=KEY, episodes=N))(stacked)
    for i, state in enumerate(states):
        for name, value in score(state).items():
            np.testing.assert_allclose(together[name][i], value, rtol=1e-5, err_msg=name)


def test_many_boards_are_played_in_chunks(monkeypatch):
    monkeypatch.setattr(rollouts, "BOARDS_AT_ONCE", 30)
    sizes = []

    def play(boards, key):
        sizes.append(boards)
        return {"drawn": jax.random.bits(key, (boards,)), "number": jnp.arange(boards)}

    played = rollouts.in_chunks(play, 100, key=KEY)
    assert set(sizes) == {25}
    np.testing.assert_array_equal(played["number"], np.tile(np.arange(25), 4))
    assert len(np.unique(played["drawn"])) == 100
    assert rollouts.in_chunks(play, 101, key=KEY)["number"].shape == (101,)


def test_final_evaluation_has_fresh_boards_and_the_same_ones_again(wise):
    final = final_evaluation(agent, WISE, ENV, key=KEY, episodes=N)
    assert final.mean_return != wise.mean_return
    assert final == final_evaluation(agent, WISE, ENV, key=KEY, episodes=N)


def test_the_friendly_form_is_the_report_of_its_seed():
    fit = SimpleNamespace(estimator=agent, state=WISE)
    assert task_rejection(fit, ENV, episodes=N, seed=3) == report(agent, WISE, ENV, key=jax.random.key(3), episodes=N)


def test_the_result_is_a_row_of_json_and_a_table(wise):
    row = json.loads(json.dumps(wise.row(), allow_nan=False))
    assert row["env_size"] == 5
    assert row["return"] == wise.mean_return.estimate
    assert row["return_low"] < row["return"] < row["return_high"]
    assert row["return_north"] is None
    assert row["area"] == wise.curve.area.estimate
    assert row["failure_auroc_every"] == wise.calibration.every.failure_auroc.estimate
    console = rich.console.Console(width=120, file=io.StringIO())
    console.print(wise)
    text = console.file.getvalue()
    for word in ("impossible", "oracle", "rank correlation", "400 boards"):
        assert word in text


def test_one_episode_has_a_score_and_no_interval():
    result = report(agent, WISE, ENV, key=KEY, episodes=1)
    assert result.mean_return.estimate > 0
    assert math.isnan(result.mean_return.low)
    assert "one episode" in result.status
    assert json.dumps(result.row(), allow_nan=False)


def test_a_diverged_estimator_gets_a_report_that_says_so():
    result = report(agent, opinion([math.nan, 1.0, 0.0, 3.0, 4.0]), ENV, key=KEY, episodes=N)
    assert "400 of 2,400 uncertainties at s0 are not finite" in result.status
    assert result.attempts["north"].estimate == 0
    assert "not finite" in result.calibration.every.failure_auroc.note
    assert json.dumps(result.row(), allow_nan=False)


@dataclass
class Unhashable:
    settings: dict

    def value(self, state):
        return state + self.settings["a"]


def test_an_estimator_that_cannot_be_hashed_compiles_once():
    value = jax.jit(lambda estimator, state: estimator.value(state), static_argnums=0)
    mine, other = Unhashable({"a": 1}), Unhashable({"a": 2})
    assert [int(value(protocol.hashable(e), jnp.int32(x))) for e, x in ((mine, 1), (other, 1), (mine, 2))] == [2, 3, 3]
    assert value._cache_size() == 2
    assert not hasattr(protocol.hashable(mine), "action_value")
    assert protocol.hashable(agent) is agent


@dataclass(frozen=True)
class ThreeActions(OptimalAgent):
    def uncertainty(self, state, obs, task):
        return jnp.zeros((*task.shape[:-1], 3))


narrow = DQN(width=8, depth=1)
narrow_state = narrow.init(Spec(jax.ShapeDtypeStruct((12,), jnp.float32), 6, 4), key=jax.random.key(0))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"reject": 6}, "reject must be an integer from 0 to 5, so that one of 6 tasks is left to attempt, got 6"),
        ({"reject": -1}, "reject must be an integer from 0 to 5"),
        ({"episodes": 0}, "episodes must be an integer of at least 1, got 0"),
        ({"env": GoToDoor(size=jnp.array([5, 6]))}, "env must have one size"),
        ({"estimator": narrow, "state": narrow_state}, r"this DQN does not fit the environment: .* \[35\]"),
        ({"estimator": ThreeActions()}, r"uncertainty of one observation has shape \(1, 3\), not \(1, 4\)"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(change, sentence):
    given = {"estimator": agent, "state": WISE, "env": ENV, "key": KEY, "episodes": 10} | change
    estimator, state, env = (given.pop(name) for name in ("estimator", "state", "env"))
    for call in (evaluate, report, final_evaluation):
        with pytest.raises(InvalidInput, match=sentence) as error:
            call(estimator, state, env, **given)
        assert "\n" not in str(error.value)


def test_wrong_types_are_refused_in_one_sentence():
    """Asked directly: in tests the public functions have their types checked before they look themselves."""
    good = {"env": ENV, "episodes": 10, "reject": 4}
    for change, sentence in (
        ({"reject": 2.0}, "reject must be an integer from 0 to 5, .* got 2.0"),
        ({"episodes": True}, "episodes must be an integer of at least 1, got True"),
        ({"env": object()}, "env must be a uvax.envs.GoToDoor, .* got object"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            protocol.check_request(agent, WISE, **(good | change))
    protocol.check_request(agent, WISE, ENV, episodes=np.int64(3), reject=np.int32(0))


def test_a_fit_of_another_environment_is_refused_by_its_spec():
    spec = Spec(jax.ShapeDtypeStruct((12,), jnp.float32), 0, 2)
    with pytest.raises(InvalidInput, match=r"fit was trained on observations \(12,\), 0 task numbers and 2 actions"):
        task_rejection(SimpleNamespace(estimator=agent, state=WISE, spec=spec), ENV)
    with pytest.raises(InvalidInput, match=r"fit must have .estimator and .state, .* but list has no .estimator"):
        task_rejection([], ENV)
