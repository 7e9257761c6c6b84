"""The chain of Section 3: tables by hand, surfaces against the oracle, networks against the closed form."""

import functools
import importlib.util
import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from uvax.cli import main
from uvax.data import from_arrays
from uvax.envs.chain import Chain
from uvax.errors import InvalidInput
from uvax.estimators import BDQNP, Policy
from uvax.experiments import chain, chain_figures, chain_tables, jobs
from uvax.experiments.content import Figure, Surfaces, Table
from uvax.experiments.rows import RowStore
from uvax.report.figures import rendered
from uvax.training import fit
from uvax.training.loop import Trainer

DATA = Path(__file__).parents[1] / "data" / "oracle"
GAMMA = 0.7


def silent(share: float, words: str) -> None:
    assert 0 <= share <= 1


@functools.cache
def tables(length: int, leaves: int, seed: int = 0) -> dict:
    config = chain.tables_config("smoke", length=length, leaves=leaves)
    return chain_tables.perform(config, seed, data=None, work=None, progress=silent)


@functools.cache
def closed_form(name: str) -> dict:
    config = chain.trial_config("theory", name)
    return chain.closed_form(config, 0, data=None, work=None, progress=silent)


@functools.cache
def oracle(name: str) -> dict:
    with np.load(DATA / "chain.npz") as archive:
        return {key.removeprefix(f"{name}_"): archive[key] for key in archive.files if key.startswith(f"{name}_")}


def parts(result: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """u before and after training, and g, as [table, state, action]."""
    return np.array(result["u"][0]), np.array(result["u"][-1]), np.array(result["g"])


def test_two_states_by_hand():
    """b in s_2: u_1a = g_1a + gamma (u_2b - g_2b), and u_2a = g_2a, because s_2 ends the chain."""
    u0, u, g = parts(tables(2, 2)["leaves"])
    np.testing.assert_allclose(u[:, 0, 0], g[:, 0, 0] + GAMMA * (u0[:, 1, 1] - g[:, 1, 1]), atol=1e-6)
    np.testing.assert_allclose(u[:, 1, 0], g[:, 1, 0], atol=1e-6)
    assert np.array_equal(u[..., 1], u0[..., 1])  # nothing is known of b
    half = 0.5 * np.mean((u0[:, 1, 1] - g[:, 1, 1]) ** 2)
    uncertainty = np.array(tables(2, 2)["leaves"]["uncertainty"])
    np.testing.assert_allclose(uncertainty[:, 0], [GAMMA**2 * half, 0.0], atol=1e-6)


def test_three_states_by_hand():
    """b in s_3: the error of s_2 is gamma, that of s_1 gamma^2 times the error of (s_3, b)."""
    result = tables(3, 3)
    u0, u, g = parts(result["leaves"])
    error = u0[:, 2, 1] - g[:, 2, 1]
    np.testing.assert_allclose((u - g)[:, :, 0], error[:, None] * [GAMMA**2, GAMMA, 0.0], atol=1e-6)
    # A sweep moves what is known one state back: after the first, s_3 is right and the others wait for it.
    first = np.array(result["data"]["u"][1])
    np.testing.assert_allclose(first[:, 2, 0], g[:, 2, 0], atol=1e-6)
    np.testing.assert_allclose(first[:, 1, 0], g[:, 1, 0] + GAMMA * (u0 - g)[:, 2, 0], atol=1e-6)
    np.testing.assert_allclose(parts(result["data"])[1][..., 0], g[..., 0], atol=1e-6)


@pytest.mark.parametrize("length", [2, 3])
def test_ensembles_of_tables_by_hand(length):
    """Values z-discounted from the reward at the end, variances (gamma^k (1 - z))^2 of what b was drawn as."""
    env, z = Chain(length=length), 0.25
    data = from_arrays(**env.data([z])._asdict(), num_actions=2)
    settings = chain_tables.settings(len(data), GAMMA, Policy(env.next_probs, name="chain"))
    estimator = BDQNP(**settings, members=8, prior_scale=0.0)
    before = Trainer(estimator, data, [0], stacked=False).init()
    trained = fit(estimator, data, length, seed=0, progress=False)
    states, task = jnp.eye(length), jnp.full((length, 1), z)
    drawn = np.asarray(estimator.member_values(before, states, task))[:, 1]  # of b: [state, member]
    expected = np.ones(8)
    for s in reversed(range(length)):
        members = np.asarray(estimator.member_values(trained.state, states, task))[s, 0]
        np.testing.assert_allclose(members, expected, atol=1e-6)
        np.testing.assert_allclose(trained.uncertainty(states, task)[s, 0], np.var(expected, ddof=1), atol=1e-6)
        expected = GAMMA * (z * expected + (1 - z) * drawn[s])


def test_the_papers_tables_agree_with_the_linear_solve():
    result = tables(5, 3)
    for policy in chain_tables.POLICIES:
        found = result[policy]
        assert found["difference"] < 1e-6
        assert found["td_error_u"] < 1e-6
        assert found["td_error_g"] < 1e-12
    assert np.array(result["data"]["uncertainty"])[:, 0].max() < 1e-12
    uncertainty = np.array(result["leaves"]["uncertainty"])[:, 0]
    assert uncertainty[:2].min() > 0.01
    assert uncertainty[2:].max() < 1e-12
    assert np.array_equal(result["data"]["u"][0], result["leaves"]["u"][0])  # the same draws on both sides


def test_a_policy_leaves_within_the_chain():
    with pytest.raises(InvalidInput, match="leaves is 6; expected a state of the chain, from 1 to 5"):
        chain_tables.policy_of(Chain(length=5), 6)


@pytest.mark.parametrize("name", ["c0", "c1"])
def test_the_closed_form_is_the_oracles(name):
    found, expected = closed_form(name), oracle(name)
    for ours, theirs in (
        ("uncertainty", "var_a"),
        ("value", "mean_a"),
        ("error", "var_myopic_a"),
        ("uncertainty_b", "var_b"),
    ):
        scale = np.abs(expected[theirs]).max() if "myopic" not in theirs else np.abs(expected["var_myopic_b"]).max()
        assert np.abs(np.array(found[ours]) - expected[theirs]).max() < 1e-7 * scale
    setting = chain.setting(name, "cpu")
    assert np.array_equal(np.linspace(0, 1, setting.test_z), expected["zgrid"])
    assert tuple(expected["ztrain"]) == setting.train_z


@pytest.mark.parametrize("name", ["c0", "c1"])
def test_what_the_data_determine_is_certain_and_early_states_are_less_so_the_more_b_is_taken(name):
    surface = np.array(closed_form(name)["uncertainty"])
    assert np.abs(surface[-1]).max() < 1e-9 * surface.max()  # z = 1
    early = surface[:, :5]
    assert np.all(np.diff(early, axis=0) < 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ensemble", "uvu"])
def test_networks_of_the_default_width_draw_the_closed_form(method):
    """Fewer steps than by default, for time: what is slow to learn is small, the surfaces correlate already."""
    config = chain.trial_config(method, "c0", "cpu", steps=200)
    result = getattr(chain, method)(config, 0, data=None, work=None, progress=silent)
    assert config["count"] == 128
    assert result["correlation"] > 0.95
    assert chain.correlation(np.array(result["uncertainty"]), oracle("c0")["var_a"]) > 0.95
    early = np.array(result["uncertainty"])[:, :4]
    assert np.all(np.diff(early, axis=0) < 0)
    assert 0.5 < result["ratio"] < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ensemble", "uvu"])
def test_trained_networks_are_certain_where_the_data_determine_the_value(method):
    """At z = 1, on states that the data cover: below a thousandth of the largest uncertainty."""
    config = chain.trial_config(method, "c0", "cpu", count=4, width=256)
    result = getattr(chain, method)(config, 0, data=None, work=None, progress=silent)
    assert result["covered"] < 1e-3
    assert np.array(result["uncertainty"]).min() >= 0


@pytest.mark.slow
def test_rnd_needs_its_priors():
    """Its errors at a are small everywhere; only with priors does the error of b, near 1/4, reach the values of a."""
    small = {"count": 32, "width": 256, "steps": 600}
    plain, prior = (
        chain.rnd(chain.trial_config(m, "c0", "cpu", **small), 0, data=None, work=None, progress=silent)
        for m in ("dqn-rnd", "dqn-rnd-p")
    )
    assert np.abs(np.array(plain["error"])).max() < 5e-3
    assert np.array(plain["error_b"]).min() > 0.1
    assert prior["correlation"] > 0.85
    for result in (plain, prior):  # at z = 0, which is in the data, the value of a is that of b in the next state
        here, following = np.array(result["uncertainty"])[0, :-1], np.array(result["uncertainty_b"])[0, 1:]
        np.testing.assert_allclose(here, 0.9 * following, atol=0.02)
    # Both begin with the same intrinsic Q; what is more with priors is the error of b.
    gained = np.array(prior["uncertainty"]) - np.array(plain["uncertainty"])
    assert gained[0, :5].min() > 0.5 * np.array(prior["error_b"]).mean()


def test_committed_rows_hold_what_the_documentation_says():
    """Rows of the command itself, at the default widths and steps."""
    rows = RowStore(Path(__file__).parents[2] / "results" / "chain.jsonl").read().rows
    networks = [
        row for row in rows if row["config"]["method"] in ("ensemble", "uvu") and row["config"]["chain"] == "c0"
    ]
    assert len(networks) == 6
    for row in networks:
        expected = chain.trial_config(row["config"]["method"])
        assert row["config"] == json.loads(json.dumps(expected))
        surface = np.array(row["result"]["uncertainty"])
        assert chain.correlation(surface, oracle("c0")["var_a"]) > 0.95
        assert row["result"]["correlation"] == pytest.approx(
            chain.correlation(surface, oracle("c0")["var_a"]), abs=1e-4
        )
        assert surface[-1].max() < 1e-3 * surface.max()
    document = (Path(__file__).parents[2] / "docs" / "chain.md").read_text()
    for method in ("ensemble", "uvu"):
        values = [row["result"]["correlation"] for row in networks if row["config"]["method"] == method]
        assert f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})" in document


def test_correlation_is_pearsons_and_nothing_for_a_constant():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 4))
    assert chain.correlation(a, b) == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1])
    assert chain.correlation(a, np.ones((3, 4))) == 0.0


def test_unknown_names_are_refused():
    with pytest.raises(InvalidInput, match="c2"):
        chain.experiment(("c2",))
    with pytest.raises(InvalidInput, match="swarm"):
        chain.trial_config("swarm")


def made_up_rows() -> list:
    place = Path(__file__).parents[1] / "report" / "made_up_rows.py"
    spec = importlib.util.spec_from_file_location("made_up_rows", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.chain_rows(("c0", "c1"))


def test_the_section_shows_all_figures_in_order():
    section = chain.section(made_up_rows())
    figures = [item.id for item in section.items if isinstance(item, Figure)]
    one = ["chain_surfaces", "chain_rnd"]
    assert figures == ["chain_tables", *one, *(f"{name}_c1" for name in one)]
    explorer = next(item for item in section.items if isinstance(item, Surfaces))
    assert [layer.name for layer in explorer.layers] == [
        "closed form",
        "ensemble of 128",
        "UVU, 128 heads",
        "RND errors",
        "intrinsic Q",
        "intrinsic Q with intrinsic reward priors",
    ]
    comparison = next(i for i in section.items if isinstance(i, Table) and i.id == "chain_comparison")
    assert [row[0] for row in comparison.rows][-1] == "UVU / ensemble"
    assert comparison.rows[0][4].text == "1.08 (1.05 to 1.10)"
    assert "correlation 0.990" in section.summary
    assert chain.section([]) is None
    # Without the closed form there is nothing to compare with, and the section says so.
    partly = [row for row in made_up_rows() if row["config"]["method"] != "theory"]
    assert any(isinstance(i, str) and "has no row yet" in i for i in chain.section(partly).items)


def test_figures_have_labels_and_one_scale():
    surface = np.outer(np.linspace(1, 0, 3), np.ones(4))
    z = np.linspace(0, 1, 3)
    columns = [("low", 0.1 * surface), ("high", surface), ("closed form", surface)]
    for figure in (
        chain_figures.draw_surfaces(columns, z, label="variance"),
        chain_figures.draw_rows(columns, z, label="variance"),
    ):
        plots = [axis for axis in figure.axes if axis.name == "3d"]
        assert len(plots) == 2 * len(columns)
        assert {axis.get_zlim() for axis in plots} == {plots[0].get_zlim()}
        assert {axis.collections[0].get_clim() for axis in plots} == {(0.0, 1.0)}
        assert {(axis.get_xlabel(), axis.get_ylabel()) for axis in plots} == {("state", "$z$")}
        assert len({axis.azim for axis in plots}) == 2
    drawn = chain_figures.draw_tables(tables(5, 3), leaves=3)
    svg = rendered(drawn, "svg").decode()
    for words in ("data policy", "state", "table 4", "trained"):
        assert words in svg
    assert rendered(drawn, "png").startswith(b"\x89PNG")


def test_figures_are_told_apart_by_lightness():
    """A print in grey keeps the order of the values."""
    import matplotlib

    colours = matplotlib.colormaps[chain_figures.COLOURS](np.linspace(0, 1, 32))[:, :3]
    assert np.all(np.diff(colours @ [0.2126, 0.7152, 0.0722]) > 0)


def test_every_kind_of_trial_is_found():
    for trial in chain.EXPERIMENT.trials(chain.EXPERIMENT.scope("smoke"), {}, []):
        assert callable(jobs.imported(trial.config["kind"], "kind of trial"))


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capfd):
    """The whole, small: rows, figures, printed numbers; a second run keeps what is there."""
    command = ["experiment", "chain", "--preset", "smoke", "--results", str(tmp_path), "--workers", "2"]
    assert main([*command, "--dry-run"]) == 0
    assert "6 trials" in capfd.readouterr().err
    assert not (tmp_path / "chain.jsonl").exists()
    assert main(command) == 0
    said = capfd.readouterr()
    assert re.search(r"ensemble of 8 against the closed form: correlation 0\.\d+, ratio \d", said.out)
    assert "Surfaces against the closed form" in said.out
    assert "chain: 6 of 6 done" in said.err
    names = {path.name for path in (tmp_path / "chain").iterdir()}
    assert names == {f"chain_{n}.{kind}" for n in ("tables", "surfaces", "rnd") for kind in ("png", "svg")}
    lines = (tmp_path / "chain.jsonl").read_text()
    assert main(command) == 0
    assert (tmp_path / "chain.jsonl").read_text() == lines
