"""benchmarks/before_after.py: ratios, and the check that each tree imports itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.before_after import WORKS, Comparison, Epoch, Tree, Work, compare, spread
from tests.small_dataset import jpeg

ROOT = Path(__file__).resolve().parents[2]


def test_ratios_are_above_one_if_the_second_tree_is_faster() -> None:
    found = Comparison(
        "w", 2, [Epoch(100, 4.0), Epoch(200, 2.0)], [Epoch(150, 2.0), Epoch(300, 1.0)]
    )
    assert found.ratios() == [1.5, 1.5]
    assert found.cpu_ratios() == [2.0, 2.0]
    assert "1.500 [1.500-1.500]" in str(found)


def test_spread_shows_median_and_quartiles() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0], ".1f") == "3.0 [2.0-4.0]"
    assert spread([7.0], ".0f") == "7"


def test_works_have_unique_names() -> None:
    assert len({work.name for work in WORKS}) == len(WORKS)


def test_both_trees_are_measured_round_by_round(tmp_path: Path) -> None:
    tree = Tree(ROOT)
    work = Work("small", "tiny", (("Resize", (16, 16)),), batch_size=2)
    for number in range(5):
        path = tmp_path / "tiny" / "a" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(32, 24))
    found = compare(work, [tree, tree], tmp_path, threads=1, rounds=2, processes=1)
    assert len(found.before) == len(found.after) == 2
    assert all(epoch.images_per_s > 0 for epoch in found.before + found.after)


def test_a_tree_that_imports_another_one_is_refused(tmp_path: Path) -> None:
    tree = Tree(ROOT)
    tree.path = tmp_path
    with pytest.raises(SystemExit, match=r"imports .* instead"):
        tree.describe(tmp_path)
