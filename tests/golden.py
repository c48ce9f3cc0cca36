"""Golden files: a graph as IR text, the pass to run on it, and what must come out.

    # RUN: remove_dropout
    # CHANGES: yes
    graph(%x : Tensor):
      ...
    # CHECK: aten::relu

The graph becomes the method `forward` of a module; tensor constants are given by their type and
hold 0.1, 0.2, ... On the way, constants come to stand in front, the last one first. The result is
renumbered from %0 (self) on before FileCheck sees it. OPTIONS takes the pass's options as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C import FileCheck

from jit_passes import _C

FOLDER = Path(__file__).parent / "ir"


@dataclass(frozen=True)
class Golden:
    """One file."""

    path: Path
    run: str
    changes: bool
    options: dict[str, Any]
    graph: str
    checks: str

    @property
    def name(self) -> str:
        """Pass and file, for test ids."""
        return f"{self.path.parent.name}/{self.path.stem}"

    def module(self) -> Any:
        """Return a C++ module whose method `forward` is the graph."""
        return module_of(self.graph)

    def check(self, text: str) -> None:
        """Assert that the graph's text is what the file wants."""
        FileCheck().run(self.checks, text)


def read(path: Path) -> Golden:
    """Read a golden file."""
    fields = {"OPTIONS": "{}", "CHANGES": "yes"}
    graph, checks = [], []
    for line in path.read_text().splitlines():
        word, _, rest = line.lstrip("# ").partition(":")
        if not line.startswith("#"):
            graph.append(line)
        elif word.startswith("CHECK"):
            checks.append(line)
        elif word in ("RUN", "OPTIONS", "CHANGES"):
            fields[word] = rest.strip()
    assert checks, f"{path} checks nothing"
    options = json.loads(fields["OPTIONS"])
    changes = {"yes": True, "no": False}[fields["CHANGES"]]
    joined = ("\n".join(lines) + "\n" for lines in (graph, checks))
    return Golden(path, fields["RUN"], changes, options, *joined)


def files() -> list[Golden]:
    """All golden files, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*/*.ir"))]


def constants(block: Any) -> list[torch.Tensor]:
    """Tensor constants of a block and those within it, in program order."""
    found = []
    for node in block.nodes():
        for inner in node.blocks():
            found += constants(inner)
        if node.kind() == "prim::Constant" and node.hasAttribute("value"):
            value = node.output().toIValue()
            found += [value] if isinstance(value, torch.Tensor) else []
    return found


def module_of(ir: str) -> Any:
    """Return a C++ module whose method `forward` is the graph of the IR text."""
    graph = torch._C.parse_ir(ir, True)
    for tensor in constants(graph):
        count = torch.arange(1, tensor.numel() + 1).reshape(tensor.shape)
        tensor.copy_(count if not tensor.is_floating_point() else count / 10)
    function = torch._C._create_function_from_graph("golden", graph)
    names = [f"argument_{i}" for i, _ in enumerate(graph.inputs())]
    typed = [
        f"{name}: {value.type().annotation_str}"
        for name, value in zip(names, graph.inputs(), strict=True)
    ]
    source = f"def forward(self, {', '.join(typed)}):\n    return golden({', '.join(names)})\n"
    scope = {"golden": function, "torch": torch}
    empty = type("Golden", (torch.jit.ScriptModule,), {})()  # its TorchScript type is its own too
    module = empty._c
    module._define(empty._concrete_type, source, scope.get)
    graph = module._get_method("forward").graph
    torch._C._jit_pass_inline(graph)
    for node in list(graph.nodes()):
        if node.kind() == "prim::Constant" and node.output().type().kind() == "FunctionType":
            node.destroy()
    return module


def text_of(module: Any) -> str:
    """Return the graph's text with values numbered in program order."""
    graph = module._get_method("forward").graph
    return str(torch._C._jit_pass_canonicalize(graph, False))


def run(golden: Golden, module: Any) -> tuple[Any, bool]:
    """Run the file's pass, lint what it leaves, and remove what that left dead."""
    module, changed, _ = _C.run_pass(golden.run, module, "forward", golden.options)
    _C.lint(module, "forward")
    torch._C._jit_pass_dce(module._get_method("forward").graph)
    return module, changed
