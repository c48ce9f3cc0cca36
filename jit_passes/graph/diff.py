"""Differences between two graphs, line by line."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Sequence

import torch

from .. import _C

_RED, _GREEN, _CYAN, _PLAIN = "\033[31m", "\033[32m", "\033[36m", "\033[0m"
_COLORS = {"-": _RED, "+": _GREEN, "@": _CYAN}


def format_graph(module: torch.jit.ScriptModule, method: str = "forward") -> str:
    """Return a method's graph as text with stable names.

    Values are called after the node that makes them, `conv1:conv2d`, attributes by their path, and
    constants stand where they are used. A change of one node changes few lines.

    Args:
        module: at any stage.
        method: the method to print.
    """
    return _C.format_graph(module._c, method)


def diff_graphs(
    before: torch.jit.ScriptModule,
    after: torch.jit.ScriptModule,
    method: str = "forward",
    *,
    color: bool | None = None,
) -> str:
    """Return the changes between a method's graphs, as a unified diff; "" without changes.

    Args:
        before: a module.
        after: another one; both inlined, or calls are compared as calls.
        method: of both.
        color: with ANSI colors; None: on a terminal.
    """
    return diff_text(format_graph(before, method), format_graph(after, method), color)


def diff_text(before: str, after: str, color: bool | None = None) -> str:
    """Return the unified diff of two graphs as text, without a header.

    Nodes in both graphs keep their name from before. A rewrite renumbers later operators, such as
    `relu#2` where a `relu` in front of it is gone; their lines have not changed.
    """
    if before == after:
        return ""
    old = before.splitlines()
    new = _named_as_before(old, after.splitlines())
    lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
    if sys.stdout.isatty() if color is None else color:
        lines = [
            f"{_COLORS[line[0]]}{line}{_PLAIN}" if line[:1] in _COLORS else line for line in lines
        ]
    return "\n".join(lines)


_NUMBER = re.compile(r"#\d+")
_PARTS = re.compile(r"(.*?)(?:#(\d+))?(\.\d+)?")  # lstm#1.0
_NAME = re.compile(r"[^\s(),]+")
_DEFINITION = re.compile(r"\s*(?:block\d+\((?P<inputs>.*)\):$|(?P<results>[^=(]+) = \S+?\()")
# Repeated lines are compared too, up to this product of the numbers of lines.
_ALL_PAIRS = 4_000_000


def _named_as_before(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the new lines with the old lines' names for values that both define."""
    names: dict[str, str] = {}
    for i, j in _common(old, new):
        names.update(zip(_defined(new[j]), _defined(old[i]), strict=False))
    highest: dict[str, int] = {}  # number of a name that is taken, by its stem
    for name in (name for line in old for name in _defined(line)):
        stem, number, _ = _parts(name)
        highest[stem] = max(highest.get(stem, 0), number)
    numbers: dict[tuple[str, int], int] = {}  # of nodes that only the new lines have
    for name in (name for line in new for name in _defined(line) if name not in names):
        stem, number, result = _parts(name)
        if (stem, number) not in numbers:
            highest[stem] = numbers[stem, number] = highest.get(stem, number - 1) + 1
        given = numbers[stem, number]
        names[name] = f"{stem}{f'#{given}' if given else ''}{result}"
    return [_NAME.sub(lambda found: names.get(found[0], found[0]), line) for line in new]


def _parts(name: str) -> tuple[str, int, str]:
    """Return the stem of a name, its number, and which of several results it is."""
    found = _PARTS.fullmatch(name)
    assert found is not None
    return found[1], int(found[2] or 0), found[3] or ""


def _common(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of lines that define one value: equal but for numbers, then but for operands."""
    equal = [[_NUMBER.sub("", line) for line in lines] for lines in (old, new)]
    alike = [[line.partition("(")[0] for line in lines] for lines in equal]
    i = j = 0
    for i_next, j_next, size in _blocks(*equal):
        for first, second, length in _blocks(alike[0][i:i_next], alike[1][j:j_next]):
            yield from ((i + first + k, j + second + k) for k in range(length))
        yield from ((i_next + k, j_next + k) for k in range(size))
        i, j = i_next + size, j_next + size


def _blocks(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the starts in both and the length of runs of equal lines; the last one may be empty.

    `difflib` leaves repeated lines aside, and graphs have many of them.
    """
    short = min(len(a), len(b))
    start = next((k for k in range(short) if a[k] != b[k]), short)
    end = next((k for k in range(short - start) if a[-1 - k] != b[-1 - k]), short - start)
    yield 0, 0, start
    between = a[start : len(a) - end], b[start : len(b) - end]
    aside = len(between[0]) * len(between[1]) > _ALL_PAIRS
    for i, j, size in difflib.SequenceMatcher(None, *between, aside).get_matching_blocks()[:-1]:
        yield start + i, start + j, size
    yield len(a) - end, len(b) - end, end


def _defined(line: str) -> list[str]:
    """Return the names that a line defines: results of a node, or inputs of a block."""
    found = _DEFINITION.match(line)
    return [] if found is None else _NAME.findall(found["results"] or found["inputs"] or "")
