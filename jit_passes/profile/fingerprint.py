"""A hash of a graph: equal graphs have equal hashes, in any process and from any file."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterator
from typing import Any

import torch

from ..graph.view import GraphView
from ..stages.values import EDGE, source_of

GET_ATTRIBUTE = "prim::GetAttr"


def hash_of_graph(view: GraphView, graph: Any, hidden: Collection[int]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a canonical text of the graph.

    In it are operators, stable names, attributes and constants; of tensors their dtypes and shapes
    only, so that a model keeps its profile when it is trained a little more. Hidden nodes are not.
    """
    text = "\n".join(_Writer(view, graph, hidden).lines())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_of_weights(view: GraphView, hidden: Collection[int]) -> str:
    """Return 16 hexadecimal digits that stand for the bytes of all constant tensors.

    The digits are CRC-32 of the bytes, one after another in program order, hashed by SHA-256. This
    is fast, and no protection against a search for two models with equal hashes.
    """
    known: dict[int, int] = {}
    found: list[int] = []
    for node in view.nodes:
        if node.index in hidden or node.kind == EDGE:
            continue
        for value in map(source_of, node.inputs):
            tensor = value.constant if value.is_constant else None
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            if tensor.dim() == 0 or tensor.layout != torch.strided:
                continue
            if value.id not in known:
                data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
                known[value.id] = zlib.crc32(data.numpy().data)
            found.append(known[value.id])
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def observers_of(view: GraphView, places: Collection[int]) -> set[int]:
    """Return the indices of operators at places, and of nodes that read their buffers."""
    found = set(places)
    for node in view.nodes:
        uses = node.outputs[0].uses if node.kind == GET_ATTRIBUTE else []
        if uses and all(user.index in places and operand for user, operand in uses):
            found.add(node.index)
    return found


class _Writer:
    """Writes the graph so that equal graphs give equal text."""

    def __init__(self, view: GraphView, graph: Any, hidden: Collection[int]) -> None:
        self.graph = graph
        self.hidden = hidden
        self.names = [node.name for node in view.nodes]
        self.constants = {
            value.id: value for node in view.nodes for value in node.outputs if value.is_constant
        }
        self.numbers: dict[int, str] = {}
        self.tuples: dict[int, list[str]] = {}
        self.values = 0
        self.count = 0

    def lines(self) -> Iterator[str]:
        yield from self.block(self.graph, 0)

    def block(self, block: Any, depth: int) -> Iterator[str]:
        indent = " " * depth
        yield f"{indent}({self.define(block.inputs())})"
        for node in block.nodes():
            inner = [list(self.block(b, depth + 1)) for b in node.blocks()]
            name, hidden = self.names[self.count], self.count in self.hidden
            self.count += 1
            if node.kind() == EDGE:
                self.numbers[node.output().unique()] = self.number(next(node.inputs()))
                continue
            if node.kind() == "prim::Constant" or hidden or self.is_tuple(node):
                continue
            if node.hasAttribute("name"):  # reading and writing attributes
                name = node.s("name")
            operands = [self.number(value) for value in node.inputs()]
            while operands and operands[-1] == "None":  # a file may spell out more defaults
                operands.pop()
            results = self.define(node.outputs())
            yield f"{indent}{results} = {node.kind()} {name}({', '.join(operands)})"
            for lines in inner:
                yield from lines
        yield f"{indent}return {', '.join(map(self.number, block.outputs()))}"

    def is_tuple(self, node: Any) -> bool:
        """Note a tuple's elements, put in or taken out: files leave nodes of tuples out."""
        inputs, outputs = list(node.inputs()), list(node.outputs())
        if node.kind() == "prim::TupleConstruct":
            elements = [self.number(value) for value in inputs]
            self.tuples[outputs[0].unique()] = elements
            self.numbers[outputs[0].unique()] = f"tuple({', '.join(elements)})"
            return True
        if node.kind() not in ("prim::TupleIndex", "prim::TupleUnpack"):
            return False
        source, *number = inputs
        known = self.tuples.get(source.unique())
        if known is None:
            return False
        if number:
            index = self.constants.get(number[0].unique())
            if index is None:
                return False
            known = [known[index.constant]]
        for value, text in zip(outputs, known, strict=True):
            self.numbers[value.unique()] = text
        return True

    def define(self, values: Any) -> str:
        defined = []
        for value in values:
            defined.append(f"%{self.values}")
            self.numbers[value.unique()] = defined[-1]
            self.values += 1
        return ", ".join(defined)

    def number(self, value: Any) -> str:
        unique = value.unique()
        if unique in self.constants:
            return _constant_text(self.constants[unique].constant)
        return self.numbers[unique]


def _constant_text(constant: Any) -> str:
    if isinstance(constant, torch.Tensor):
        if constant.dim() == 0 and constant.dtype in (torch.int64, torch.float64, torch.bool):
            return repr(constant.item())  # a number, as traces have them
        return f"{constant.dtype}{list(constant.shape)}"
    if isinstance(constant, list | tuple):
        return f"{type(constant).__name__}({', '.join(map(_constant_text, constant))})"
    if constant is None or isinstance(constant, bool | int | float | str):
        return repr(constant)
    return f"{type(constant).__name__} {constant}"
