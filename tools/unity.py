"""Compile several C++ files as one: each alone pays two to three seconds for torch's headers.

Even precompiled, PyTorch's headers leave templates that the compiler instantiates anew for every
translation unit. A unit includes some files of one folder. A file stays in its unit when others
come or go, so that an edit rebuilds one unit.

Files keep their private names to themselves, as if compiled alone: a name that one file defines in
an anonymous namespace, and that another file of the unit mentions, is renamed by a macro while the
first one is read. Where the name is also a member of something, or a header declares it, the first
one is compiled alone.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

# How many units a folder becomes. Kernels, compiled for several vector units, are the slow ones.
UNITS = {"python": 1, "ops": 8, "core": 3, "passes": 4}

_QUIET = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\} // namespace$", re.DOTALL | re.MULTILINE)
_INCLUDE = re.compile(r'^#include ([<"])(.+)[>"]', re.MULTILINE)
# clang-format begins every definition of a namespace in the first column.
_DEFINITION = re.compile(
    r"^(?:(?:struct|class|enum class|enum|union)\s+(?!__)(\w+)|using\s+(\w+)\s*="
    r"|(?!using|[\s#}])[\w:<>,*&\[\]() ]+?(?<=[\s*&])(?!__)(\w+)\s*(?:\(|=|\{|;|\[))",
    re.MULTILINE,
)


def _code(text: str) -> str:
    """Return C++ text without comments and strings."""
    return _QUIET.sub("", text)


def _defined(code: str) -> set[str]:
    return {match[1] or match[2] or match[3] for match in _DEFINITION.finditer(code)}


def _private_names(text: str) -> set[str]:
    """Return the names that a file defines in anonymous namespaces."""
    return set().union(*(_defined(_code(block)) for block in _ANONYMOUS.findall(text)))


def _is_member(name: str, code: str) -> bool:
    """Return whether code takes the name from something, or declares it inside of a class."""
    taken = rf"(?:\.|->|::)\s*{name}\b"
    declared = rf"^ +(?!return|else|throw)(?:[\w:<>,*&]+ +[*&]?)+{name}\("
    return re.search(f"{taken}|{declared}", code, re.MULTILINE) is not None


def _words(code: str) -> set[str]:
    return set(re.findall(r"\w+", code))


def _includes(source: Path) -> set[str]:
    """Return what a file includes; headers beside it by their full path."""
    found = _INCLUDE.findall(source.read_text())
    beside = ((mark, name, source.parent / name) for mark, name in found)
    return {
        f'#include "{path}"' if mark == '"' and path.exists()
        else f"#include <{name}>" if mark == "<"
        else f'#include "{name}"'
        for mark, name, path in beside
    }  # fmt: skip


def _unit(sources: list[Path], public: set[str]) -> tuple[str, list[Path]]:
    """Return the text of one unit, and the files that must be compiled alone."""
    code = {source: _code(source.read_text()) for source in sources}
    mentioned = {source: _words(text) for source, text in code.items()}
    renamed, alone = {}, []
    for source in sources:
        others = set().union(*(mentioned[other] for other in sources if other != source))
        renamed[source] = sorted(_private_names(source.read_text()) & others)
        if any(name in public or _is_member(name, code[source]) for name in renamed[source]):
            alone.append(source)
    together = [source for source in sources if source not in alone]
    # Headers come first, where no name is renamed.
    lines = sorted(set().union(*(_includes(source) for source in together)))
    for source in together:
        lines += [f"#define {name} {name}_of_{source.stem}" for name in renamed[source]]
        lines += [f'#include "{source.as_posix()}"']
        lines += [f"#undef {name}" for name in renamed[source]]
    return "\n".join([*lines, ""]), alone


def write_units(root: Path, target: Path) -> list[Path]:
    """Write the units of all files under `root` into `target`; return what is to be compiled.

    Files that would not change are not written, so that their objects stay up to date.
    """
    units: dict[tuple[str, int], list[Path]] = {}
    for folder, count in UNITS.items():
        for source in sorted((root / folder).glob("*.cpp")):
            number = zlib.crc32(source.stem.encode()) % count
            units.setdefault((folder, number), []).append(source)
    target.mkdir(parents=True, exist_ok=True)
    public = set().union(*(_defined(_code(path.read_text())) for path in root.glob("*/*.h")))
    compiled = []
    for (folder, number), sources in units.items():
        text, alone = _unit(sources, public)
        unit = target / f"{folder}_{number}.cpp"
        if not unit.exists() or unit.read_text() != text:
            unit.write_text(text)
        compiled += [unit, *alone]
    return compiled
