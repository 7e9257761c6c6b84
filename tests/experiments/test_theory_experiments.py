"""`uvax theory verify` and `diagnose`: networks against the closed form, datasets against problems with known Delta."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import uvax
from uvax.cli import main
from uvax.data import from_arrays
from uvax.envs.chain import Chain
from uvax.errors import InvalidInput
from uvax.experiments import theory_diagnose, theory_verify
from uvax.experiments.content import Chart, Table
from uvax.experiments.rows import Trial
from uvax.experiments.theory_section import law_test, verify_section
from uvax.experiments.theory_verify import Problem, Reference
from uvax.theory import empirical_ntk, kernels, stability

SMALL = Problem(length=4, test_z=3, steps=200)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference.make(SMALL)


def silent(share: float, words: str) -> None:
    assert 0 <= share <= 1


@pytest.mark.slow
@pytest.mark.parametrize("compare", [theory_verify._ensemble, theory_verify._uvu], ids=["ensemble", "uvu"])
def test_wide_networks_follow_the_theory_of_their_own_initial_outputs(reference, compare):
    real, predicted, moved = compare(reference, 1024, 4, 0, silent)
    error = np.sqrt(np.mean((real - predicted) ** 2))
    assert error < 0.08 * moved
    # The prediction is about this network and no other.
    assert np.sqrt(np.mean((real - np.roll(predicted, 1, axis=0)) ** 2)) > 3 * error


def test_the_reference_is_the_training_problem(reference):
    assert reference.learning_rate * 2 == pytest.approx(
        stability(
            partial(kernels, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu"),
            *reference.chain.td_problem(SMALL.train_z)[:3],
            SMALL.gamma,
        ).max_learning_rate
    )
    assert len(reference.data) == len(reference.points[1]) == 12
    assert reference.settings(8)["learning_rate"] == pytest.approx(12 * reference.learning_rate)


def _row(method: str, width: int, seed: int, **result: Any) -> dict[str, Any]:
    config = {
        "kind": theory_verify.KIND,
        "preset": "smoke",
        **vars(SMALL),
        "method": method,
        "width": width,
        "count": 8,
    }
    usual = {"ratio": 1.0, "ratio_error": 0.1, "error": 0.1, "unpaired": 1.0, "limit_gap": 0.0, "dof": 3}
    return Trial(theory_verify.NAME, config, seed).row({**usual, "estimates": [1.0, 0.5], **result})


def test_the_test_against_the_law_has_power():
    rng = np.random.default_rng(0)
    draws = [(rng.chisquare(3, 40) / 3).tolist() for _ in range(3)]
    fair = [_row("ensemble", 64, seed, estimates=d) for seed, d in enumerate(draws)]
    biased = [_row("ensemble", 64, seed, estimates=[1.6 * v for v in d]) for seed, d in enumerate(draws)]
    assert law_test(fair)[3] > 0.05
    assert law_test(biased)[3] < 0.01


def test_sections_need_rows_only():
    rows = [_row(m, w, s, ratio=1 + s / 100) for m in ("ensemble", "uvu") for w in (32, 64) for s in (0, 1)]
    section = verify_section(rows, theory_verify.NAME)
    assert "1.005 ± 0.005" in section.summary
    assert [item.id for item in section.items if isinstance(item, Chart)] == [
        "verify_ratio",
        "verify_error",
        "verify_quantiles",
    ]
    table = next(item for item in section.items if isinstance(item, Table))
    assert len(table.rows) == 4
    assert verify_section([], theory_verify.NAME) is None


@pytest.mark.slow
def test_verify_from_the_command_line(tmp_path, capsys):
    assert main(["theory", "verify", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    assert "Networks against the theory" in capsys.readouterr().out
    assert (tmp_path / "theory" / "verify_ratio.png").stat().st_size > 1000
    lines = (tmp_path / "verify.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert main(["theory", "verify", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "verify.jsonl").read_text().splitlines() == lines  # finished trials are kept


def chain_data(z: list[float], length: int = 5) -> uvax.data.Dataset:
    return from_arrays(**Chain(length=length).data(z)._asdict(), num_actions=2)


@pytest.mark.parametrize(("policy", "z"), [("uniform", 0.5), ("data", 1.0)])
def test_diagnosis_of_the_chain_is_its_known_spectrum(policy, z):
    """On data of one z, the uniform policy is z = 1/2 and the policy of the data is z = 1."""
    data = chain_data([z])
    settings = theory_diagnose.Settings(policy=policy, kernel="analytic", depth=1, sigma_w=1.5, samples=100)
    found = theory_diagnose.run(settings, data)
    kernel = partial(kernels, depth=1, sigma_w=1.5, sigma_b=0.1, nonlinearity="relu")
    expected = stability(kernel, *Chain(length=5).td_problem([z])[:3], 0.9)
    np.testing.assert_allclose(found.stability.eigenvalues, expected.eigenvalues, rtol=1e-8, atol=1e-10)
    assert found.terminated == 1
    assert found.stability.converges
    assert found.max_learning_rate == pytest.approx(5 * expected.max_learning_rate)


def test_the_network_kernel_averages_over_next_actions():
    """One gradient of the expected next value against a gradient for every action, weighted afterwards."""
    data = chain_data([0.3], length=3)
    settings = theory_diagnose.Settings(policy="uniform", width=16, depth=2)
    found = theory_diagnose.run(settings, data)
    net = uvax.nets.Conditioned(data.spec, 1, width=16, depth=2, key=jax.random.key(0))
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def at(action: np.ndarray, obs: np.ndarray) -> dict[str, np.ndarray]:
        return {"obs": obs, "task": data.task, "action": action}

    def apply(p: Any, point: Any) -> Any:
        return eqx.combine(p, static)(point["obs"], point["task"])[point["action"], 0]

    x = at(data.action, data.obs)
    following = sum(empirical_ntk(apply, params, at(np.full(3, a), data.next_obs), x) for a in (0, 1)) / 2
    delta = empirical_ntk(apply, params, x, x) - 0.9 * np.where(data.terminated, 0.0, 1.0)[:, None] * following
    np.testing.assert_allclose(
        np.sort(found.stability.eigenvalues.real), np.sort(np.linalg.eigvals(delta).real), rtol=1e-4, atol=1e-7
    )


def test_a_run_gives_its_greedy_actions(tmp_path):
    data = chain_data([0.2, 0.8])
    fitted = uvax.fit(uvax.DQN(width=8, depth=1, batch_size=4), data, 3, progress=False)
    fitted.save(tmp_path / "run.safetensors")
    settings = theory_diagnose.Settings(policy=f"run:{tmp_path / 'run.safetensors'}", kernel="analytic", depth=1)
    weights = theory_diagnose._next_action_weights(settings, data, np.arange(len(data)))
    greedy = np.asarray(fitted.value(data.next_obs, data.task)).argmax(axis=-1)
    alive = ~data.terminated
    np.testing.assert_array_equal(weights[alive].argmax(axis=1), greedy[alive])
    np.testing.assert_array_equal(weights[~alive], 0.0)
    assert theory_diagnose.run(settings, data).stability.converges is not None


def test_diagnose_from_the_command_line(tmp_path, capsys):
    data = chain_data([0.0, 0.5, 1.0])
    data.save(tmp_path / "chain.safetensors")
    command = ["theory", "diagnose", "--data", str(tmp_path / "chain.safetensors"), "--kernel", "analytic"]
    assert main([*command, "--depth", "1", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "Semi-gradient TD by gradient descent converges" in shown
    assert "Slowest or unstable directions" in shown
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"diagnosis.json", "spectrum.png", "spectrum.svg"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["theory", "prove"], "unknown command of uvax theory 'prove'"),
        (["theory", "verify", "--preset", "huge"], "unknown preset 'huge'"),
        (["theory", "verify", "--methods", "dqn"], "unknown method 'dqn'"),
        (["theory", "diagnose"], "--data is missing"),
        (["theory", "diagnose", "--data", "nowhere"], "nowhere"),
    ],
)
def test_errors_are_one_sentence(arguments, words, capsys):
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "best"}, "unknown policy 'best'"),
        ({"policy": "run:nowhere"}, "there is no such run"),
        ({"samples": 0}, "samples"),
        ({"gamma": 1.0}, "gamma"),
        ({"kernel": "wide"}, "kernel"),
    ],
)
def test_bad_settings(change, words):
    with pytest.raises(InvalidInput, match=words):
        theory_diagnose.run(theory_diagnose.Settings(**change), chain_data([0.5]))
