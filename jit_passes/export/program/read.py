"""From a program of `torch.export` to a ScriptModule."""

from __future__ import annotations

import ast
import copy
import math
import typing
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch._sources import SourceContext
from torch.jit.frontend import build_def

from ...errors import JitPassesError, first_line
from .decomposed import decomposed
from .source import Method, Source

_context: Any = SourceContext  # PyTorch has no types for these two
_build_def: Any = build_def
# The names that the source of a program may use.
_NAMES: dict[str, Any] = {"torch": torch, "math": math, **vars(typing)}


def read_program(program: Any) -> torch.jit.ScriptModule:
    """Return the ScriptModule: see `from_exported_program`."""
    if not isinstance(program, torch.export.ExportedProgram):
        raise JitPassesError(
            f"a torch.export.ExportedProgram is needed, not a {type(program).__name__}: pass the "
            "result of torch.export.export or torch.export.load"
        )
    decomposed()  # defines operators that the source may call
    source = Source.of(program)
    scripted: torch.jit.ScriptModule = torch.jit.script(_modules(source)).eval()
    # The model calls methods of its parts, and `forward` comes last.
    for path in sorted(source.methods, reverse=True):
        part = attrgetter(path)(scripted) if path else scripted
        for method in source.methods[path]:
            _define(part, method)
    return scripted


def _define(part: Any, method: Method) -> None:
    """Compile a method of a scripted module, with the line of source that it comes from.

    `ScriptModule.define` would give all of them lines of a file "<string>".
    """
    text = str(method)
    [tree] = ast.parse(text).body
    before = max(method.line - 1, 0)  # `def` stands a line above the code
    context = _context(text, method.path or None, before, 0, True, method.name)
    try:
        parsed = _build_def(context, tree, None, method.name, "RecursiveScriptModule")
        part._concrete_type._create_methods_and_properties([], [], [parsed], [_NAMES.get], [{}])
    except RuntimeError as error:
        why = first_line(error).strip()
        raise JitPassesError(f"the program is not TorchScript: {why}") from error


def _modules(source: Source) -> nn.Module:
    """Return the modules of a program with their parameters, and without any method."""
    root = _part("Program")
    for path in source.methods:
        _owner(root, path, source)
    nodes = [node for node in source.program.graph.nodes if node.op == "get_attr"]
    values = {str(node.target): attrgetter(str(node.target))(source.program) for node in nodes}
    if _writes(source.program):
        values |= copy.deepcopy({path: x for path, x in values.items() if _is_state(x)})
    for target, value in values.items():
        path, _, name = target.rpartition(".")
        owner = _owner(root, path, source)
        if isinstance(value, nn.Parameter):
            owner.register_parameter(name, value)
        elif isinstance(value, torch.Tensor):
            owner.register_buffer(name, value)
        elif not isinstance(value, torch.fx.GraphModule):
            raise JitPassesError(
                f"the program's constant '{target}' is a {type(value).__name__}, and models "
                "here have tensors alone"
            )
    return root.eval()


def _writes(program: torch.fx.GraphModule) -> bool:
    """Say whether a program writes to a tensor, which may be a buffer or a part of one."""
    graphs = [part.graph for part in program.modules() if isinstance(part, torch.fx.GraphModule)]
    schemas = (getattr(node.target, "_schema", None) for graph in graphs for node in graph.nodes)
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _is_state(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)


def _owner(root: nn.Module, path: str, source: Source) -> nn.Module:
    """Return the module at a path, which is made where it is not there yet."""
    owner, so_far = root, ""
    for name in path.split(".") if path else ():
        so_far = f"{so_far}.{name}" if so_far else name
        if not hasattr(owner, name):
            owner.add_module(name, _part(source.classes.get(so_far, "Module")))
        owner = getattr(owner, name)
    return owner


def _part(name: str) -> nn.Module:
    """Return an empty module of a class of its own: TorchScript shares methods within a class."""
    kind: type[nn.Module] = type(name, (nn.Module,), {"__module__": __name__})
    return kind()
