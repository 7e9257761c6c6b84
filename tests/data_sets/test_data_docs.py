"""The code of docs/data.md runs, from top to bottom."""

import re
from pathlib import Path

import pytest


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    page = Path(__file__).parents[2] / "docs" / "data.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) >= 4
    exec(compile("\n".join(blocks), str(page), "exec"), {})
    assert "transitions" in capsys.readouterr().out
