"""The environment benchmark still runs, and says so when a peer is missing."""

import importlib.util
import json
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "envs.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_envs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_contenders_play_the_steps_they_report(bench):
    assert bench.uvax_round(5, 8, 4)() == 32
    assert bench.minigrid_round(5, 1, 60)() == 60


def test_a_missing_peer_is_not_run(bench, capsys):
    missing = bench.Contender("navix", 5, None)
    missing.play()
    found = {"uvax": {"status": "run", "steps_per_cpu_second": 20, "environments": 1}, "navix": missing.close()}
    bench.show(5, found)
    assert "not run: navix is not installed" in capsys.readouterr().out
    assert json.loads(json.dumps(found))["navix"]["status"] == "not run"
