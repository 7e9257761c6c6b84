"""Rows with made-up numbers of the right shape, for every experiment: nothing here was measured."""

import base64
import functools
import math
import random
import struct
import zlib
from typing import Any

from uvax.envs.go_to_door import WALLS
from uvax.evaluation.protocol import PLACES
from uvax.experiments import ablation, chain, exploration, novelty, paper, runtime, search, width
from uvax.experiments.presets import Training, changes
from uvax.experiments.rows import Trial
from uvax.experiments.timing import timing_config
from uvax.experiments.trial import trial_config

DATASET = "0" * 64
TRAINING = Training(steps=1_000, evaluations=8, evaluation_episodes=100, final_episodes=200)


def interval(name: str, value: float, spread: float = 0.05, n: int = 200) -> dict[str, Any]:
    return {name: value, f"{name}_low": value - spread, f"{name}_high": value + spread, f"{name}_n": n}


def task_rejection_result(method: str, size: int, seed: int, bonus: float | None = None) -> dict[str, Any]:
    """Numbers around the paper's, with luck that depends on the seed."""
    luck = random.Random(f"{method}-{size}-{seed}-{bonus}")
    best = paper.TABLE1.get(size, paper.TABLE1[5]).get(method, (7.0, 0.1))[0] + (bonus or 0.0) + luck.gauss(0, 0.1)
    steps = [TRAINING.steps * (i + 1) // TRAINING.evaluations for i in range(TRAINING.evaluations)]
    returns = [best * (1 - math.exp(-3 * (i + 1) / len(steps))) + luck.gauss(0, 0.1) for i in range(len(steps))]
    impossible = [0.3 * math.exp(-i) + 0.01 * luck.random() for i in range(len(steps))]
    top = max(range(len(steps)), key=returns.__getitem__)
    good = min(best / 11, 1.0)
    attempt = {"north": (1 - good) / 3, "south": good / 2, "west": good / 2, "east": (1 - good) / 3}
    attempt["impossible"] = 1 - sum(attempt.values())

    def evaluation(i: int) -> dict[str, Any]:
        return {"step": steps[i], "return": returns[i], "attempt_impossible": impossible[i], "kind": "evaluation"}

    final = interval("return", best - 0.05) | {"episodes": 200, "reject": 4}
    for place in PLACES:
        final |= interval(f"attempt_{place}", attempt[place], 0.01)
        earned = {"south": 10.5, "west": 10.2}.get(place, 0.4)
        final |= interval(f"return_{place}", 0.0 if place == "impossible" else earned)
        final |= interval(f"uncertainty_{place}", 0.01) | interval(f"value_{place}", 1.0)
    for k in range(6):
        final |= interval(f"curve_method_{k}", 3.5 + (best - 3.5) * k / 5)
        final |= interval(f"curve_oracle_{k}", 3.5 + 7.5 * min(1, k / 4)) | interval(f"curve_random_{k}", 3.5)
    for name in ("area", "area_random", "area_oracle", "area_over_random"):
        final |= interval(name, best)
    final |= interval("gain", good)
    for group in ("every", "possible"):
        final |= interval(f"rank_correlation_{group}", 0.5) | interval(f"failure_auroc_{group}", 0.9)
    result = {
        "status": f"finished after {TRAINING.steps:,} steps",
        "changes": {},
        "notes": [],
        "best": evaluation(top),
        "last": evaluation(len(steps) - 1),
        "final": final,
        "curve": {
            "step": steps,
            "return": returns,
            "attempt_impossible": impossible,
            "train_loss": [1.0 / (i + 1) for i in range(len(steps))],
        },
        "seconds": {"compile": 1.0, "train": 60.0, "evaluate": 5.0, "per_step": 0.06, "total": 66.0},
        "ceiling": {"mean": 11.3 - 0.7 * (size - 5), **dict.fromkeys(WALLS, 11.0)},
        "dataset": {
            "transitions": 320_000,
            "seed": 0,
            "collection": {"dqn": {"width": 128}},
            "greedy_policy_score": {"expert": 10.9, "expert_ceiling": 11.3, "other": 0.1, "other_ceiling": 11.3},
        },
    }
    if seed == 0 and bonus is None:
        result["explorer"] = explorer(method, size)
    return result


def explorer(method: str, size: int) -> dict[str, Any]:
    """Two boards; uncertainty is low for south and west, high for the rest."""
    boards, value, uncertainty, action = [], [], [], []
    for b in range(2):
        w, h = size, max(5, size - b)
        luck = random.Random(f"{size}-{b}")
        colours = luck.sample(range(6), 4)
        places = [(2, 0), (w - 3, h - 1), (0, 2), (w - 1, h - 3)]
        doors = [
            {"wall": wall, "x": x, "y": y, "colour": c} for wall, (x, y), c in zip(WALLS, places, colours, strict=True)
        ]
        boards.append({"width": w, "height": h, "doors": doors, "start": {"x": 1, "y": 2, "direction": 3}})
        known = dict(zip(colours, doors, strict=True))

        def field(task: int, x: int, y: int, d: int, known: dict[int, Any] = known) -> tuple[float, float]:
            door = known.get(task)
            far = 6.0 if door is None else abs(door["x"] - x) + abs(door["y"] - y)
            unsure = 0.4 if door is None else 0.2 if door["wall"] in ("north", "east") else 0.01
            if method == "dqn":
                unsure = 0.0
            return round(3 * 0.9**far, 4), round(unsure * (1 + far / 10 + d / 20), 4)

        grid = [
            [[[field(t, x, y, d) for d in range(4)] for x in range(1, w - 1)] for y in range(1, h - 1)]
            for t in range(6)
        ]
        value.append([[[[p[0] for p in cell] for cell in line] for line in task] for task in grid])
        uncertainty.append([[[[p[1] for p in cell] for cell in line] for line in task] for task in grid])
        action.append([[[[2 for _ in cell] for cell in line] for line in task] for task in grid])
    return {"boards": boards, "value": value, "uncertainty": uncertainty, "action": action}


def table1_rows(
    sizes: tuple[int, ...] = (5, 6), methods: tuple[str, ...] = paper.METHODS, seeds: int = 3
) -> list[dict[str, Any]]:
    return [
        _row("table1", trial_config(m, s, DATASET, preset="cpu", training=TRAINING), seed, m, s)
        for s in sizes
        for m in methods
        for seed in range(seeds)
    ]


def width_rows() -> list[dict[str, Any]]:
    return [
        _row("width", _config(m, 10, {"width": w}), seed, m, 10, bonus=-30 / w)
        for w in width.WIDTHS["cpu"]
        for m in ("dqn", "bdqnp3", "uvu")
        for seed in range(3)
    ]


def search_rows() -> list[dict[str, Any]]:
    rows = []
    for method in ("dqn", "bdqnp3", "dqn-rnd-p", "uvu"):
        for setting in search.settings(method, "cpu", 10):
            bonus = -sum(abs(math.log10(v / 3e-4)) / 2 for v in setting.values() if v < 0.1)
            rows += [_row("search", _config(method, 10, setting), s, method, 10, bonus) for s in range(2)]
    return rows


def ablation_rows() -> list[dict[str, Any]]:
    return [
        _row("ablation", _config(method, 5, changes), seed, method, 5, bonus=0.0)
        for method, changes in ablation.variants("cpu")
        for seed in range(2)
    ]


def runtime_rows() -> list[dict[str, Any]]:
    rows = []
    for method, estimator in runtime.estimators("paper"):
        members = getattr(estimator, "members", 1)
        for cached in (False, True) if method != "dqn" else (False,):
            config = timing_config(estimator, method, preset="paper", cached=cached, seconds=30.0)
            step = 0.1 if method == "uvu" else 0.04 * members * (0.8 if cached else 1.0)
            result = {
                "status": "finished",
                "per_step": step,
                "fastest": 0.97 * step,
                "slowest": 1.05 * step,
                "compile": 4.0,
                "fill_cache": 12.0 if cached else 0.0,
                "cached": cached,
                "evaluation": 0.7,
                "steps_measured": 300,
                "parameters": 1_000_000 * members,
                "frozen_parameters": 1_000_000 * members,
                "state_bytes": 4_000_000,
                "memory": 2**30,
                "threads": 2,
                "device": "cpu",
            }
            rows.append(Trial("runtime", config, 0).row(result))
    return rows


def novelty_rows() -> list[dict[str, Any]]:
    rows = []
    for size in (5, 10):
        for i, different in enumerate(novelty.variants("cpu")):
            steps = [1_000, 2_000, 3_000]
            told = [0.5 + 0.02 * (i + 1) * (k + 1) for k in range(len(steps))]
            last = {"step": 3_000, "auroc": told[-1], "known": 5e-5, "random": 6e-5, "impossible": 8e-5}
            result = {"status": "finished", "last": last, "curve": {"step": steps, "auroc": told}, "seconds": {}}
            rows.append(Trial("novelty", novelty.novelty_config(size, DATASET, "cpu", different), 0).row(result))
    return rows


def exploration_rows() -> list[dict[str, Any]]:
    rows = []
    for trial in exploration.trials(exploration.scope("cpu"), {}, []):
        method = trial.config["method"]
        result = task_rejection_result(method, 5, trial.seed, -5 * exploration.explored(trial.config["collection"]))
        result |= {"coverage": dict.fromkeys(WALLS, 5_000), "dataset": {"greedy_policy_score": {"expert": 11.0}}}
        rows.append(trial.row(result))
    return rows


def board_rows() -> list[dict[str, Any]]:
    result = {"png": base64.b64encode(_png(8, 8)).decode(), "width": 8, "height": 8, "mission": "go to the red door"}
    return [Trial("board", {"kind": "board", "size": 10, "tile": 32}, 0).row(result)]


def chain_rows(chains: tuple[str, ...] = ("c0",), seeds: int = 2) -> list[dict[str, Any]]:
    """Surfaces that fall with z and along the chain, and tables of which one entry is not in the data."""
    config = chain.tables_config()
    length, tables, leaves = config["length"], config["tables"], config["leaves"]
    luck = random.Random("tables")
    g, u0 = ([[[luck.gauss(0, 1) for _ in range(2)] for _ in range(length)] for _ in range(tables)] for _ in range(2))
    policies = {}
    for name in ("data", "leaves"):
        u = [[list(entry) for entry in table] for table in u0]
        for t in range(tables):
            for s in range(length):
                away = leaves - 1 - s
                unknown = name == "leaves" and away > 0
                u[t][s][0] = g[t][s][0] + (0.7**away * (u0[t][leaves - 1][1] - g[t][leaves - 1][1]) if unknown else 0)
        half = [
            [sum((u[t][s][a] - g[t][s][a]) ** 2 for t in range(tables)) / 8 for a in range(2)] for s in range(length)
        ]
        errors = {"difference": 6e-8, "td_error_u": 5e-8, "td_error_g": 0.0}
        policies[name] = {"g": g, "u": [u0, u], "exact": u, "uncertainty": half, **errors}
    rows = [Trial("chain", config, 0).row({"status": "finished", **policies})]
    for name in chains:
        for method in ("theory", "ensemble", "uvu", "dqn-rnd", "dqn-rnd-p"):
            config = chain.trial_config(method, name)
            for seed in range(1 if method == "theory" else seeds):
                rows.append(Trial("chain", config, seed).row(_chain_result(method, config, seed)))
    return rows


def _chain_result(method: str, config: dict[str, Any], seed: int) -> dict[str, Any]:
    factor = {"theory": 1.0, "ensemble": 1.05 + seed / 20, "uvu": 0.95 - seed / 20, "dqn-rnd": 0.02}.get(method, 0.9)

    def surface(scale: float) -> list[list[float]]:
        zs, states = range(config["test_z"]), range(config["length"])
        last = config["length"] - 1
        return [[0.35 * scale * (1 - z / zs[-1]) ** 2 * (1 - (s / last) ** 4) for s in states] for z in zs]

    result = {"status": "finished", "uncertainty": surface(factor), "value": surface(1.0), "error": surface(0.001)}
    if method in ("ensemble", "uvu"):
        numbers = {"correlation": 0.99, "ratio": factor, "at_steps": factor, "difference": 0.1, "covered": 1e-5}
        return result | numbers
    return result


@functools.cache
def every_row() -> list[dict[str, Any]]:
    trained = (table1_rows, width_rows, search_rows, ablation_rows, novelty_rows, exploration_rows, chain_rows)
    parts = (*trained, runtime_rows, board_rows)
    return [row for part in parts for row in part()]


def _config(method: str, size: int, changes: dict[str, Any]) -> dict[str, Any]:
    return trial_config(method, size, DATASET, preset="cpu", hyperparameters=changes, training=TRAINING)


def _row(
    experiment: str, config: dict[str, Any], seed: int, method: str, size: int, bonus: float | None = None
) -> dict[str, Any]:
    result = task_rejection_result(method, size, seed, bonus)
    return Trial(experiment, config, seed).row(result | {"changes": changes(config)})


def _png(width: int, height: int) -> bytes:
    """A grey picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + b"\x80" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
