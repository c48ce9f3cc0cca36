"""The errors and warnings that a user can meet."""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Iterable, Sequence

# Modules on the way from a caller to a warning: torch calls back where it compiles.
_NOT_THE_CALLERS = ("jit_passes", "torch", "contextlib")
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?[^\s:()]*[/\\](?=[^\s:()/\\]+:\d+)")


class JitPassesError(RuntimeError):
    """Something that the caller asked for cannot be done; the message says what to do instead."""


class OutputError(JitPassesError):
    """A file with results cannot be written."""


class PassError(JitPassesError):
    """A pass failed, or its result is not a valid graph. The caller's module is as it was.

    Attributes:
        name: the pass.
        done: the passes of the pipeline that had run before it.
    """

    def __init__(self, message: str, name: str, done: tuple[str, ...]) -> None:
        super().__init__(message)
        self.name = name
        self.done = done


class JitPassesWarning(UserWarning):
    """The result is right, but probably not what the caller hoped for."""


def warn(message: str) -> None:
    """Warn with a `JitPassesWarning` at the line outside of this package that called it."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_THE_CALLERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, JitPassesWarning, stacklevel=level)


def first_line(error: BaseException) -> str:
    """Return the message without the C++ backtrace that PyTorch appends."""
    text = str(error).strip()
    for marker in ("\nException raised from", "\nC++ CapturedTraceback"):
        text = text.split(marker)[0]
    ours = isinstance(error, JitPassesError | RuntimeError)
    return (text if ours else f"{type(error).__name__}: {text}") or type(error).__name__


def without_folders(text: str) -> str:
    """Return a text in which lines of source, `/home/me/net.py:12`, have no folders."""
    return _FOLDERS.sub("", text)


def shortened(names: Sequence[str], shown: int = 5) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def count_of(count: int, noun: str) -> str:
    """Return `1 operator`, `2 operators`: a count and what is counted."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table: a line for each row, with texts below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ((f"{text:<{w}}" for text, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in cells)


def nearest(word: str, words: Iterable[str], shown: int = 5) -> str:
    """Return the end of a message about an unknown name: those it may stand for, or some known."""
    known = sorted(set(words))
    if not known:
        return "there are none"
    by_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_case, min(shown, 3), 0.6)
    if close:
        return f"did you mean {' or '.join(repr(by_case[name]) for name in close)}?"
    return f"there are {shortened([repr(name) for name in known], shown)}"
