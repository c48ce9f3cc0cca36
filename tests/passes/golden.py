"""Golden files: a graph as IR text, the pass to run on it, and what must come out.

    # RUN: remove_dropout
    # CHANGES: yes
    graph(%x : Tensor):
      ...
    # CHECK: aten::relu

The graph becomes the method `forward` of a module; tensor constants are given by their type and
hold 0.1, 0.2, ... Its first input may be %self. Further lines, each as often as needed:

    # MEMBER: conv.weight = nn.Parameter(torch.ones(4, 3))    a parameter, buffer (tensor) or number
    # METHOD: def twice(self, x): return x + x                for prim::CallMethod
    # FOLDED: yes                                             lists of constants are constants
    # OPTIONS: {"engine": "x86", "uses": [(node("y"), 0)]}    Python; value("y") is %y's number

FileCheck sees the result renumbered from %0 (self) on, then a line for each parameter and buffer of
the module, then one for each remark, `remark conv: why not`.
"""

from __future__ import annotations

import builtins
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C import FileCheck

from jit_passes import _C, GraphView

FOLDER = Path(__file__).parent / "ir"
NODE = re.compile(r"\s+(?:%(\w+).* = )?\w+::\w+.*\(")  # a line of the text


@dataclass(frozen=True)
class Golden:
    """One file."""

    path: Path
    run: str
    changes: bool
    options: str
    members: tuple[str, ...]
    methods: tuple[str, ...]
    folded: bool
    graph: str
    checks: str

    @property
    def name(self) -> str:
        """Pass and file, for test ids."""
        return f"{self.path.parent.name}/{self.path.stem}"

    def module(self) -> Any:
        """Return a C++ module whose method `forward` is the graph."""
        return module_of(self.graph, self.members, self.methods, folded=self.folded)

    def options_for(self, module: Any) -> dict[str, Any]:
        """Return the options, which may refer to the module's graph."""
        if self.options == "{}":
            return {}
        graph = module._get_method("forward").graph
        header, *lines = self.graph.splitlines()
        names = [found[1] for line in lines if (found := NODE.match(line))]
        values = {
            name: next(node.outputs(), None)
            for name, node in zip(names, nodes_of(graph), strict=True)
        }
        inputs = re.findall(r"%(\w+) :", header)
        own = list(graph.inputs())[-len(inputs) :]
        values |= dict(zip(inputs, own, strict=True))
        seen = GraphView.of(module).nodes
        makers = {value.id: node.index for node in seen for value in node.outputs}
        scope = {
            "torch": torch,
            "value": lambda name: values[name].unique(),
            "node": lambda name: makers[values[name].unique()],
        }
        return dict(eval(self.options, scope))

    def check(self, text: str) -> None:
        """Assert that the graph's text is what the file wants."""
        FileCheck().run(self.checks, text)


def read(path: Path) -> Golden:
    """Read a golden file."""
    words: dict[str, list[str]] = {}
    graph = []
    for line in path.read_text().splitlines():
        word, _, rest = line.lstrip("# ").partition(":")
        if line.startswith("#"):
            word = "CHECK" if word.startswith("CHECK") else word
            words.setdefault(word, []).append(line if word == "CHECK" else rest.strip())
        else:
            graph.append(line)
    assert "CHECK" in words, f"{path} checks nothing"
    (name,), (changes,) = words["RUN"], words["CHANGES"]
    return Golden(
        path,
        name,
        {"yes": True, "no": False}[changes],
        "".join(words.get("OPTIONS", ["{}"])),
        tuple(words.get("MEMBER", ())),
        tuple(words.get("METHOD", ())),
        "FOLDED" in words,
        "\n".join(graph) + "\n",
        "\n".join(words["CHECK"]) + "\n",
    )


def files() -> list[Golden]:
    """All golden files, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*/*.ir"))]


def nodes_of(block: Any) -> Iterator[Any]:
    """All nodes of a block or graph and those within them, in program order."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def module_of(
    ir: str, members: Sequence[str] = (), methods: Sequence[str] = (), folded: bool = False
) -> Any:
    """Return a C++ module whose method `forward` is the graph of the IR text.

    Args:
        ir: the graph; its first input may be %self.
        members: `conv.weight = nn.Parameter(torch.ones(2, 3))`, as tensors, numbers or parameters.
        methods: TorchScript functions of self that the graph may call.
        folded: whether lists of constants become constants, which the text cannot hold.
    """
    parsed = torch._C.parse_ir(ir, True)
    for node in nodes_of(parsed):
        tensor = node.output().toIValue() if node.kind() == "prim::Constant" else None
        if isinstance(tensor, torch.Tensor):
            count = torch.arange(1, tensor.numel() + 1).reshape(tensor.shape)
            tensor.copy_(count if not tensor.is_floating_point() else count / 10)
    if folded:
        torch._C._jit_pass_constant_propagation(parsed)
    inputs = list(parsed.inputs())
    has_self = bool(inputs) and inputs[0].debugName() == "self"
    arguments = [f", argument_{i}: {_annotation(v)}" for i, v in enumerate(inputs[has_self:])]
    results = ", ".join(_annotation(value) for value in parsed.outputs())
    result = f"Tuple[{results}]" if len(list(parsed.outputs())) > 1 else results or "None"
    source = f"def forward(self{''.join(arguments)}) -> {result}:\n    raise ValueError()\n"
    scripted = torch.jit._recursive.create_script_module(
        _holder(members), lambda _: [], share_types=False, is_tracing=False
    )
    module = scripted._c
    names = {**vars(builtins), **vars(typing), "torch": torch, "Tensor": torch.Tensor}
    for definition in (*methods, source):
        module._define(scripted._concrete_type, definition + "\n", names.get)
    graph = module._get_method("forward").graph
    _fill(graph, parsed, has_self)
    modules = {"self": module}
    for node in nodes_of(graph):
        if node.kind() == "prim::SetAttr":
            node.eraseOutput(0)  # the parser wants one
        if node.kind() == "prim::GetAttr":
            owner, name = modules[node.input().debugName()], node.s("name")
            if isinstance(found := owner.getattr(name), torch._C.ScriptModule):
                node.output().setType(found._type())
                modules[node.output().debugName()] = found
    return module


def _annotation(value: Any) -> str:
    return str(value.type().annotation_str)


def _holder(members: Sequence[str]) -> torch.nn.Module:
    """Return a module with the members; its TorchScript type is its own."""
    root: Any = type("Golden", (torch.nn.Module,), {})()
    for member in members:
        path, _, text = member.partition("=")
        *owners, name = path.strip().split(".")
        owner = root
        for part in owners:
            if not hasattr(owner, part):
                owner.add_module(part, type(part.title(), (torch.nn.Module,), {})())
            owner = getattr(owner, part)
        value = eval(text, {"torch": torch, "nn": torch.nn})
        plain = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        owner.register_buffer(name, value) if plain else setattr(owner, name, value)
    return root


def _fill(graph: Any, parsed: Any, has_self: bool) -> None:
    """Put the nodes of the parsed graph into the method's, which gets their results."""
    for _ in list(graph.outputs()):
        graph.eraseOutput(0)
    for node in reversed(list(graph.nodes())):
        node.destroy()
    own = list(graph.inputs())
    for output in graph.insertGraph(parsed, own if has_self else own[1:]):
        graph.registerOutput(output)


def text_of(module: Any, remarks: Sequence[tuple[str, str]] = ()) -> str:
    """Return the graph's text with values numbered in program order, attributes, and remarks."""
    graph = module._get_method("forward").graph
    lines = [str(torch._C._jit_pass_canonicalize(graph, False)).rstrip()]
    lines += attributes_of(module)
    lines += [f"remark {name}: {reason}" for name, reason in remarks]
    return "\n".join(lines)


def attributes_of(module: Any, owner: str = "") -> Iterator[str]:
    """Yield parameters and buffers, those of modules within too; small ones with their values."""
    kinds = {"parameter": torch._C.ParameterDict, "buffer": torch._C.BufferDict}
    for kind, table in kinds.items():
        for name, tensor in table(module).items():
            held = tensor.tolist() if tensor.numel() <= 4 else list(tensor.shape)
            yield f"{kind} {owner}{name}: {held}"
    for name, inner in torch._C.ModuleDict(module).items():
        yield from attributes_of(inner, f"{owner}{name}.")


def run(
    golden: Golden, module: Any, options: dict[str, Any] | None = None
) -> tuple[Any, bool, str]:
    """Run the file's pass, lint what it leaves, and remove what that left dead.

    Returns:
        The module, whether the pass says that it changed something, and the text with remarks.
    """
    given = golden.options_for(module) if options is None else options
    module, changed, remarks = _C.run_pass(golden.run, module, "forward", given)
    _C.lint(module, "forward")
    torch._C._jit_pass_dce(module._get_method("forward").graph)
    return module, changed, text_of(module, remarks)
