"""The numbers in the documents are those of the committed rows."""

import importlib.util
from pathlib import Path

import pytest

from uvax.collection import read_recording
from uvax.experiments import paper, table1
from uvax.experiments.experiment import Settings
from uvax.experiments.rows import RowStore
from uvax.experiments.run import Places, make_plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("results_in_docs", ROOT / "tools" / "results_in_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    return RowStore(ROOT / "results").read().rows


def test_documents_say_what_the_rows_say(tool):
    tool.main(["--check"])


def test_readme_of_other_rows_is_another(tool, rows):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    fewer = [row for row in rows if row["experiment"] != "table1" or row["config"]["method"] != "uvu"]
    without = tool.readme(text, fewer)
    assert "| UVU |" in text
    assert "| UVU |" not in without
    assert tool.readme(without, rows) == text


def test_readme_without_marks_is_refused(tool, rows):
    with pytest.raises(SystemExit, match="lacks the lines"):
        tool.readme("# uvax\n", rows)


def test_results_page_keeps_its_introduction(tool, rows):
    page = tool.results_page("# Results\n\nWritten by hand.\n\n## Old\n\n1.0\n", rows)
    assert page.startswith("# Results\n\nWritten by hand.\n\n## Task rejection")
    assert "Old" not in page


def test_recorded_data_can_be_made_again():
    """The environment and the random numbers are still those of the committed rows."""
    recording = read_recording(ROOT / "results" / "actions" / "size5.safetensors")
    assert len(recording.dataset()) == 320_000  # it compares checksums


def test_every_recording_is_the_one_its_name_says():
    places = Places(data=ROOT / "no data", results=ROOT / "results")
    plan = make_plan(table1.EXPERIMENT, Settings(preset="cpu", seeds=1_000), places)
    assert set(plan.recordings) == set(paper.SIZES)
    assert {trial.config["dataset"] for trial in plan.trials} == {
        read_recording(path).checksum for path in plan.recordings.values()
    }
