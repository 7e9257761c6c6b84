"""Data with less exploration: the trial from its own collection to its row, and the table."""

import sys
from pathlib import Path

import numpy as np
import pytest

from uvax.experiments import exploration
from uvax.experiments.content import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
import made_up_rows  # it lives beside the report's tests


def test_the_share_of_random_actions_is_that_of_the_schedule():
    settings = {"epsilon_start": 1.0, "epsilon_end": 0.05, "epsilon_decay": 0.5}
    epsilon = np.interp(np.linspace(0, 1, 100_001), [0, 0.5], [1.0, 0.05])
    assert exploration.explored(settings) == pytest.approx(epsilon.mean(), abs=1e-4)


def test_schedules_go_from_much_exploration_to_little():
    configs = [exploration.exploration_config("uvu", 5, "cpu", changes) for changes in exploration.schedules("cpu")]
    shares = [exploration.explored(config["collection"]) for config in configs]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0] / 4


@pytest.mark.slow
def test_a_killed_trial_goes_on_to_the_same_numbers(tmp_path):
    config = exploration.exploration_config("dqn-rnd-p", 5, "smoke", {"epsilon_decay": 0.2})

    def run(work, progress=lambda done, words: None):
        return exploration.perform(config, 1, data=None, work=tmp_path / work, progress=progress)

    told = []
    whole = run("whole", lambda done, words: told.append(done))
    assert told == sorted(told)
    assert whole["dataset"]["collection"]["epsilon_decay"] == 0.2
    assert whole["dataset"]["seed"] == 1
    assert set(whole["coverage"]) == {"north", "south", "west", "east"}

    def stop(done, words):
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("killed", stop)
    again = run("killed")
    for name in ("checksum", "coverage", "final"):
        assert again[name] == whole[name]


def test_the_table_has_a_line_for_each_method_and_schedule():
    rows = made_up_rows.every_row()
    (table,) = [item for item in exploration.section(rows).items if isinstance(item, Table)]
    assert [line[1] for line in table.rows] == ["DQN-RND-P"] * 3 + ["UVU"] * 3
    assert [line[2].text for line in table.rows[:3]] == ["29%", "15%", "6%"]
    assert [line[3].text for line in table.rows] == ["3"] * 6
    returns = [line[4].value for line in table.rows[:3]]
    assert returns == sorted(returns)  # as made up: less exploration, more return
