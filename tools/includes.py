"""Check that C++ includes run one way: `python -m tools.includes`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CPP = Path(__file__).resolve().parent.parent / "cpp"
# Each room may include the rooms in front of it.
ROOMS = (
    "graph", "facts", "view", "rewriting", "quantization", "ops", "passes",
    "x86/kernels", "x86/program", "x86/lowering", "x86/running", "x86/building",
    "x86/operators", "python",
)  # fmt: skip
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def room_of(path: Path) -> str | None:
    """Return the room of a file, given relative to cpp/: the longest name that it lies under."""
    names = [room for room in ROOMS if path.is_relative_to(room)]
    return max(names, key=len, default=None)


def included(path: Path) -> list[Path]:
    """Return the project's files that a file includes, relative to cpp/."""
    texts = INCLUDE.findall((CPP / path).read_text())
    beside = [path.parent / text for text in texts]
    return [
        near if (CPP / near).exists() else Path(text)
        for near, text in zip(beside, texts, strict=True)
    ]


def problems() -> list[str]:
    """Return one line for each include that points to a later room, or to no file."""
    found: list[str] = []
    for file in sorted((*CPP.rglob("*.cpp"), *CPP.rglob("*.h"))):
        path = file.relative_to(CPP)
        room = room_of(path)
        if room is None:
            found.append(f"cpp/{path} lies in no room: name its folder in tools/includes.py")
            continue
        for header in included(path):
            other = room_of(header)
            if other is None or not (CPP / header).exists():
                found.append(f"cpp/{path} includes {header}, which does not exist")
            elif ROOMS.index(other) > ROOMS.index(room):
                found.append(f"cpp/{path} includes {header}: '{room}' may not include '{other}'")
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or f"includes of {len(list(CPP.rglob('*.cpp')))} C++ files run one way")
    sys.exit(bool(lines))
