"""Exit codes, and messages on stderr; stdout is for results."""

from __future__ import annotations

import contextlib
import json
from enum import IntEnum
from typing import Any

import click


class Exit(IntEnum):
    """The exit codes of the process."""

    DONE = 0
    FAILED = 1  # by a mistake of this package, or of PyTorch
    USAGE = 2
    INPUT = 3
    OUTPUT = 4
    BELOW = 5
    INTERRUPTED = 130
    TERMINATED = 143


def note(message: str) -> None:
    """Write a message to stderr; a stderr that cannot be written is ignored."""
    with contextlib.suppress(OSError):
        click.echo(message, err=True)


def warning(message: str) -> None:
    """Warn on stderr that the result is probably not as hoped."""
    note(f"{click.style('warning:', fg='yellow')} {message}")


def failure(message: str) -> None:
    """Say on stderr why there is no result."""
    note(f"{click.style('error:', fg='red')} {message}")


def show(text: str, data: Any, as_json: bool) -> None:
    """Write a result to stdout: as text for people, or as JSON for programs.

    Raises:
        OSError: it cannot be written.
    """
    click.echo(json.dumps(data, indent=2, ensure_ascii=False) if as_json else text)
