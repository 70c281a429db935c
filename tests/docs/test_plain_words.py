"""Comments, docstrings, messages, documents and names avoid words that the style guide lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import messages, plain_words


def test_no_tracked_file_contains_an_avoided_word() -> None:
    places = [
        place for path in plain_words.tracked_files([]) for place in plain_words.check_file(path)
    ]
    assert [str(place) for place in places] == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", '"""The caller is told."""\n', ["told"]),
        ("a.py", "x = 1  # what comes\n# behind it\n", ["behind", "comes"]),
        ("a.py", 'print("takes 3 ms an "\n      "image")\n', ["ms an image"]),
        ("a.py", "def told_twice(n_pictures):\n    pass\n", ["told", "pictures"]),
        ("a.py", "told = 1\nclass Mended:\n    pass\n", ["told", "mended"]),
        ("a.md", "Images a\nsecond.\n\nTwice a step.\n", ["Images a second", "Twice a step"]),
        ("a.h", "// looked\n// at\nint levels_of(); /* anew */\n", ["looked", "anew", "levels"]),
        ("a.md", "People who look up log levels; turned off; comes from disk.\n", []),
        ("a.py", 'lookup = "look-ahead"\n', []),
        ("a.png", "told", []),
    ],
)
def test_avoided_words_are_found(
    name: str, text: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    places = plain_words.check_file(tmp_path / name)
    assert sorted(place.found for place in places) == sorted(found)


def test_a_finding_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("One.\n\nTwo\nthree told.\n")
    (tmp_path / "a.py").write_text('x = 1\n\ny = """a\nb told"""\n')
    assert [plain_words.check_file(tmp_path / name)[0].line for name in ("a.md", "a.py")] == [4, 4]


def test_every_kind_of_message_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(
        '"""Module."""\n'
        "def f(n):\n"
        '    """Function."""\n'
        '    raise ValueError(f"n={n!r}: expected " + "a number")\n'
        'warnings.warn("slow")\n'
        'log.info("%d read", n)\n'
        'parser.error("no input")\n'
        'print("not a message")\n'
    )
    listed = {
        (each.line, each.shown_by, each.text) for each in messages.messages_in(tmp_path / "a.py")
    }
    assert listed == {
        (4, "raise ValueError", "n={n}: expected a number"),
        (5, "warn", "slow"),
        (6, "log.info", "%d read {n}"),
        (7, "usage error", "no input"),
    }
    assert [each.text for each in messages.docstrings_in(tmp_path / "a.py")] == [
        "Module.",
        "Function.",
    ]
