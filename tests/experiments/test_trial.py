"""The task-rejection trial, from a small dataset to a row."""

import dataclasses
import json
import time

import jax
import numpy as np
import pytest

from uvax.envs import GoToDoor
from uvax.errors import InvalidInput
from uvax.estimators import DQN, METHODS, config
from uvax.evaluation.protocol import PLACES
from uvax.experiments import trial as trial_module
from uvax.experiments.presets import (
    PRESETS,
    Training,
    build_estimator,
    changes,
    preset_hyperparameters,
    preset_training,
)
from uvax.experiments.rows import Trial, trial_id
from uvax.experiments.timing import random_dataset
from uvax.experiments.trial import evaluation_key, learning_curve, run_trial, timings, trial_config


@pytest.fixture(scope="module")
def data():
    return random_dataset(GoToDoor(size=5), 500, seed=0)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """One trial, run to its end: (config, work folder, result, progress reports)."""
    training = Training(steps=6, evaluations=3, evaluation_episodes=20, final_episodes=30)
    trial = trial_config("bdqnp3", 5, data.checksum, preset="smoke", training=training)
    work = tmp_path_factory.mktemp("work") / "run"
    told = []
    result = run_trial(trial, 0, data, work=work, progress=lambda done, text: told.append((done, text)))
    return trial, work, result, told


@pytest.mark.slow
def test_a_trial_reports_best_last_and_fresh_boards(finished):
    trial, _, result, told = finished
    curve = result["curve"]
    assert curve["step"] == [2, 4, 6]
    assert result["last"]["step"] == 6
    assert result["best"]["return"] == pytest.approx(max(curve["return"]))
    assert result["best"]["step"] == curve["step"][int(np.argmax(curve["return"]))]
    assert result["final"]["episodes"] == trial["final_episodes"]
    assert sum(result["final"][f"attempt_{place}"] for place in PLACES) == pytest.approx(1.0)
    assert all(f"curve_method_{k}" in result["final"] for k in range(6))
    assert {"train_loss", "attempt_impossible", "return_south"} <= set(curve)
    assert result["ceiling"]["mean"] == pytest.approx(np.mean([result["ceiling"][w] for w in PLACES[:4]]))
    assert result["status"].startswith("finished")
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert json.loads(json.dumps(Trial("t", trial, 0).row(result)))["result"]["final"] is not None


@pytest.mark.slow
def test_a_finished_trial_is_not_trained_again(data, finished):
    trial, work, result, _ = finished
    again = run_trial(trial, 0, data, work=work)
    for name in ("best", "last", "final", "curve", "explorer"):
        assert again[name] == result[name]


@pytest.mark.slow
def test_the_explorer_covers_whole_boards(finished):
    explorer = finished[2]["explorer"]
    for name in ("value", "uncertainty", "action"):
        for board, field in zip(explorer["boards"], explorer[name], strict=True):
            assert np.shape(field) == (6, board["height"] - 2, board["width"] - 2, 4)
    assert np.min(explorer["uncertainty"][0]) >= 0
    assert set(np.unique(explorer["action"][0])) <= {0, 1, 2, 3}
    assert len({door["colour"] for door in explorer["boards"][0]["doors"]}) == 4


def test_the_wrong_dataset_is_refused(data):
    trial = trial_config("dqn", 5, "f" * 64, preset="smoke")
    with pytest.raises(InvalidInput, match="belongs to the dataset ffffffffffff"):
        run_trial(trial, 0, data)


@pytest.mark.slow
def test_training_that_diverges_is_a_result(data):
    training = Training(steps=4, evaluations=2, evaluation_episodes=10, final_episodes=10)
    wild = {"optimiser": "sgd", "learning_rate": 1e30}
    trial = trial_config("dqn", 5, data.checksum, preset="smoke", hyperparameters=wild, training=training)
    result = run_trial(trial, 1, data)
    assert result["status"].startswith("diverged at step")
    assert result["best"] is None
    assert "explorer" not in result
    json.dumps(Trial("t", trial, 1).row(result), allow_nan=False)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_preset_has_every_method(preset, method):
    values = preset_hyperparameters(preset, method)
    estimator = build_estimator(json.loads(json.dumps(values)))
    assert config(estimator) == values
    assert preset_training(preset).steps >= preset_training(preset).evaluations


def test_the_paper_preset_is_the_papers():
    for method in METHODS:
        values = preset_hyperparameters("paper", method)
        assert (values["width"], values["batch_size"], values["learning_rate"]) == (512, 512, 3e-4)
        assert values.get("heads", 512) == 512
    assert preset_training("paper") == Training(steps=100_000)


@pytest.mark.parametrize("preset", PRESETS)
def test_only_the_cpu_preset_treats_larger_boards_differently(preset):
    """Doors move on boards beyond size 5; the paper's numbers are the same for all sizes."""
    small, large = (preset_hyperparameters(preset, "uvu", size) for size in (5, 10))
    assert small == preset_hyperparameters(preset, "uvu")
    assert (small != large) == (preset == "cpu")
    assert (preset_training(preset, 5) != preset_training(preset, 10)) == (preset == "cpu")
    assert trial_config("uvu", 10, "0", preset=preset)["hyperparameters"] == large
    assert trial_config("uvu", 10, "0", preset=preset)["steps"] == preset_training(preset, 10).steps


def test_ensembles_of_all_sizes_have_the_setting_that_the_search_found_for_one():
    rates = {preset_hyperparameters("cpu", method, 7)["learning_rate"] for method in ("bdqnp", "bdqnp3", "bdqnp35")}
    assert rates == {PRESETS["cpu"].tuned["bdqnp"]["learning_rate"]}
    assert preset_hyperparameters("cpu", "bdqnp3", 5)["learning_rate"] == 3e-4
    assert preset_hyperparameters("cpu", "bdqnp3", 7, tuned=False)["learning_rate"] == 2e-3
    assert preset_hyperparameters("cpu", "bdqnp3", 7, learning_rate=1.0)["learning_rate"] == 1.0


def test_names_of_trials_do_not_change():
    """Rows are found again by these ids; a change here would orphan every row that was ever stored."""
    assert trial_id("table1", {"kind": "task_rejection", "size": 5, "width": 128.0}, 3) == "a0d71cbc2ab4"


def test_unknown_hyperparameters_and_methods_are_refused():
    with pytest.raises(InvalidInput, match="did you mean 'width'"):
        preset_hyperparameters("cpu", "uvu", widht=3)
    with pytest.raises(InvalidInput, match="unknown method 'uvv'"):
        preset_hyperparameters("cpu", "uvv")
    with pytest.raises(InvalidInput, match="unknown preset"):
        preset_hyperparameters("cpx", "uvu")
    with pytest.raises(InvalidInput, match="cannot be imported"):
        preset_hyperparameters("cpu", "no_such_module:Method")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(DQN):
    """An estimator of one's own."""

    daring: float = 0.5


def test_an_estimator_of_ones_own_is_named_by_its_place(data):
    name = f"{Mine.__module__}:Mine"
    values = preset_hyperparameters("smoke", name, daring=0.7)
    assert (values["class"], values["daring"], values["width"]) == (name, 0.7, 32)
    with pytest.raises(InvalidInput, match="unknown hyperparameter"):
        preset_hyperparameters("smoke", name, shy=1)
    estimator = build_estimator(json.loads(json.dumps(values)))
    assert estimator == Mine(daring=0.7, width=32, depth=1, batch_size=32, target_period=16)


def test_boards_are_the_same_for_all_methods_and_differ_between_seeds():
    keys = [jax.random.key_data(evaluation_key(seed)).tolist() for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]
    assert keys[0] != jax.random.key_data(jax.random.key(0)).tolist()


LOG = [
    {"kind": "train", "step": 10, "seed": 0, "loss": 4.0, "seconds": 6.0},
    {"kind": "train", "step": 20, "seed": 0, "loss": 2.0, "seconds": 7.0},
    {"kind": "evaluation", "step": 20, "seed": 0, "return": 1.5, "seconds": 9.5},
    {"kind": "train", "step": 30, "seed": 0, "loss": None, "seconds": 10.5},
    {"kind": "evaluation", "step": 30, "seed": 0, "return": 2.5, "seconds": 11.0},
]


def test_learning_curves_average_the_metrics_between_evaluations():
    assert learning_curve(LOG) == {
        "step": [20, 30],
        "return": [1.5, 2.5],
        "seconds": [9.5, 11.0],
        "train_loss": [3.0, None],
    }


def test_timings_tell_compilation_from_training():
    # 10 steps take 1 s; the first chunk took 5 s longer, the first evaluation 2 s.
    found = timings(LOG)
    assert found["per_step"] == pytest.approx(0.1)
    assert found["compile"] == pytest.approx(7.0)
    assert found["evaluate"] == pytest.approx(1.0)
    assert found["train"] == pytest.approx(3.0)
    assert found["total"] == pytest.approx(sum(found[name] for name in ("compile", "evaluate", "train")))
    assert timings([])["per_step"] is None


def test_a_trial_says_what_differs_from_its_preset():
    usual = trial_config("uvu", 5, "0" * 64, preset="cpu")
    assert changes(usual) == {}
    width = usual["hyperparameters"]["width"]
    # Asking for what is the preset's anyway is the same trial.
    assert trial_config("uvu", 5, "0" * 64, preset="cpu", hyperparameters={"width": width}) == usual
    changed = trial_config("uvu", 5, "0" * 64, preset="cpu", hyperparameters={"width": width + 1})
    assert changes(changed) == {"width": width + 1}


def test_progress_is_told_between_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_module, "_SECONDS_BETWEEN_LOOKS", 0.01)
    log, told = tmp_path / "log.jsonl", []
    with trial_module.following(log.parent, 100, lambda done, text: told.append(done)):
        deadline = time.monotonic() + 20
        for step in (10, 20, 30):
            with open(log, "a") as file:
                file.write(json.dumps({"kind": "train", "step": step}) + "\n" + '{"kind": "tra')  # half a line
            while step / 100 not in told and time.monotonic() < deadline:
                time.sleep(0.01)
                with open(log, "w") as file:
                    file.write(json.dumps({"kind": "train", "step": step}) + "\n")
    assert told == [0.1, 0.2, 0.3]
