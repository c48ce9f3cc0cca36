"""The errors and warnings that a user can meet."""

from __future__ import annotations


class JitPassesError(RuntimeError):
    """Something that the caller asked for cannot be done; the message says what to do instead."""


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


def first_line(error: BaseException) -> str:
    """Return the message without the C++ backtrace that PyTorch appends."""
    text = str(error).strip()
    for marker in ("\nException raised from", "\nC++ CapturedTraceback"):
        text = text.split(marker)[0]
    ours = isinstance(error, JitPassesError | RuntimeError)
    return (text if ours else f"{type(error).__name__}: {text}") or type(error).__name__
