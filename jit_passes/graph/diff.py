"""Differences between two graphs, line by line."""

from __future__ import annotations

import difflib
import sys

import torch

from .. import _C

_RED, _GREEN, _CYAN, _PLAIN = "\033[31m", "\033[32m", "\033[36m", "\033[0m"
_COLORS = {"-": _RED, "+": _GREEN, "@": _CYAN}


def format_graph(module: torch.jit.ScriptModule, method: str = "forward") -> str:
    """Return a method's graph as text with stable names.

    Values are called after the node that makes them, `conv1:conv2d`, attributes by their path, and
    constants stand where they are used. A change of one node changes few lines.
    """
    return _C.format_graph(module._c, method)


def diff_graphs(
    before: torch.jit.ScriptModule,
    after: torch.jit.ScriptModule,
    method: str = "forward",
    *,
    color: bool | None = None,
) -> str:
    """Return what changed between a method's graphs, as a unified diff; "" when nothing did.

    Args:
        before: a module.
        after: another one; both inlined, or calls are compared as calls.
        method: of both.
        color: with ANSI colors; None: on a terminal.
    """
    return diff_text(format_graph(before, method), format_graph(after, method), color)


def diff_text(before: str, after: str, color: bool | None = None) -> str:
    """Return the unified diff of two texts, without a header."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm=""))[
        2:
    ]
    if sys.stdout.isatty() if color is None else color:
        lines = [
            f"{_COLORS[line[0]]}{line}{_PLAIN}" if line[:1] in _COLORS else line for line in lines
        ]
    return "\n".join(lines)
