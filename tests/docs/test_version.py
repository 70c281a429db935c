"""One version: the package's, the changelog's newest, and the one that pyproject.toml builds."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import fastload

ROOT = Path(__file__).resolve().parents[2]


def test_the_changelogs_newest_release_is_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    version, day = headings[1].split(" - ")
    assert version == fastload.__version__
    assert date.fromisoformat(day) >= date(2026, 11, 16)
    assert len({heading.split(" - ")[0] for heading in headings}) == len(headings)


def test_pyproject_builds_the_packages_version() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version\s*=", text, re.M)  # a second place that could differ
    assert 'metadata.version.input = "fastload/_version.py"' in text
    assert (
        f'__version__ = "{fastload.__version__}"' in (ROOT / "fastload" / "_version.py").read_text()
    )
