"""The version is defined in one place, and the changelog agrees with it."""

from __future__ import annotations

import re
from pathlib import Path

import fastload

ROOT = Path(__file__).resolve().parents[2]


def test_the_changelog_names_this_version_once_it_is_released() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    assert len(set(headings)) == len(headings)
    releases = [heading.split(" - ")[0] for heading in headings if heading[0].isdigit()]
    if fastload.__version__.endswith(".dev0"):
        assert fastload.__version__.removesuffix(".dev0") not in releases
    else:
        assert releases[0] == fastload.__version__


def test_pyproject_builds_the_packages_version() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version\s*=", text, re.M)  # a second place that could differ
    assert 'metadata.version.input = "fastload/_version.py"' in text
    assert (
        f'__version__ = "{fastload.__version__}"' in (ROOT / "fastload" / "_version.py").read_text()
    )
