"""The errors and warnings that a user can meet."""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

# Modules on the way from a caller to a warning: torch calls back where it compiles.
_NOT_THE_CALLERS = ("jit_passes", "torch", "contextlib")
_ARCHIVE = (
    "code/__torch__"  # how lines of source of a loaded model begin, where they are its file's
)
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?[^\s:()]*[/\\](?=[^\s:()/\\]+:\d+)")


class JitPassesError(RuntimeError):
    """A request of the caller cannot be met; the message says how to go on.

    Attributes:
        command: the message for users of the command line, where they do something else.
    """

    def __init__(self, message: str, *, command: str | None = None) -> None:
        super().__init__(message)
        self.command = message if command is None else command


class ArgumentError(JitPassesError, ValueError):
    """An argument, or a field of a class of this package, cannot have that value."""


class UnknownNameError(JitPassesError, KeyError):
    """There is no entry of a name that is looked up with []."""

    __str__ = Exception.__str__  # KeyError's quotes the message


class InputError(JitPassesError, OSError):
    """A file cannot be read."""


class OutputError(JitPassesError, OSError):
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
    """The result is right, but probably not as the caller wanted.

    Attributes:
        command: see `JitPassesError`.
    """

    def __init__(self, message: str, *, command: str | None = None) -> None:
        super().__init__(message)
        self.command = message if command is None else command


def warn(message: str, *, command: str | None = None) -> None:
    """Warn with a `JitPassesWarning` at the line outside of this package that called it."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_THE_CALLERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(JitPassesWarning(message, command=command), stacklevel=level)


def warn_again(told: Iterable[warnings.WarningMessage]) -> None:
    """Warn of held warnings of jit_passes, each once, in the order of their texts."""
    ours = (each.message for each in told if isinstance(each.message, JitPassesWarning))
    messages = {str(message): message for message in ours}
    for text, message in sorted(messages.items()):
        warn(text, command=message.command)


def message_of(error: BaseException) -> str:
    """Return the message without the C++ backtrace that PyTorch appends."""
    text = str(error).strip()
    for marker in ("\nException raised from", "\nC++ CapturedTraceback"):
        text = text.split(marker)[0]
    return text


def with_type(error: BaseException) -> str:
    """Return the type of an error and its message, `TypeError: must be real number, not str`."""
    return ": ".join(filter(None, (type(error).__name__, message_of(error))))


def first_line(error: BaseException) -> str:
    """Return the message; of errors that Python raises, with their type, and so of an empty one."""
    ours = isinstance(error, JitPassesError | RuntimeError)
    return (message_of(error) if ours else "") or with_type(error)


def without_folders(text: str) -> str:
    """Return a text in which lines of source, `/home/me/net.py:12`, have no folders.

    Lines of code within a file of TorchScript stay: `code/__torch__/net.py:9 in the file`.
    """
    return _FOLDERS.sub(lambda found: found[0] if found[0].startswith(_ARCHIVE) else "", text)


def shortened(names: Sequence[str], shown: int = 5) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def count_of(count: int, noun: str) -> str:
    """Return `1 operator` or `2 operators`: a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table: a line for each row, with texts below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ((f"{text:<{w}}" for text, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in cells)


def nearest(word: str, words: Iterable[str], shown: int = 5) -> str:
    """Return the end of a message about an unknown name: similar names, or some known ones."""
    known = sorted(set(words))
    if not known:
        return "there are none"
    close = _guess(word, known, min(shown, 3))
    return close or f"there are {shortened([repr(name) for name in known], shown)}"


def not_among(what: str, word: Any, words: Sequence[str]) -> str:
    """Return the message about a word that is none of a few: all of them, and the likely one."""
    close = _guess(word, words) if isinstance(word, str) else ""
    return f"{what} is one of {', '.join(words)}, not {word!r}{close and f': {close}'}"


def _guess(word: str, known: Iterable[str], most: int = 3) -> str:
    """Return a question about the most similar words; "" if none is similar."""
    by_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_case, most, 0.6)
    names = " or ".join(repr(by_case[name]) for name in close)
    return f"did you mean {names}?" if names else ""
