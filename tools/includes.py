"""Check that C++ includes run one way: `python -m tools.includes`.

A room includes rooms in front of it only, no files of a room include each other in a circle, and
a room defines the functions that its headers declare.
"""

from __future__ import annotations

import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

CPP = Path(__file__).resolve().parent.parent / "cpp"
# Each room may include the rooms in front of it.
ROOMS = (
    "graph", "facts", "view", "rewriting", "quantization", "ops", "passes",
    "x86/kernels", "x86/program", "x86/lowering", "x86/running", "x86/building",
    "x86/operators", "python",
)  # fmt: skip
# Rooms whose headers declare functions that a later room defines: an operator is one file of
# x86/operators, and rewrites of whole programs make some of them.
DEFINED_LATER = {"x86/program": "x86/operators"}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
# A function that begins at the left margin: its name, and the sign behind its arguments.
FUNCTION = re.compile(
    r"^(?!return\b|using\b|static_assert\b)[A-Za-z_][\w:<>,*&\s]*?\s[*&]?(\w+)\([^;{}]*?\)"
    r"(?: const)?\s*([;{])",
    re.MULTILINE,
)


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


def functions(text: str, sign: str) -> set[str]:
    """Return the functions of no class that a file declares, `;`, or defines, `{`."""
    code = re.sub(r"//.*", "", text)
    return {name for name, end in FUNCTION.findall(code) if end == sign}


def circles() -> list[str]:
    """Return one line for a circle of files.

    A source and its header count as one file. In x86 they do not, since the files of a program and
    those of its makers know each other: only headers must not include each other.
    """

    def unit(path: Path) -> Path:
        return path if path.is_relative_to("x86") else path.with_suffix("")

    reads: dict[Path, set[Path]] = {}
    for file in (*CPP.rglob("*.cpp"), *CPP.rglob("*.h")):
        path = file.relative_to(CPP)
        others = {unit(header) for header in included(path)}
        reads.setdefault(unit(path), set()).update(others - {unit(path)})
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        return [f"files of C++ include each other: {' <- '.join(map(str, error.args[1]))}"]
    return []


def rooms_for(path: Path) -> set[str | None]:
    """Return the rooms that may define the functions of a header."""
    room = room_of(path)
    return {room, DEFINED_LATER.get(room or "")} - {None}


def displaced() -> list[str]:
    """Return one line for each function that another room defines than the one that declares it."""
    declared: dict[str, set[Path]] = {}
    defined: dict[str, set[str | None]] = {}
    for file in CPP.rglob("*.h"):
        for name in functions(file.read_text(), ";"):
            declared.setdefault(name, set()).add(file.relative_to(CPP))
    for file in (*CPP.rglob("*.cpp"), *CPP.rglob("*.h")):
        for name in functions(file.read_text(), "{"):
            defined.setdefault(name, set()).add(room_of(file.relative_to(CPP)))
    return [
        f"cpp/{path} declares {name}, which {', '.join(sorted(map(str, defined[name])))} defines"
        for name, paths in sorted(declared.items())
        for path in sorted(paths)
        if name in defined and not rooms_for(path) & defined[name]
    ]


if __name__ == "__main__":
    lines = [*problems(), *circles(), *displaced()]
    print("\n".join(lines) or f"includes of {len(list(CPP.rglob('*.cpp')))} C++ files run one way")
    sys.exit(bool(lines))
