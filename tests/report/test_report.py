"""From rows to a page, and to tables for a paper."""

import csv
import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import made_up_rows
import pytest

from uvax import cli
from uvax.errors import InvalidInput
from uvax.experiments.content import Cell, Chart, Figure, Series, Table
from uvax.experiments.rows import RowStore, Trial
from uvax.report import build, explorer_data, make_sections, tables
from uvax.report.figures import plotly_figure, rendered, static_figure
from uvax.report.sections import usable


class Page(HTMLParser):
    """What a page has: ids, links, resources, images, and the JSON in it."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.external: list[str] = []
        self.images: list[dict[str, str]] = []
        self.headings: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script = self._heading = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.ids += [named["id"]] if "id" in named else []
        for name in ("src", "href"):
            value = named.get(name) or ""
            if value.startswith("#"):
                self.anchors.append(value[1:])
            elif value and not value.startswith("data:"):
                self.external.append(value)
        if tag == "img":
            self.images.append(named)
        self._heading = tag if tag in ("h1", "h2") else ""
        if tag == "script" and named.get("type") in ("application/json", "text/plain"):
            self._script = named.get("data-chart") or named.get("data-content") or named.get("id")

    def handle_data(self, data):
        if self._heading and data.strip():
            self.headings.append(data.strip())
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def handle_endtag(self, tag):
        self._script = ""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    failed = [{"trial_id": "gone", "title": "UVU, size 7", "experiment": "table1", "attempts": 3, "error": "killed"}]
    build(made_up_rows.every_row(), out, title="A <b>title</b>", problems=["x.jsonl, line 3: </script>"], failed=failed)
    return out.read_text()


@pytest.mark.slow
def test_the_page_needs_nothing_but_itself(page):
    found = Page(page)
    assert found.external == []
    assert not re.search(r"""<(?:link|script|img)[^>]+(?:src|href)=["']?https?:""", page)
    assert len(set(found.ids)) == len(found.ids)
    assert set(found.anchors) <= set(found.ids)
    assert all(image.get("alt") for image in found.images)
    assert page.count("plotly.js v") <= 3  # the library is there once


@pytest.mark.slow
def test_the_page_has_every_part(page):
    found = Page(page)
    for heading in (
        "Summary",
        "Task rejection (Table 1)",
        'Network width (Figure "gotodoor" a)',
        "Ablations",
        "Grid explorer",
        "Where the numbers come from",
        "Download the data",
    ):
        assert heading in found.headings
    for chart in ("table1-rejection", "table1-learning", "table1-attempts", "width-return", "runtime-step"):
        data = json.loads(found.scripts[chart])
        assert data["data"]
    explorer = json.loads(found.scripts["explorer-data"])
    assert set(explorer) == {"5", "6"}
    assert "uvu" in explorer["5"]["methods"]
    assert "the worker" not in page
    assert "UVU, size 7" in page  # a failed trial is not silently missing


@pytest.mark.slow
def test_text_of_rows_cannot_become_markup(page):
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    assert "x.jsonl, line 3: &lt;/script&gt;" in page


@pytest.mark.slow
def test_downloads_hold_every_row(page):
    rows = list(csv.DictReader(io.StringIO(json.loads(Page(page).scripts["rows.csv"]))))
    assert len(rows) == len(made_up_rows.every_row())
    wanted = next(r for r in made_up_rows.every_row() if r["experiment"] == "table1")
    found = next(r for r in rows if r["trial_id"] == wanted["trial_id"])
    assert float(found["result.best.return"]) == wanted["result"]["best"]["return"]
    assert found["config.hyperparameters.width"] == str(wanted["config"]["hyperparameters"]["width"])
    curves = list(csv.DictReader(io.StringIO(json.loads(Page(page).scripts["curves.csv"]))))
    assert sum(c["trial_id"] == wanted["trial_id"] for c in curves) == len(wanted["result"]["curve"]["step"])


def test_the_table_has_our_numbers_beside_the_papers():
    rows = made_up_rows.table1_rows(sizes=(5,), methods=("dqn", "uvu"), seeds=3)
    for row in rows:
        if row["config"]["method"] == "uvu":
            row["result"]["best"]["return"] = 11.0 + 0.01 * row["seed"]
    (section,), _ = make_sections(rows)
    table = next(item for item in section.items if isinstance(item, Table) and item.id == "table1-scores")
    ours, theirs = table.rows
    assert list(table.columns) == ["size", "DQN", "UVU", "optimal"]
    assert ours[2].text == "11.01 ± .02 ▲"
    assert ours[2].mark == "best"
    assert theirs[2].text == "10.54 ± .03"
    assert ours[2].value == pytest.approx(11.01)


def test_one_seed_has_no_interval():
    (section,), _ = make_sections(made_up_rows.table1_rows(sizes=(5,), methods=("uvu",), seeds=1))
    table = next(item for item in section.items if isinstance(item, Table))
    assert "±" not in table.rows[0][1].text


def test_experiments_without_rows_have_no_section():
    sections, problems = make_sections(made_up_rows.width_rows())
    assert [s.id for s in sections] == ["width"]
    assert problems == []


def test_rows_of_ones_own_are_shown_when_they_are_task_rejection():
    rows = made_up_rows.table1_rows(sizes=(5,), methods=("uvu", "dqn"), seeds=1)
    own = [Trial("demo", row["config"], row["seed"]).row(row["result"]) for row in rows]
    odd = Trial("odd", {"kind": "something"}, 0).row({})
    sections, problems = make_sections([*own, odd])
    assert [s.id for s in sections] == ["demo"]
    assert explorer_data(own)["5"]["methods"].keys() == {"uvu", "dqn"}
    assert problems == ["1 rows of odd are of a kind that the report has no section for"]


def test_rows_that_lack_something_are_named():
    row = made_up_rows.table1_rows(sizes=(5,), methods=("uvu",), seeds=1)[0]
    broken = Trial("table1", row["config"], 9).row({"status": "finished"})
    good, problems = usable([row, broken])
    assert good == [row]
    assert problems == [f"trial {broken['trial_id']} of table1 has no result.best and is left out"]


def test_a_diverged_run_does_not_break_its_section():
    rows = made_up_rows.table1_rows(sizes=(5,), methods=("uvu",), seeds=2)
    rows[1]["result"] |= {"best": None, "last": None, "final": None, "curve": {}, "status": "diverged at step 3"}
    (section,), _ = make_sections(rows)
    table = next(item for item in section.items if isinstance(item, Table))
    assert table.rows[0][1].value == rows[0]["result"]["best"]["return"]


TABLE = Table(
    id="t",
    title="Fifty % of it",
    columns=["a_b", "value"],
    rows=[["x|y & z", Cell("1.50 ± .03", 1.5, "best")], ["", Cell("–", None, "missing")]],
    caption="A caption.",
)


def test_markdown():
    assert tables.markdown(TABLE).splitlines() == [
        "**Fifty % of it**",
        "",
        "| a_b | value |",
        "| --- | ---: |",
        "| x\\|y & z | **1.50 ± .03** |",
        "|  | – |",
        "",
        "A caption.",
    ]


def test_latex_escapes_what_it_must():
    text = tables.latex(TABLE)
    assert r"a\_b & value \\" in text
    assert r"x|y \& z & \textbf{1.50 $\pm$ .03} \\" in text
    assert r"\caption{Fifty \% of it. A caption.}" in text
    assert text.count(r"\begin") == text.count(r"\end") == 2


def test_csv_has_the_numbers():
    assert list(csv.reader(io.StringIO(tables.table_csv(TABLE)))) == [["a_b", "value"], ["x|y & z", "1.5"], ["", "–"]]


CHART = Chart(
    id="c",
    title="c",
    x_label="x",
    y_label="y",
    series=[
        Series("a", [1, 10], [1.0, None], [0.5, None], [1.5, None], group="one"),
        Series("b", [1, 10], [2.0, float("nan")], dashed=True, group="two"),
    ],
    alt="two lines",
    log_x=True,
)


def test_a_chart_is_plain_json_for_plotly():
    figure = plotly_figure(CHART)
    json.dumps(figure, allow_nan=False)
    assert figure["groups"] == ["one", "two"]
    band, line, other = figure["data"]
    assert band["x"] == [1, 1]  # the gap has no band
    assert line["y"] == [1.0, None]
    assert other["line"]["dash"] == "dash"
    assert figure["layout"]["xaxis"]["type"] == "log"


def test_a_chart_for_print_has_a_panel_for_each_group():
    figure = static_figure(CHART)
    assert [axis.get_title() for axis in figure.axes] == ["one", "two"]
    assert rendered(figure, "png").startswith(b"\x89PNG")
    assert rendered(figure, "svg") == rendered(static_figure(CHART), "svg")  # the same rows, the same bytes
    assert static_figure(Figure("f", "f", "a surface")) is None


@pytest.mark.parametrize("log_x", [False, True])
def test_few_values_of_x_are_the_ticks_on_the_page_and_in_print(log_x):
    rejected = [Series("a", [1, 2, 3, 4, 5], [1.0, 2.0, 3.0, 4.0, 5.0])]
    chart = dataclasses.replace(CHART, series=rejected, log_x=log_x)
    assert plotly_figure(chart)["layout"]["xaxis"]["ticktext"] == ["1", "2", "3", "4", "5"]
    (axis,) = static_figure(chart).axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2", "3", "4", "5"]
    rates = dataclasses.replace(CHART, series=[Series("a", [1e-6, 1e-3, 0.0025, 0.1], [1.0] * 4)], log_x=log_x)
    assert plotly_figure(rates)["layout"]["xaxis"]["ticktext"] == ["1e-6", "1e-3", "0.0025", "0.1"]


def test_many_rates_have_powers_of_ten_as_ticks_on_the_page_and_in_print():
    rates = [a * 10.0**k for k in range(-6, -2) for a in (1, 2, 5)]
    chart = dataclasses.replace(CHART, series=[Series("a", rates, [1.0] * len(rates))], log_x=True)
    assert plotly_figure(chart)["layout"]["xaxis"]["ticktext"] == ["1e-6", "1e-5", "1e-4", "1e-3"]
    (axis,) = static_figure(chart).axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1e-6", "1e-5", "1e-4", "1e-3"]
    many = dataclasses.replace(chart, series=[Series("a", range(10, 30), [1.0] * 20)])
    assert "tickvals" not in plotly_figure(many)["layout"]["xaxis"]  # one power would tell nothing


def test_the_command_says_how_to_fill_an_empty_folder(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 1
    assert "has nothing to report: no rows are there yet; fill it with uvax experiment" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder or file" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path), "-o", "r.pdf"]) == 1


def test_the_command_leaves_bad_rows_out_and_says_so(tmp_path, capsys):
    store = RowStore(tmp_path / "results")
    for row in made_up_rows.table1_rows(sizes=(5,), methods=("uvu", "dqn"), seeds=2):
        store.append(row)
    file = tmp_path / "results" / "table1.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, lines[0], '{"schema": 7}', lines[1].replace("11", "12", 1), "{broken"]) + "\n")
    out = tmp_path / "tables.md"
    assert cli.main(["report", str(tmp_path / "results"), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err.count("left out: ") == 4
    for word in ("already there", "schema version 7", "checksum", "damaged"):
        assert word in said.err
    assert said.out.startswith("4 rows")
    text = out.read_text()
    assert "| size | DQN | UVU | optimal |" in text
    assert "## Task rejection (Table 1)" in text


def test_latex_for_a_paper(tmp_path):
    build(made_up_rows.every_row(), tmp_path / "t.tex", format="tex")
    text = (tmp_path / "t.tex").read_text()
    assert text.count(r"\begin{table}") >= 8
    assert r"\label{tab:table1-scores}" in text


def test_bad_arguments(tmp_path):
    with pytest.raises(InvalidInput, match="unknown format 'pdf'"):
        build(made_up_rows.board_rows(), tmp_path / "x", format="pdf")
    with pytest.raises(InvalidInput, match="no rows to report on"):
        build([], tmp_path / "x.html")


@pytest.mark.slow
def test_figures_as_files(tmp_path):
    rows = made_up_rows.width_rows()
    build(rows, tmp_path / "r.md", format="md", figures=tmp_path / "figures")
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"width-return.svg", "width-return.png"}
