"""Prints the requirements of extras of the installed package: python tools/extras.py dev test

pip install -e '.[dev]' would build the native core once more; its requirements alone do not.
"""

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

NAME = "fastload-vision"


def of(extra: str) -> list[str]:
    found = []
    for line in requires(NAME) or ():
        wanted = Requirement(line)
        if (
            wanted.marker is None
            or not wanted.marker.evaluate({"extra": extra})
            or wanted.marker.evaluate({"extra": ""})
        ):
            continue
        if wanted.name == NAME:
            found += [each for other in sorted(wanted.extras) for each in of(other)]
        else:
            extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
            found.append(f"{wanted.name}{extras}{wanted.specifier}")
    return found


if __name__ == "__main__":
    print("\n".join(requirement for extra in sys.argv[1:] for requirement in of(extra)))
