"""Why a program is not translated: the error of `torch.onnx`, and the operator."""

from __future__ import annotations

import re

import torch

from ...errors import first_line
from .graph import nodes_of

# `torch.onnx` takes operators apart, and names the part that it was at and its operator.
_NODE = re.compile(r"Error when translating node %(\w+) .*?target=torch\.ops\.\w+\.(\w+)")
_MISSING = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")


def reason_of(error: BaseException, program: torch.export.ExportedProgram) -> str:
    """Return the innermost error of `torch.onnx`, since its own message is a page.

    In front is the operator, by its name and its line of source.
    """
    match = _NODE.search(str(error))
    while error.__cause__ is not None:
        error = error.__cause__
        match = _NODE.search(str(error)) or match
    said = first_line(error).strip().partition("\n")[0]
    if missing := _MISSING.search(said):
        said = f"ONNX has no form of {missing[1]}: leave it out, or write it with other operators"
    return f"{_described(program, *match.groups())}{said}" if match else said


def _described(program: torch.export.ExportedProgram, name: str, operator: str) -> str:
    """Return name and line of a node, by its name or else by its operator's."""
    nodes = list(nodes_of(program))
    named = [node for node in nodes if node.name == name]
    for node in named or [node for node in nodes if operator in _operators_of(node)]:
        if note := node.meta.get("custom"):
            return f"'{note['name']}'{' at ' + line if (line := note.get('source')) else ''}: "
    return ""


def _operators_of(node: torch.fx.Node) -> tuple[str, str]:
    """Return an operator's name without its overload, and the name of its decomposition.

    For example, aten.add.Tensor gives `add`; aten.special_bessel_j0 becomes prims.bessel_j0.
    """
    name = str(getattr(node.target, "__name__", "")).partition(".")[0]
    return name, name.removeprefix("special_")
