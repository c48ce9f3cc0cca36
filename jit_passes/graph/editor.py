"""A view of a graph with operations that change the graph and keep the view up to date."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ..errors import JitPassesError
from .facts import FactsTable
from .view import NodeView, ValueView, node_of, read_snapshot


class GraphEditor:
    """The graph that a pass works on: a view, and operations that change graph and view.

    Every operation checks its arguments: a node or value that is gone is an error, never a crash.
    The runner's lint finds other mistakes when the pass returns, for example an operand that is
    computed only later.

    Attributes:
        inputs: the method's arguments, without self.
        outputs: the values that it returns.
        changed: whether an operation was called.
        remarks: the (name, reason) of each remark.
    """

    def __init__(self, editor: Any) -> None:
        table = FactsTable(partial(_checked, editor.tensor_facts))
        nodes, self._values, inputs, self.outputs = read_snapshot(editor.snapshot(), table)
        self.inputs = inputs[1:] if editor.has_module else inputs
        self.changed = False
        self.remarks: list[tuple[str, str]] = []
        self._nodes = {node.index: node for node in nodes}
        self._editor = editor

    @property
    def nodes(self) -> list[NodeView]:
        """The nodes as they are now: the old ones in program order, then the new ones."""
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
            JitPassesError: the operator does not exist, or does not take these operands.
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

        The node that makes the replacement keeps its operands, so that one operator can be put
        behind another: `y = graph.insert("aten::relu", [x], before=...).output`, then
        `graph.replace(x, y)`.
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
        node = node_of(index, record, known)
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
