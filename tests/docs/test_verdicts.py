"""Documents quote only verdicts that the code can print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastload._tools.doctor.examine import examine
from fastload._tools.doctor.finding import KINDS
from fastload._tools.doctor.loader.figures import COMPUTE_BOUND, DATA_BOUND, UNKNOWN
from tests.made_runs import made, rows_of, write

DOCS = sorted((Path(__file__).resolve().parents[2] / "docs").rglob("*.md"))
WORDS = {*(kind.label for kind in KINDS.values()), "Healthy"}
STATE_WORDS = {DATA_BOUND, COMPUTE_BOUND, UNKNOWN, "healthy", *KINDS}


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_a_verdict_in_quotes_exists(document: Path) -> None:
    """A quoted ``"Healthy:"`` starts a verdict; a quoted ``"data-bound"`` is a state."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for word in re.findall(r'"([A-Z][^":`]{2,30}):"', text):
        assert word in WORDS, f"{document.name} quotes the verdict {word!r}, which no code prints"
    for word in re.findall(r'"([a-z]+-bound)"', text):
        assert word in STATE_WORDS, f"{document.name} quotes {word!r}, which no code prints"


def test_the_verdict_of_a_run_that_does_not_wait(tmp_path: Path) -> None:
    found = examine(
        write(tmp_path / "m.jsonl", rows_of(made(2000, step=0.2, data=0.0005, batch=8, seed=1)))
    )
    text = " ".join((DOCS[0].parent / "troubleshooting.md").read_text().split())
    quoted = re.findall(r'"([^"]+)"', text)
    assert "Healthy:" in quoted
    assert "the step itself is the limit" in quoted
    assert found.verdict.startswith("Healthy:")
    assert "the step itself is the limit" in found.verdict
