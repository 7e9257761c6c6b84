"""What a run says while it goes on: the log, tensorboard, the bar and the lines."""

import io
import json
import sys

import pytest
from rich.console import Console

from uvax.errors import InvalidInput, WriteFailed
from uvax.training import fit, progress
from uvax.training.log import Log


def evaluate(estimator, state, step):
    return {"return": step / 2, "share": 0.25}


def test_every_metric_is_in_the_log(data, linear, tmp_path):
    got = fit(linear(), data, 20, seed=3, out=tmp_path / "run", evaluate=evaluate, evaluations=2, progress=False)
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert rows == list(got.log)
    assert [(row["step"], row["kind"]) for row in rows] == [
        (10, "train"),
        (10, "evaluation"),
        (20, "train"),
        (20, "evaluation"),
    ]
    assert rows[0].keys() == {"step", "seed", "kind", "loss", "q", "seconds"}
    assert rows[1] == {"step": 10, "seed": 3, "kind": "evaluation", "return": 5.0, "share": 0.25} | {
        "seconds": rows[1]["seconds"]
    }
    assert 0 <= rows[0]["seconds"] <= rows[3]["seconds"]


def test_the_configuration_is_beside_it(data, linear, tmp_path):
    fit(linear(), data, 4, seed=3, out=tmp_path / "run", progress=False)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["estimator"]["class"] == "Linear"
    assert config["estimator"]["gamma"] == 0.9
    assert config["dataset"] == {"checksum": data.checksum, "rows": 150, "header": data.header}
    assert (config["steps"], config["seed"], config["seeds"], config["evaluations"]) == (4, 3, None, 0)
    assert config["versions"].keys() >= {"uvax", "jax", "jaxlib", "python", "numpy", "platform"}


def test_a_log_that_cannot_be_written_is_a_sentence(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log._file.close()
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115  # closed by close()
    with pytest.raises(WriteFailed, match=r"the disk is full.*resume=True"):
        log.add("train", 1, 0, 0.0, {"loss": 1.0})
    log.close()


def test_tensorboard_missing_is_a_sentence(data, linear, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InvalidInput, match=r"needs the package tensorboardX.*pip install 'uvax\[tensorboard\]'"):
        fit(linear(), data, 4, out=tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.extras
def test_tensorboard_gets_every_number(data, linear, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    options = {"evaluate": evaluate, "evaluations": 2, "tensorboard": True, "progress": False}
    fit(linear(), data, 20, out=tmp_path / "run", **options)
    (path,) = (tmp_path / "run" / "tensorboard").iterdir()
    content, seen, at = path.read_bytes(), {}, 0
    while at < len(content):  # records: length, its checksum, the event, its checksum
        length = int.from_bytes(content[at : at + 8], "little")
        event = Event.FromString(content[at + 12 : at + 12 + length])
        for value in event.summary.value:
            seen.setdefault(value.tag, []).append((event.step, value.simple_value))
        at += 12 + length + 4
    assert seen["evaluation/return/seed-0"] == [(10, 5.0), (20, 10.0)]
    assert [step for step, _ in seen["train/loss/seed-0"]] == [10, 20]


def test_lines_where_there_is_no_terminal(data, linear, capsys):
    fit(linear(), data, 20, evaluate=evaluate, evaluations=2)
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("Linear: step 20 of 20, loss ")
    assert ", return 10, " in line
    assert line.endswith("0:00 left")


def test_silence_when_it_is_wanted(data, linear, capfd):
    fit(linear(), data, 20, progress=False)
    assert capfd.readouterr() == ("", "")


def test_lines_come_now_and_then_with_the_time_left(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 31.0, 31.0, 3_700.0, 3_700.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = progress.Lines("UVU", 100, 300)
    lines.update(110, loss=0.5)
    lines.update(120, loss=0.25)
    lines.update(200, evaluation="return 7")
    assert capsys.readouterr().err.splitlines() == [
        "UVU: step 120 of 300, loss 0.25, 0:31 spent, 4:39 left",
        "UVU: step 200 of 300, loss 0.25, return 7, 1:01:40 spent, 1:01:40 left",
    ]


def test_a_bar_in_a_terminal():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    bar = progress.Bar("UVU", 0, 1_000, console)
    bar.update(500, loss=0.125)
    bar.update(500, evaluation="return 10.5")
    bar.say("stopping after these steps")
    bar.close()
    text = screen.getvalue()
    for part in ("UVU", "500/1000", "loss 0.125", "return 10.5", "stopping after these steps"):
        assert part in text
