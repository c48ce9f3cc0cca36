"""A typed, read-only view of a method's graph, for quantizers and reports.

The view is a snapshot: plain data, taken once, with no way to reach into PyTorch's IR. Nodes have
stable names such as `layer1.0.conv1:conv2d`: the module path, then the operator, then `#k` for the
k-th further one of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _C


@dataclass(slots=True, eq=False)
class ValueView:
    """A value of the graph.

    Attributes:
        id: number within this graph.
        name: the name of the node that makes it, with `.k` when that has several results; for
            inputs of the graph, their own name.
        is_tensor: whether its static type is Tensor.
        written: whether an in-place operator may write to it, directly or through a view.
        is_result: whether the method, or a block in it, returns it.
        is_constant: whether it is a literal or a frozen parameter.
        constant: the constant, if it is one and readable from Python.
        producer: the node that makes it; None for inputs of the graph and of blocks.
        uses: (node, operand index) of all uses but those as a result.
    """

    id: int
    name: str
    is_tensor: bool
    written: bool
    is_result: bool
    is_constant: bool
    constant: Any
    producer: NodeView | None = None
    uses: list[tuple[NodeView, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class NodeView:
    """An operator of the graph.

    Attributes:
        index: place in program order.
        name: stable name; "" for constants.
        kind: qualified operator name, `aten::conv2d`.
        module: path of the module it was written in, `layer1.0.conv1`; "" at the top.
        module_type: class name of that module.
        source: `file:line` of the user's code; "" where the graph does not know.
        block: number of the block it stands in; 0 is the method's own.
        moves_data: whether it only rearranges values of its first operand.
        inputs: operands.
        outputs: results.
    """

    index: int
    name: str
    kind: str
    module: str
    module_type: str
    source: str
    block: int
    moves_data: bool
    inputs: list[ValueView]
    outputs: list[ValueView]

    @property
    def output(self) -> ValueView:
        """The only result."""
        return self.outputs[0]


@dataclass(frozen=True, eq=False)
class GraphView:
    """A method's graph.

    Attributes:
        nodes: in program order, those of nested blocks before the node that holds the blocks.
        inputs: the method's arguments, without self.
        outputs: what it returns.
    """

    nodes: Sequence[NodeView]
    inputs: Sequence[ValueView]
    outputs: Sequence[ValueView]

    @classmethod
    def of(cls, module: Any, method: str) -> GraphView:
        """Take a snapshot of the method's graph of a C++ module."""
        node_records, value_records, inputs, outputs = _C.snapshot(module, method)
        values = {record[0]: ValueView(*record) for record in value_records}
        nodes = []
        for index, record in enumerate(node_records):
            name, kind, module_path, module_type, source, block, moves, operands, results = record
            node = NodeView(
                index, name, kind, module_path, module_type, source, block, moves,
                [values[i] for i in operands], [values[i] for i in results],
            )  # fmt: skip
            for operand, value in enumerate(node.inputs):
                value.uses.append((node, operand))
            for value in node.outputs:
                value.producer = node
            nodes.append(node)
        return cls(nodes, [values[i] for i in inputs[1:]], [values[i] for i in outputs])
