"""Every experiment: which trials it wants, what it makes of rows, and how the command line runs it."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest

from uvax import cli
from uvax.collection import collect, record
from uvax.data import load
from uvax.envs import GoToDoor
from uvax.errors import InvalidInput
from uvax.evaluation.statistics import mean_interval
from uvax.experiments import ablation, analysis, claims, experiment, paper, runtime, search, table1, width
from uvax.experiments.executors import LocalExecutor
from uvax.experiments.experiment import Settings
from uvax.experiments.jobs import KINDS, Job, collect_job, perform
from uvax.experiments.presets import preset_hyperparameters
from uvax.experiments.rows import RowStore, Trial
from uvax.experiments.run import Places, make_plan, read_rows
from uvax.experiments.run import run as run_experiment
from uvax.experiments.timing import timing_config

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
import made_up_rows  # it lives beside the report's tests

OURS = ("table1", "width", "runtime", "search", "ablation", "novelty", "exploration", "board")
SUMS = {size: f"{size:064d}" for size in range(5, 11)}


@pytest.mark.parametrize("preset", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("name", OURS)
def test_trials_are_named_once_and_are_plain_data(name, preset):
    chosen = experiment.module(name).EXPERIMENT
    trials = chosen.trials(chosen.scope(preset), SUMS, [])
    assert trials
    assert len({trial.id for trial in trials}) == len(trials)
    for trial in trials:
        assert trial.experiment == name
        assert trial.config["kind"] in KINDS
        json.dumps(trial.config, allow_nan=False)


def test_table1_covers_the_paper():
    scope = table1.scope("cpu")
    trials = table1.trials(scope, SUMS, [])
    assert {(t.config["size"], t.config["method"]) for t in trials} == {
        (size, method) for size in paper.SIZES for method in paper.METHODS
    }
    assert len(trials) == 6 * 7 * scope.seeds
    assert scope.seeds >= 3
    # All cells come before the second seed.
    assert {t.seed for t in trials[: 6 * 7]} == {0}


def test_the_papers_table_is_complete():
    assert set(paper.TABLE1) == set(paper.SIZES)
    assert all(set(row) == set(paper.METHODS) for row in paper.TABLE1.values())
    assert paper.TABLE1[10]["uvu"] == (6.72, 0.12)
    assert paper.TABLE1[5]["dqn"] == (5.50, 0.15)


def test_width_changes_nothing_but_the_width():
    trials = width.trials(width.scope("cpu"), SUMS, [])
    configs = [json.loads(json.dumps(t.config)) for t in trials if t.config["method"] == "uvu"]
    assert {c["hyperparameters"].pop("width") for c in configs} == {32, 64, 128, 256}
    assert all(c == configs[0] for c in configs)
    assert width.scope("cpu").sizes == (10,)
    assert width.scope("cpu").seeds == 5


def test_the_reduced_search_varies_one_axis_at_a_time():
    for method in ("dqn", "bdqnp3", "dqn-rnd-p", "uvu"):
        start, *others = search.settings(method, "cpu", 10)
        assert start == search.start(method, "cpu", 10)
        assert {sum(setting[name] != start[name] for name in start) for setting in others} == {1}
    assert set(search.start("uvu", "cpu")) == {"learning_rate", "uvu_learning_rate"}
    assert len(search.settings("bdqnp3", "paper")) == len(paper.RATES) * len(paper.PRIOR_SCALES)


def test_a_method_of_your_own_is_searched_along_the_axes_it_has():
    assert search.axes("uvax.estimators:UVU", "cpu").keys() == search.axes("uvu", "cpu").keys()
    with pytest.raises(InvalidInput, match=r"OrderedDict.* expected a frozen dataclass"):
        search.axes("collections:OrderedDict", "cpu")


def scored(trial, score):
    return trial.row({"best": None if score is None else {"return": score}})


def search_of(method, known):
    """What a search on size 10 wants when these settings have these scores: (setting, seed) of its trials."""
    scope = dataclasses.replace(search.scope("cpu"), methods=(method,))
    along = search.axes(method, "cpu")

    def trial(values):
        changes = dict(zip(along, values, strict=True))
        return Trial("search", search.trial_config(method, 10, SUMS[10], preset="cpu", hyperparameters=changes), 0)

    rows = [scored(trial(values), score) for values, score in known.items()]
    found = search.trials(scope, SUMS, rows)
    return [(tuple(t.config["hyperparameters"][name] for name in along), t.seed) for t in found]


def test_the_search_does_not_start_from_what_it_found():
    """Else running it again would want other trials, and its rows would no longer be its own."""
    for method in search.scope("cpu").methods:
        tuned, start = preset_hyperparameters("cpu", method, 10), search.start(method, "cpu", 10)
        assert any(tuned[name] != value for name, value in start.items())
        (first,) = search.trials(dataclasses.replace(search.scope("cpu"), methods=(method,)), SUMS, [])
        assert start.items() <= first.config["hyperparameters"].items()


def test_the_search_goes_outward_from_its_start_and_stops_where_nothing_is_learned():
    # The first rate is tried first, then its neighbours, whatever they may return.
    (usual, _), *more = search_of("dqn", {})
    assert not more
    rates = sorted({s["learning_rate"] for s in search.settings("dqn", "cpu", 10)} | set(usual))
    below, above = (rates[rates.index(*usual) + i] for i in (-1, 1))
    assert search_of("dqn", {usual: 10.0}) == [(usual, 0), ((below,), 0), ((above,), 0)]
    # One side is left at a value below half of the preset's return, the other goes on.
    further = rates[rates.index(below) - 1]
    known = {usual: 10.0, (below,): 7.0, (above,): 4.9}
    assert search_of("dqn", known) == [(usual, 0), ((below,), 0), ((further,), 0), ((above,), 0)]
    # Then the first seed is through, and those within 90% of the best have another.
    known |= {(below,): 9.1, (further,): 4.5}
    assert search_of("dqn", known)[-2:] == [(usual, 1), ((below,), 1)]
    # A training that diverged before its first evaluation is hopeless, not a crash.
    known[(above,)] = None
    assert search_of("dqn", known)[-2:] == [(usual, 1), ((below,), 1)]


def test_the_next_axis_of_the_search_starts_from_the_best_of_the_one_before():
    rates, scales = search.axes("bdqnp3", "cpu").values()
    (((usual_rate, usual_scale), _),) = search_of("bdqnp3", {})
    known = {(rate, usual_scale): 0.9 + rate for rate in {*rates, usual_rate}}
    best = max(rates)
    wanted = [values for values, _ in search_of("bdqnp3", known)]
    assert set(wanted) - set(known) == {(best, 0.3), (best, 3.0)}
    # Along the whole of both axes, and then the other seed.
    known |= {(best, scale): 1.0 - 0.1 * math.log10(scale) for scale in scales if scale != usual_scale}
    found = search_of("bdqnp3", known)
    assert {values for values, _ in found} == set(known)
    assert [values for values, seed in found if seed == 1] == [(best, 0.3), (best, 0.1)]


def test_sizes_are_searches_of_their_own():
    rows = made_up_rows.search_rows()
    other = json.loads(json.dumps([row for row in rows if row["config"]["method"] == "dqn"]))
    for row in other:
        row["config"]["size"] = 5
        row["result"]["best"]["return"] += 3.0
    lines = {size: _winner(search.section(kept), size) for size, kept in ((10, rows), (5, other))}
    both = search.section([*rows, *other])
    assert lines == {size: _winner(both, size) for size in (10, 5)}
    assert lines[5][4].value == pytest.approx(lines[10][4].value + 3.0)


def _winner(section, size):
    """The line of DQN in the table of the best settings."""
    table = next(item for item in section.items if getattr(item, "id", "") == "search-best")
    (line,) = [row for row in table.rows if row[0].value == size and row[1] == "DQN"]
    return line


def test_the_whole_grid_drops_only_hopeless_settings():
    scope = dataclasses.replace(search.scope("paper"), methods=("dqn",))
    first = search.trials(scope, SUMS, [])
    assert len(first) == len(paper.RATES)
    assert {t.seed for t in first} == {0}
    rows = [scored(t, s) for t, s in zip(first, [9.1, 10.0, 8.9, 0.0, 0.0, 0.0, None], strict=True)]
    later = [t for t in search.trials(scope, SUMS, rows) if t.seed > 0]
    assert [t.config for t in later] == [t.config for t in first[:2]]
    # As long as one first seed is missing nothing is decided.
    assert not [t for t in search.trials(scope, SUMS, rows[:-1]) if t.seed > 0]


def test_ablation_pairs_heads_with_members():
    found = ablation.variants("paper")
    heads = {changes["heads"] for method, changes in found if "heads" in changes}
    assert heads == {1, 2, 14, 34, 128}
    members = {changes["members"] for method, changes in found if "members" in changes}
    named = {int(method.removeprefix("bdqnp")) for method, changes in found if method in paper.METHODS[1:4]}
    assert members | named == {h + 1 for h in heads}
    assert ("uvu", {"shared_bootstrap": True}) in found
    assert ("uvu", {"normalise": False}) in found


def test_runtime_times_the_papers_ensembles():
    sizes = [getattr(e, "members", 1) for method, e in runtime.estimators("cpu") if method != "uvu"]
    assert sizes == list(paper.ENSEMBLES)
    assert all(e.width == 512 and e.batch_size == 512 for _, e in runtime.estimators("cpu"))


@pytest.mark.parametrize("name", OURS)
def test_sections_are_made_from_rows_alone(name):
    rows = [row for row in made_up_rows.every_row() if row["experiment"] == name]
    section = experiment.module(name).section(rows)
    assert section is not None
    assert section.id == name
    assert set(section.rows) <= {row["trial_id"] for row in rows}
    assert experiment.module(name).section([]) is None


def test_a_comparison_is_paired_by_seed():
    rows = made_up_rows.table1_rows(sizes=(5,), methods=("uvu", "dqn"), seeds=3)
    cells = {(5, m): [r for r in rows if r["config"]["method"] == m] for m in ("uvu", "dqn")}
    for i, row in enumerate(cells[5, "dqn"]):
        row["result"]["best"]["return"] = cells[5, "uvu"][i]["result"]["best"]["return"] - 1.0
    found = claims.difference(cells, 5, "uvu", "dqn")
    assert found.estimate == pytest.approx(1.0)
    assert found.half_width == pytest.approx(0.0, abs=1e-9)
    assert claims.difference(cells, 6, "uvu", "dqn") is None


@pytest.mark.parametrize(
    ("low", "high", "or_equal", "expected"),
    [
        (0.1, 0.3, False, "holds"),
        (-0.3, -0.1, False, "fails"),
        (-0.3, -0.1, True, "fails"),
        (-0.1, 0.3, False, "unclear"),
        (-0.1, 0.3, True, "holds"),
        (math.nan, math.nan, True, "unclear"),
    ],
)
def test_verdicts(low, high, or_equal, expected):
    from uvax.evaluation.statistics import Interval

    assert claims.verdict(Interval(0.0, low, high, 3), or_equal=or_equal) == expected


def test_smoke_rows_are_not_averaged_into_a_table():
    rows = made_up_rows.table1_rows(sizes=(5,), methods=("uvu",), seeds=2)
    smoke = json.loads(json.dumps(rows[0]))
    smoke["config"]["preset"] = "smoke"
    smoke["result"]["best"]["return"] = -100.0
    section = table1.section([*rows, smoke])
    assert set(section.rows) == {row["trial_id"] for row in rows}
    assert any("1 of smoke" in item for item in section.items if isinstance(item, str))


def test_rows_about_other_data_are_not_compared():
    rows = made_up_rows.table1_rows(sizes=(5, 6), methods=("uvu", "dqn", "bdqnp3"), seeds=2)
    other = [json.loads(json.dumps(row)) for row in rows if row["config"]["size"] == 5]
    for row in other:
        row["config"]["dataset"] = "1" * 64
    # The dataset with more rows is shown, though it lacks a method that the other one has ...
    fewer = [row for row in other if row["config"]["method"] == "bdqnp3"]
    more = [row for row in rows if (row["config"]["size"], row["config"]["method"]) != (5, "bdqnp3")]
    section = table1.section([*fewer, *more])
    assert set(section.rows) == {row["trial_id"] for row in more}
    assert "Size 5: 2 rows about another dataset are left out." in section.items
    # ... of equals the newest.
    for row in other:
        row["provenance"]["finished"] = "2999-01-01T00:00:00+00:00"
        row["trial_id"] += "-newer"
    of_six = [row for row in rows if row["config"]["size"] == 6]
    assert set(table1.section([*other, *rows]).rows) == {row["trial_id"] for row in [*other, *of_six]}


def test_the_configuration_with_more_seeds_is_shown_and_the_other_named():
    rows = made_up_rows.table1_rows(sizes=(5,), methods=("uvu",), seeds=3)
    other = json.loads(json.dumps(rows[0]))
    other["config"]["steps"] = 7
    section = table1.section([other, *rows])
    assert len(section.rows) == 3
    assert any("1 rows of other configurations are left out" in item for item in section.items if isinstance(item, str))


def test_settings_are_checked():
    with pytest.raises(InvalidInput, match="seeds is 0"):
        Settings(seeds=0)
    with pytest.raises(InvalidInput, match="sizes holds 4"):
        Settings(sizes=(5, 4))
    with pytest.raises(InvalidInput, match="did you mean 'uvu'"):
        Settings(methods=("uvuu",))


def test_a_plan_says_what_will_run_before_anything_does(tmp_path, capsys):
    code = cli.main(
        [
            "experiment",
            "table1",
            "--preset",
            "smoke",
            "--dry-run",
            "--results",
            str(tmp_path / "results"),
            "--data-dir",
            str(tmp_path / "data"),
            "--seeds",
            "1",
            "--methods",
            "uvu",
            "dqn",
        ]
    )
    said = capsys.readouterr().err
    assert code == 0
    assert "2 trials, 0 of them done, 2 to run" in said
    assert "First the datasets of size 5 are collected" in said
    assert "unknown on this machine, the first trials will tell" in said
    assert "table1.jsonl" in said
    assert list(tmp_path.iterdir()) == []


def test_a_plan_knows_what_is_done_and_how_long_the_rest_takes(tmp_path):
    store = RowStore(tmp_path / "results")
    places = Places(data=tmp_path / "data", results=tmp_path / "results")
    chosen = experiment.module("runtime").EXPERIMENT
    settings = Settings(preset="smoke")
    trials = chosen.trials(chosen.scope("smoke"), {}, [])
    store.append(trials[0].row({"status": "finished"}))
    plan = make_plan(chosen, settings, places)
    assert len(plan.missing) == len(trials) - 1
    assert trials[0].id not in {t.id for t in plan.missing}

    said = " ".join(plan.sentences(LocalExecutor(tmp_path, workers=1)))
    assert f"{len(trials)} trials, 1 of them done, {len(trials) - 1} to run" in said
    assert "Expected time" in said


def test_recorded_data_are_made_again_not_collected(tmp_path):
    places = Places(data=tmp_path / "data", results=tmp_path / "results")
    recording = places.results / "actions" / "smoke-size5.safetensors"
    data = collect(GoToDoor(size=5), preset="smoke", progress=False)
    record(data, recording)
    settings = Settings(preset="smoke", methods=("dqn",), seeds=1)
    plan = make_plan(table1.EXPERIMENT, settings, places)
    said = " ".join(plan.sentences(LocalExecutor(tmp_path, workers=1)))
    assert f"First the datasets of size 5 are made again from {recording.parent} into {places.data}." in said
    # So the trials are known by name before there are data, and rows made elsewhere count as done.
    assert {trial.config["dataset"] for trial in plan.missing} == {data.checksum}
    assert plan.recordings == {5: recording}

    file = places.dataset(5, "smoke")
    job = collect_job(5, preset="smoke", folder=file.parent, work=places.work, recording=plan.recordings[5])
    assert perform(Job.from_json(json.loads(json.dumps(job.to_json()))), lambda done, words: None) is None
    assert load(file).checksum == data.checksum
    assert not make_plan(table1.EXPERIMENT, settings, places).collect
    # Where every trial has its row, no data are made.
    file.unlink()
    for trial in plan.trials:
        RowStore(places.results).append(trial.row({"status": "finished"}))
    done = make_plan(table1.EXPERIMENT, settings, places)
    assert not done.collect
    assert run_experiment(done, LocalExecutor(tmp_path, workers=1)).failed == []
    assert not file.exists()


def test_a_recording_with_other_settings_is_refused(tmp_path):
    places = Places(data=tmp_path / "data", results=tmp_path / "results")
    record(
        collect(GoToDoor(size=5), steps=80, preset="smoke", progress=False),
        places.results / "actions" / "smoke-size5.safetensors",
    )
    with pytest.raises(InvalidInput, match="other settings than preset smoke has for size 5"):
        make_plan(table1.EXPERIMENT, Settings(preset="smoke", methods=("dqn",)), places)


def test_damaged_rows_are_named_and_left_out(tmp_path):
    store = RowStore(tmp_path)
    row = Trial("table1", {"kind": "x"}, 0).row({"a": 1})
    store.append(row)
    file = tmp_path / "table1.jsonl"
    good = file.read_text()
    file.write_text(good + good + '{"schema": 99}\n' + good[:-20] + "\n")
    rows, problems = read_rows(tmp_path)
    assert len(rows) == 1
    assert len(problems) == 3
    assert any("already there" in p for p in problems)
    assert any("schema version 99" in p for p in problems)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["experiment", "tabel1"], "unknown experiment 'tabel1': did you mean 'table1'"),
        (["experiment", "nothing-like-it"], "known are ablation, board, "),
        (["experiment", "--dry-run"], "the name of the experiment comes first"),
        (["experiment", "width", "--seeds", "banana"], "--seeds is 'banana'; expected a whole number"),
        (["experiment", "width", "--preset", "cqu", "--dry-run"], "unknown preset 'cqu': did you mean 'cpu'"),
        (["experiment", "width", "--executor", "slurm", "--dry-run"], "unknown executor 'slurm'"),
    ],
)
def test_bad_arguments_are_one_sentence(argv, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1


def test_the_list_of_experiments(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["experiment", "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in experiment.MODULES)


def test_a_kind_that_does_not_exist_is_refused(tmp_path):
    payload = {"experiment": "x", "config": {"kind": "task_rejektion"}, "seed": 0, "data": None, "command": ""}
    with pytest.raises(InvalidInput, match="did you mean 'task_rejection'"):
        perform(Job("x", "x", "trial", payload, str(tmp_path)), lambda done, text: None)


@pytest.mark.slow
def test_a_measurement_of_time(tmp_path):
    from uvax.experiments.timing import perform as measure

    method, estimator = runtime.estimators("smoke")[1]
    config = timing_config(estimator, method, preset="smoke", cached=True, seconds=0.05)
    result = measure(
        {**config, "rows": 500, "evaluation_episodes": 10},
        0,
        data=None,
        work=tmp_path,
        progress=lambda done, text: None,
    )
    assert 0 < result["fastest"] <= result["per_step"] <= result["slowest"] < 1.0
    assert result["cached"]
    assert result["frozen_parameters"] == result["parameters"] > 0
    assert result["memory"] > 50e6
    assert result["compile"] > 0


@pytest.mark.slow
def test_the_picture_of_a_board_is_minigrids(tmp_path):
    pytest.importorskip("minigrid", reason="minigrid is not installed: pip install 'uvax[minigrid]'")
    import base64
    import io

    from PIL import Image

    from uvax.experiments.board import perform as draw

    result = draw({"kind": "board", "size": 6, "tile": 32}, 0, data=None, work=tmp_path, progress=lambda d, t: None)
    image = Image.open(io.BytesIO(base64.b64decode(result["png"])))
    assert image.size == (result["width"], result["height"])
    assert 5 * 32 <= image.width <= 6 * 32
    assert len(image.convert("RGB").getcolors(10_000)) > 6  # walls, floor, agent and four doors


def test_one_seed_hides_no_overlap():
    values = {
        "one": mean_interval([11.16]),
        "three": mean_interval([10.95, 11.14, 10.97]),
        "low": mean_interval([4, 5]),
    }
    assert analysis.best_of(values) == {"one", "three"}
    assert analysis.best_of({"one": mean_interval([]), "two": mean_interval([1.0])}) == {"two"}
