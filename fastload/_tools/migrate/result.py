"""What migrate() has to say: a command, the changed lines, and a word for whatever does not carry over."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fastload._common.public import public


@dataclass(frozen=True, slots=True)
class Translated:
    """One transform of the user's and what becomes of it; ``code`` is empty where nothing is needed, or nothing equal is there."""

    was: str
    code: str
    note: str = ""  # in what it differs, or why there is no equal
    lost: bool = False  # it must be done in another way


@public()
@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """``print(migration)`` shows all of it; ``pack_code`` and ``loader_code`` are Python that runs."""

    command: str  # for a shell; empty where only Python can pack this dataset
    pack_code: str
    torch_code: str  # the loader as it was made, as far as it can be told
    loader_code: str
    transforms: tuple[Translated, ...]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Nothing is left to be done by hand."""
        return not any(each.lost for each in self.transforms)

    def to_json(self) -> dict[str, object]:
        """Plain dicts, lists and text."""
        transforms = [asdict(each) for each in self.transforms]
        return {
            **asdict(self),
            "transforms": transforms,
            "notes": list(self.notes),
            "complete": self.complete,
        }

    def __str__(self) -> str:
        lines = [
            "1. Pack once:",
            *_indented(self.command or self.pack_code),
            "",
            "2. Change the loader:",
        ]
        lines += _indented(self.torch_code, "  - ") + _indented(self.loader_code, "  + ")
        if self.transforms:
            width = max(len(each.was) for each in self.transforms)
            lines += ["", "3. The transforms:"]
            for each in self.transforms:
                becomes = each.code or ("no equal" if each.lost else "not needed")
                lines.append(
                    f"  {each.was:{width}}  {becomes}" + (f"  ({each.note})" if each.note else "")
                )
        lines += ["", *(f"Note: {each}" for each in self.notes)] if self.notes else []
        return "\n".join(lines)


def _indented(text: str, by: str = "  ") -> list[str]:
    return [by + line for line in text.splitlines()]
