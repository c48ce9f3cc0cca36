"""A typed view of a method's graph, for quantizers, reports and passes written in Python.

`GraphView` is a snapshot: plain data, taken once, with no way to reach into PyTorch's IR.
`GraphEditor` is the same view with operations that change the graph and keep the view up to date.
Nodes have stable names such as `layer1.0.conv1:conv2d`: the module path, then the operator, then
`#k` for the k-th further one of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError


@dataclass(slots=True, eq=False, repr=False)
class ValueView:
    """A value of the graph.

    Attributes:
        id: number within this graph.
        name: the name of the node that makes it, with `.k` when that has several results; for
            inputs of the graph, their own name.
        is_tensor: whether its static type is Tensor.
        written: whether an in-place operator may write to it, directly or through a view.
        is_result: whether the method, or a block in it, returns it.
        is_constant: whether it is a literal or a frozen parameter; see also `GraphView.of`.
        constant: the constant, if it is one and readable from Python.
        shape: what the graph knows of a tensor's shape: sizes, None for unknown ones; None if
            nothing. Traced graphs have that of the example inputs.
        dtype: a tensor's dtype, if the graph knows.
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
    shape: tuple[int | None, ...] | None = None
    dtype: torch.dtype | None = None
    producer: NodeView | None = None
    uses: list[tuple[NodeView, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return its name, or the constant; the neighbours would be the whole graph."""
        if not self.is_constant:
            return f"<{self.name}>"
        tensor = isinstance(self.constant, torch.Tensor)
        return f"<tensor {list(self.constant.shape)}>" if tensor else f"<{self.constant!r}>"


@dataclass(slots=True, eq=False, repr=False)
class NodeView:
    """An operator of the graph.

    Attributes:
        index: its number; in a snapshot, its place in program order.
        name: stable name; "" for constants, and for nodes that an editor has inserted.
        kind: qualified operator name, `aten::conv2d`.
        module: path of the module it was written in, `layer1.0.conv1`; "" at the top.
        module_type: class name of that module.
        source: `file:line` of the user's code; "" where the graph does not know.
        block: number of the block it stands in; 0 is the method's own.
        moves_data: whether it only rearranges values of its first operand.
        inputs: operands.
        outputs: results.
        folded: in a model that is prepared for training, the batch norm that conversion will fold
            into this operator; result and bias are then what they will be.
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
    folded: NodeView | None = None

    @property
    def output(self) -> ValueView:
        """The only result.

        Raises:
            JitPassesError: there is none, as of `prim::RaiseException`.
        """
        if not self.outputs:
            raise JitPassesError(f"'{self.name}' ({self.kind}) has no result: look at outputs")
        return self.outputs[0]

    def __repr__(self) -> str:
        """Return operator and operands, as `<first.conv:conv2d = aten::conv2d(<x>, ...)>`."""
        operands = ", ".join(map(repr, self.inputs))
        return f"<{self.name or 'node'} = {self.kind}({operands})>"


@dataclass(eq=False)
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
    def of(cls, module: Any, method: str = "forward", *, parameters: bool = False) -> GraphView:
        """Take a snapshot of the method's graph of a ScriptModule or C++ module.

        Calls are not looked into: the graph of a module that was not inlined shows its calls.

        Args:
            module: whose graph.
            method: which.
            parameters: let parameters, and buffers that the graph does not write to, count as
                constants, as if the module were frozen. They have their paths as names.
        """
        cpp_module = module._c if isinstance(module, torch.jit.ScriptModule) else module
        nodes, _, inputs, outputs = _read(_C.snapshot(cpp_module, method, parameters))
        return cls(nodes, inputs[1:], outputs)

    @classmethod
    def of_graph(cls, graph: Any) -> GraphView:
        """Take a snapshot of a graph that belongs to no module, `torch._C.Graph`."""
        nodes, _, inputs, outputs = _read(_C.snapshot_of_graph(graph))
        return cls(nodes, inputs, outputs)


def _read(
    records: Any,
) -> tuple[list[NodeView], dict[int, ValueView], list[ValueView], list[ValueView]]:
    node_records, value_records, inputs, outputs = records
    values = {record[0]: ValueView(*record) for record in value_records}
    nodes = [_node(index, record, values) for index, record in enumerate(node_records)]
    return nodes, values, [values[i] for i in inputs], [values[i] for i in outputs]


def _node(index: int, record: tuple[Any, ...], values: dict[int, ValueView]) -> NodeView:
    name, kind, module_path, module_type, source, block, moves, operands, results = record
    node = NodeView(
        index, name, kind, module_path, module_type, source, block, moves,
        [values[i] for i in operands], [values[i] for i in results],
    )  # fmt: skip
    for operand, value in enumerate(node.inputs):
        value.uses.append((node, operand))
    for value in node.outputs:
        value.producer = node
    return node


class GraphEditor:
    """The graph that a pass works on: a view, and operations that change graph and view.

    Every operation checks what it is given: a node or value that is gone is an error, never a
    crash. What the operations cannot see, an operand that is computed only later say, the runner's
    lint finds when the pass returns.

    Attributes:
        inputs: the method's arguments, without self.
        outputs: what it returns.
        changed: whether an operation was called.
        remarks: the (name, reason) of each remark.
    """

    def __init__(self, editor: Any) -> None:
        nodes, self._values, inputs, self.outputs = _read(editor.snapshot())
        self.inputs = inputs[1:] if editor.has_module else inputs
        self.changed = False
        self.remarks: list[tuple[str, str]] = []
        self._nodes = {node.index: node for node in nodes}
        self._editor = editor

    @property
    def nodes(self) -> list[NodeView]:
        """The nodes as they are now: those that were there in program order, then the new ones."""
        return list(self._nodes.values())

    def insert(
        self,
        kind: str,
        inputs: Sequence[ValueView | bool | int | float | str | list[Any] | None],
        *,
        before: NodeView | None,
        like: NodeView | None = None,
    ) -> NodeView:
        """Insert an operator.

        Args:
            kind: `aten::relu`, an operator of your own, `prim::ListConstruct`,
                `prim::TupleConstruct`.
            inputs: all operands in the order of the operator's schema, defaults included; Python
                values become constants.
            before: the node that it is put in front of; None for the end of the method.
            like: the node whose module path and source line it takes; None for `before`, or the
                last node.

        Returns:
            The new node.

        Raises:
            JitPassesError: there is no such operator, or it does not take these operands.
        """
        operands = [
            value if isinstance(value, ValueView) else self.constant(value, before=before)
            for value in inputs
        ]
        ids = [value.id for value in operands]
        origin = like or before or next(reversed(self._nodes.values()))
        place = _place(before)
        return self._adopt(_checked(self._editor.insert, kind, ids, place, origin.index))

    def constant(self, value: Any, *, before: NodeView | None) -> ValueView:
        """Insert a constant: None, a bool, number, string, tensor, or a list or tuple of these."""
        return self._adopt(_checked(self._editor.insert_constant, value, _place(before))).output

    def attribute(self, path: str, *, before: NodeView | None) -> ValueView:
        """Insert reading an attribute of the module, `layer1.0.conv1.weight`."""
        return self._adopt(_checked(self._editor.insert_attribute, path, _place(before))).output

    def add_tensor(self, name: str, tensor: torch.Tensor, *, like: NodeView) -> str:
        """Add a parameter (for an `nn.Parameter`) or buffer to the module that a node belongs to.

        Returns:
            The path of the attribute: `name`, or `name_1`, ... where that is taken, in that module.
        """
        self.changed = True
        parameter = isinstance(tensor, torch.nn.Parameter)
        path: str = _checked(self._editor.add_attribute, name, tensor, parameter, like.index)
        return path

    def set_input(self, node: NodeView, operand: int, value: ValueView) -> None:
        """Make an operand of the node another value."""
        _checked(self._editor.set_operand, node.index, operand, value.id)
        node.inputs[operand].uses.remove((node, operand))
        node.inputs[operand] = value
        value.uses.append((node, operand))
        self.changed = True

    def replace(self, value: ValueView, replacement: ValueView) -> None:
        """Make all users of a value use another one, results of blocks and of the method too.

        The node that makes the replacement keeps what it uses, so that one operator can be put
        behind
        another: `y = graph.insert("aten::relu", [x], before=...).output; graph.replace(x, y)`.
        """
        if value is replacement:
            return
        maker = replacement.producer
        own = [] if maker is None else [i for i, v in enumerate(maker.inputs) if v is value]
        _checked(self._editor.replace_uses, value.id, replacement.id)
        for node, operand in value.uses:
            node.inputs[operand] = replacement
        replacement.uses.extend(value.uses)
        value.uses.clear()
        replacement.is_result |= value.is_result
        value.is_result = False
        self.outputs = [replacement if output is value else output for output in self.outputs]
        self.changed = True
        for operand in own:
            assert maker is not None
            self.set_input(maker, operand, value)

    def remove(self, node: NodeView) -> None:
        """Remove a node whose results nothing uses; `replace` them first."""
        indices, results = _checked(self._editor.remove, node.index)
        for value in results:
            self._values[value].is_result = False
        for index in indices:
            if index in self._nodes:  # reading an attribute's owner is not shown
                gone = self._nodes.pop(index)
                for operand, value in enumerate(gone.inputs):
                    value.uses.remove((gone, operand))
        self.changed = True

    def remark(self, node: NodeView, reason: str) -> None:
        """Tell the user of the pass about a node: why it was left alone, say.

        The remark stands in `PassRecord.remarks` under the node's name; a node that this pass has
        inserted has none, and goes by its kind.
        """
        self.remarks.append((node.name or node.kind, reason))

    def _adopt(self, inserted: tuple[int, Any, list[Any]]) -> NodeView:
        index, record, values = inserted
        for value in values:
            self._values[value[0]] = ValueView(*value)
        known = {i: self._values[i] for i in (*record[7], *record[8]) if i in self._values}
        for missing in set(record[7]) - set(known):  # modules on an attribute's path
            known[missing] = ValueView(missing, "", False, False, False, False, None)
        node = _node(index, record, known)
        self._nodes[index] = node
        self.changed = True
        return node


def _place(before: NodeView | None) -> int:
    return -1 if before is None else before.index


def _checked(operation: Any, *arguments: Any) -> Any:
    try:
        return operation(*arguments)
    except (RuntimeError, TypeError) as error:
        raise JitPassesError(str(error).split("\nException raised from")[0]) from error
