"""docs/why-is-my-gpu-waiting.md shows exactly what the commands print."""

from __future__ import annotations

from pathlib import Path

from tests.doc_runs import BLOCK, make_all, renewed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "why-is-my-gpu-waiting.md"


def test_the_page_shows_what_the_commands_print(tmp_path: Path) -> None:
    make_all(tmp_path)
    text = PAGE.read_text()
    assert len(BLOCK.findall(text)) == 7
    assert renewed(text, tmp_path) == text, (
        "run: python -m tests.doc_runs docs/why-is-my-gpu-waiting.md"
    )
