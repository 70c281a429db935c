"""Words that this project avoids, and where they still occur.

    python -m tools.plain_words              # every tracked file
    python -m tools.plain_words fastload/_load docs/loader.md

The check covers comments, string literals, docstrings, documents and the names that code defines.
The words follow section 1 of the style guide: readers need not learn a private vocabulary.
`tests/docs/test_plain_words.py` keeps the list of findings empty.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Rule:
    """A pattern to avoid and better words; ``in_names``: it applies to identifiers, too."""

    pattern: re.Pattern[str]
    instead: str
    in_names: bool = False


@dataclass(frozen=True)
class Place:
    """One word that a rule found."""

    path: Path
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}: write {self.instead}"


def _rule(pattern: str, instead: str, *, in_names: bool = False) -> Rule:
    return Rule(_phrase(rf"\b(?:{pattern})\b"), instead, in_names)


def _phrase(pattern: str) -> re.Pattern[str]:
    """A pattern whose blanks also match line breaks."""
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)


_THING = (
    "image|second|rank|sample|batch|step|record|gpu|core|thread|epoch|minute|hour|call|file|shard"
    "|worker|block|row|pixel|run|process|field"
)
_AMOUNT = (
    r"ns|ms|µs|us|s|kb|mb|gb|kib|mib|gib|bytes?|images|samples|records|batches|calls|times|files"
    r"|steps|rows|blocks|shards|threads|seconds|draws|bits|pixels|microseconds|milliseconds|once|twice"
)

RULES = [
    _rule("behind|in front of", "after, before, following", in_names=True),
    _rule("told", "the actor and the verb: the caller passes, the log reports", in_names=True),
    _rule("asked|asks for", "requested, needs, passes", in_names=True),
    _rule("who|whoever|whom|nobody|somebody", "the actor: the caller, the trainer", in_names=True),
    _rule("he|his|him|she|her", "they"),
    _rule(rf"(?:{_AMOUNT}|\d+) an? (?:{_THING})", "per image, per second, images/s"),
    _rule("mend|mends|mended|mending|put right|puts right", "fix, repair", in_names=True),
    _rule("anew", "again, rebuild", in_names=True),
    _rule("go on|goes on|went on|going on", "continue, resume"),
    _rule("under way|underway|at work", "in flight, running"),
    _rule("comes|came|coming|come", "arrives, follows, is"),
    _rule("gives? way|gave way", "yields, fails"),
    _rule("look|looks|looked|looking", "inspect, scan, check, search, appear", in_names=True),
    _rule("what is there|what was there", "the existing file, what exists"),
    _rule("pictures?", "image", in_names=True),
    _rule("levels", "pixel values", in_names=True),
    _rule("turned|upside down|upside_down", "rotated, vertical flip, became", in_names=True),
    _rule("those (?:that|which|who)|that which", "a noun: unused shards"),
    _rule("as it is|as they are|as it was|as they were", "unchanged, unmodified"),
    _rule("gusts?", "bursts"),
    _rule(
        r"\w*(?:colour|behaviour|neighbour|favour|honour|normalis|initialis|serialis|optimis|organis"
        r"|recognis|quantis|synchronis)\w*|greys?|grey\w+|centres?|centred|labell(?:ed|ing)|metres?"
        r"|catalogue|analys(?:e|ed|es)",
        "American spelling",
        in_names=True,
    ),
]

# Phrases that contain an avoided word and are what the field says.
ALLOWED = {
    r"\b(?:users?|people|someone|anyone|engineers?|readers?|teams?|authors?) who\b": (
        "a relative clause about people"
    ),
    r"\blook(?:s|ed|ing)? up\b|\blook-?up\b|\blook-?ahead\b|\blooks? like\b": "standard terms",
    r"\b(?:come|comes|came|coming) from\b": "the origin of a value",
    r"\b(?:log|compression|nesting|confidence|optimization|cache|priority) levels\b": (
        "other kinds of levels"
    ),
    r"\bturned (?:on|off|into|out)\b": "switched on or off; became",
}
# Words that one file needs.
ALLOWED_IN = {
    ("fastload/_pack/sources/objects.py", "picture"): "a name that users give to image fields",
    ("benchmarks/peers/setup.py", "catalogue"): "the name of a package",
}
EXEMPT_FILES = {
    "tools/plain_words.py": "lists the words",
    "tests/docs/test_plain_words.py": "tests the list",
    "LICENSE": "a legal text",
}
TEXT_SUFFIXES = {".md", ".sh", ".toml", ".yml", ".yaml", ".txt", ".cmake", ".html", ".css", ".js"}
TEXT_NAMES = {"Makefile", "Dockerfile", "run"}
_ALLOWED = _phrase("|".join(ALLOWED))
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CPP_TEXT = re.compile(r'(?://[^\n]*\n\s*)+|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)


def check_file(path: Path) -> list[Place]:
    """Every avoided word in one file; files that are not text give none."""
    relative = path.relative_to(ROOT)
    if str(relative) in EXEMPT_FILES:
        return []
    text = path.read_text(errors="replace") if _is_text(path) else ""
    if path.suffix in {".py", ".pyi"}:
        passages = _python_passages(text)
    elif path.suffix in {".h", ".cpp", ".cu"}:
        passages = _cpp_passages(text)
    else:
        passages = _paragraphs(text)
    return [
        Place(relative, line + passage[:at].count("\n"), found, rule.instead)
        for line, passage, names_only in passages
        for at, found, rule in _findings(passage, names_only)
        if (str(relative), found) not in ALLOWED_IN
    ]


def _is_text(path: Path) -> bool:
    known = TEXT_SUFFIXES | {".py", ".pyi", ".h", ".cpp", ".cu"}
    return path.suffix in known or path.name in TEXT_NAMES


def _findings(passage: str, names_only: bool) -> Iterator[tuple[int, str, Rule]]:
    allowed = [match.span() for match in _ALLOWED.finditer(passage)]
    for rule in RULES:
        if names_only and not rule.in_names:
            continue
        for match in rule.pattern.finditer(passage):
            if not any(start <= match.start() and match.end() <= end for start, end in allowed):
                yield match.start(), " ".join(match.group().split()), rule


Passage = tuple[int, str, bool]  # first line, text, whether it is a name


def _python_passages(text: str) -> Iterator[Passage]:
    """Blocks of comments, joined string literals, and the names that are defined."""
    block: list[str] = []
    first = last = 0
    kind = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            continue
        if block and (
            token.type != kind or (kind == tokenize.COMMENT and token.start[0] > last + 1)
        ):
            yield first, "\n".join(block), False
            block = []
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            if not block:
                first = token.start[0]
            block += [""] * (
                token.start[0] - (first + "\n".join(block).count("\n")) - 1 if block else 0
            )
            block.append(_inner(token.string))
            kind = token.type
            last = token.end[0]
    for node in ast.walk(ast.parse(text)):
        for name in _defined(node):
            yield getattr(node, "lineno", 1), _words(name), True


def _inner(literal: str) -> str:
    if literal.startswith("#"):
        return literal.lstrip("#:! ")
    match = re.match(r"(?i)[a-z]*('''|\"\"\"|'|\")", literal)
    return literal[match.end() : -len(match.group(1))] if match else literal


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _words(name: str) -> str:
    return " ".join(_NAME_PART.findall(name)).lower()


def _cpp_passages(text: str) -> Iterator[Passage]:
    for match in _CPP_TEXT.finditer(text):
        line = text[: match.start()].count("\n") + 1
        yield line, match.group().replace("//", "  "), False
    code = _CPP_TEXT.sub(lambda match: "\n" * match.group().count("\n"), text)
    for line, text_of_line in enumerate(code.splitlines(), 1):
        yield line, _words(text_of_line), True


def _paragraphs(text: str) -> Iterator[Passage]:
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip():
            yield line, paragraph, False
        line += paragraph.count("\n")


def tracked_files(paths: list[str]) -> list[Path]:
    """The files under ``paths`` that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description="List words that the style guide avoids.")
    parser.add_argument("paths", nargs="*", help="files or folders (default: every tracked file)")
    places = [
        place for path in tracked_files(parser.parse_args().paths) for place in check_file(path)
    ]
    for place in places:
        print(place)
    print(f"{len(places)} findings", file=sys.stderr)
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
