"""Printed formulas are wrong, corrected ones right, and docs/theory.md shows the numbers of today."""

import re
from pathlib import Path

import pytest

from uvax.theory import misprints
from uvax.theory.misprints import Evidence, table

DOCS = Path(__file__).parents[2] / "docs" / "theory.md"


@pytest.fixture(scope="module")
def evidence() -> list[Evidence]:
    return [check() for check in misprints.ALL]


def test_corrections_are_right_and_printed_formulas_are_not(evidence):
    for row in evidence:
        assert row.printed_error > 0.2, row.where
        assert row.corrected_error < 0.02, row.where
        assert row.corrected_error < row.printed_error / 15, row.where


def test_the_docs_show_the_same_table(evidence):
    text = DOCS.read_text()
    shown = re.search(r"<!-- misprints -->\n(.*)\n<!-- /misprints -->", text, re.DOTALL).group(1)
    for ours, theirs in zip(table(evidence).splitlines(), shown.splitlines(), strict=True):
        *words, printed, corrected = (cell.strip() for cell in ours.strip("|").split("|"))
        *shown_words, shown_printed, shown_corrected = (cell.strip() for cell in theirs.strip("|").split("|"))
        assert words == shown_words
        for a, b in ((printed, shown_printed), (corrected, shown_corrected)):
            # Another LAPACK or another jax may move the last digit of a sampled number.
            assert a == b or float(a) == pytest.approx(float(b), rel=0.05)


def test_the_chain_is_the_oracles():
    import numpy as np
    from theory_oracle import CHAINS

    case = CHAINS[0]
    expected = case.kernel(case.X, case.X)[1] - case.gamma * case.P @ case.kernel(case.Y, case.X)[1]
    found = misprints.chain_delta(case.gamma)
    np.testing.assert_allclose(
        np.sort(np.linalg.eigvals(found).real), np.sort(np.linalg.eigvals(expected).real), atol=1e-8
    )


def test_the_example_of_the_docs_runs(capsys):
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL).group(1)
    exec(compile(code, str(DOCS), "exec"), {})
    assert "TD converges" in capsys.readouterr().out
