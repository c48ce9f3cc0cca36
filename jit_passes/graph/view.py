"""A typed view of a method's graph, for quantizers, reports and passes written in Python.

`GraphView` is a snapshot: plain data, taken once, with no way to reach into PyTorch's IR.
Nodes have stable names such as `layer1.0.conv1:conv2d`: the module path, then the operator, then
`#k` for the k-th further one of that name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from .facts import NOTHING as NO_FACTS
from .facts import Facts, FactsTable
from .origins import Origins
from .traits import NOTHING, TRAITS, Traits, arguments_of

LIST = "prim::ListConstruct"
CALL = "prim::CallMethod"
_HOLDS = ("prim::Constant", "prim::GetAttr")  # nodes that give constants


@dataclass(frozen=True, slots=True)
class Deferred:
    """A constant that is computed when it is looked at, since all at once would be large."""

    make: Callable[[], torch.Tensor]


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
        constant: the constant, if it is one and readable from Python; may be set to a `Deferred`.
        shape: a tensor's sizes as far as the graph knows them, None for unknown sizes; None if it
            knows nothing. Traced graphs have the sizes of the example inputs; see `facts` for sizes
            that hold for all inputs.
        dtype: a tensor's dtype, if the graph knows.
        from_sizes: whether it is a number, or a list of whole ones, that follows from sizes of
            tensors and from constants alone. Traces have tensors without axes for numbers.
        producer: the node that makes it; None for inputs of the graph and of blocks.
        uses: (node, operand index) of all uses, except as a result.
        table: has the facts about it; None where nobody can ask.
    """

    id: int
    name: str
    is_tensor: bool
    written: bool
    is_result: bool
    is_constant: bool
    _constant: Any
    _is_finite: bool | None = field(default=None, init=False)
    shape: tuple[int | None, ...] | None = None
    dtype: torch.dtype | None = None
    from_sizes: bool = False
    producer: NodeView | None = None
    uses: list[tuple[NodeView, int]] = field(default_factory=list)
    table: FactsTable | None = None

    @property
    def facts(self) -> Facts:
        """Number of axes, sizes and dtype of a tensor, as the graph alone tells: see `Facts`.

        In an editor, the first question fixes the facts: later edits do not change these.

        Raises:
            JitPassesError: the graph is gone, and no fact has been asked for before.
        """
        return NO_FACTS if self.table is None else self.table.of(self)

    @property
    def constant(self) -> Any:
        found = self._constant
        return found.make() if type(found) is Deferred else found

    @constant.setter
    def constant(self, value: Any) -> None:
        self._constant, self._is_finite = value, None

    @property
    def is_finite(self) -> bool:
        """Whether a constant tensor holds no NaN and no infinity; True for other constants.

        The tensor is read once, not for each question: weights are large.
        """
        if self._is_finite is None:
            tensor = self.constant
            floats = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            # A NaN propagates to both ends of the range.
            self._is_finite = not (floats and tensor.numel()) or all(
                end.isfinite() for end in torch.aminmax(tensor)
            )
        return self._is_finite

    def __repr__(self) -> str:
        """Return its name, or the constant; the neighbours would be the whole graph."""
        if not self.is_constant:
            return f"<{self.name}>"
        tensor = isinstance(self.constant, torch.Tensor)
        return f"<tensor {list(self.constant.shape)}>" if tensor else f"<{self.constant!r}>"


class Analyses:
    """Facts that C++ finds about all nodes of a method's graph at once, when a first one is asked.

    The class does not keep the module: nodes and values refer to each other, and would keep it
    until the garbage collector comes.

    Args:
        module: the C++ module; its graph must still be the snapshot's when a fact is asked for.
        method: whose graph.
    """

    def __init__(self, module: Any, method: str) -> None:
        self._module, self._method = weakref.ref(module), method
        self._found: dict[Callable[..., Any], Mapping[int, Any]] = {}

    def of(self, analysis: Callable[[Any, str], Mapping[int, Any]], node: NodeView) -> Any:
        """Return the answer of an analysis about a node, or None.

        Raises:
            JitPassesError: the graph is gone, and the analysis has not been asked for before.
        """
        if analysis not in self._found:
            self._found[analysis] = self.all(analysis)
        return self._found[analysis].get(node.index)

    def all(self, analysis: Callable[[Any, str], Any]) -> Any:
        """Return the answer of an analysis about the graph, which it finds anew.

        Raises:
            JitPassesError: the graph is gone.
        """
        module = self._module()
        if module is None:
            raise JitPassesError("the graph of this node is gone: keep its GraphView while you ask")
        return analysis(module, self._method)


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
        moves_data: whether it only rearranges values of its main operand.
        inputs: operands.
        outputs: results.
        folded: in a model that is prepared for training, the batch norm that conversion will fold
            into this operator; result and bias are then as after folding.
        overload: of the operator's overloads, the one that takes these operands; None for `prim::`
            nodes, and for calls.
        carried: of a branch or loop, pairs of values, before and after they go into or out of its
            blocks: a branch's returned value and result, a value that a round of a loop returns and
            its counterpart in the next round.
        traits: facts about its kind of operator.
        analyses: further facts about it; None in a graph without a module, and in an editor.
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
    overload: str | None = None
    carried: tuple[tuple[ValueView, ValueView], ...] = ()
    traits: Traits = field(init=False)
    analyses: Analyses | None = None

    def __post_init__(self) -> None:
        self.traits = TRAITS.get(self.kind, NOTHING)

    @property
    def arguments(self) -> Mapping[str, int]:
        """The places of the operands by their names in the operator's schema; empty without one."""
        return {} if self.overload is None else arguments_of(self.kind, self.overload)

    @property
    def groups(self) -> Any:
        """The groups of a convolution, None where the model computes them; else 1."""
        weighted = self.traits.weighted
        return self.operand("groups").constant if weighted and weighted.spatial_dims else 1

    def operand(self, name: str) -> ValueView:
        """Return the operand that the operator's schema calls so, `node.operand("groups")`.

        Raises:
            JitPassesError: it has no operand of that name; the message lists its operands.
        """
        return self.inputs[self.position(name)]

    @property
    def main_operand(self) -> ValueView:
        """The first operand: the value that is quantized, unpacked, rearranged or limited."""
        return self.inputs[0]

    @property
    def other_operands(self) -> list[ValueView]:
        """The operands behind the first: a grid, options, or further tensors."""
        return self.inputs[1:]

    def operands_behind(self, name: str) -> list[ValueView]:
        """Return the operands behind one: behind the bias of a convolution, its options.

        Raises:
            JitPassesError: it has no operand of that name; the message lists its operands.
        """
        return self.inputs[self.position(name) + 1 :]

    def position(self, name: str) -> int:
        """Return the place of that operand among the inputs.

        Raises:
            JitPassesError: it has no operand of that name; the message lists its operands.
        """
        names = self.arguments
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "its operands have no names"
            raise JitPassesError(f"'{self.name}' ({self.kind}) has no operand '{name}': {known}")
        return names[name]

    @property
    def operands(self) -> list[tuple[int, int | None, ValueView]]:
        """All operands as (position, None, value); of a list, (position, number, element) of each.

        A list counts as its elements where the graph makes it, with `prim::ListConstruct`.
        """
        found: list[tuple[int, int | None, ValueView]] = []
        for position, value in enumerate(self.inputs):
            maker = value.producer
            if maker is not None and maker.kind == LIST:
                found += [(position, k, element) for k, element in enumerate(maker.inputs)]
            else:
                found.append((position, None, value))
        return found

    def use(self, position: int, element: int | None = None) -> tuple[NodeView, int]:
        """Return where the graph uses an operand: here, or, of an element, in the list's maker."""
        maker = self.inputs[position].producer
        return (self, position) if element is None or maker is None else (maker, element)

    @property
    def clip(self) -> tuple[float | None, float | None] | None:
        """(low, high) of an operator that limits its first operand, None for no end.

        None for other operators, and where the model computes an end.
        """
        if self.traits.clip is None or self.overload is None:
            return None
        ends = [self.operand(end) if isinstance(end, str) else end for end in self.traits.clip]
        if any(isinstance(end, ValueView) and not is_literal(end) for end in ends):
            return None
        low, high = (end.constant if isinstance(end, ValueView) else end for end in ends)
        return low, high

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


Use = tuple[NodeView, int]  # an operator, and which of its operands


def are_constant(values: Iterable[ValueView]) -> bool:
    """Say whether all of these values are constants, `are_constant(node.other_operands)`."""
    return all(value.is_constant for value in values)


def is_literal(value: ValueView) -> bool:
    """Say whether a value is a constant and no tensor."""
    return value.is_constant and not isinstance(value.constant, torch.Tensor)


def is_number(value: ValueView) -> bool:
    """Say whether a value is a literal, or a constant tensor without axes."""
    tensor = isinstance(value.constant, torch.Tensor)
    return value.is_constant and not (tensor and value.constant.dim() > 0)


@dataclass(eq=False)
class GraphView:
    """A method's graph.

    Attributes:
        nodes: in program order; nodes of nested blocks stand before the node that holds the blocks.
        inputs: the method's arguments, without self.
        outputs: the values that it returns.
        origins: says of its constants whether they were parameters; None where that is unknown.
        module: the C++ module, kept so that facts can be asked for; None where there is none.
    """

    nodes: Sequence[NodeView]
    inputs: Sequence[ValueView]
    outputs: Sequence[ValueView]
    origins: Origins | None = None
    module: Any = None

    @classmethod
    def of(cls, module: Any, method: str = "forward", *, parameters: bool = False) -> GraphView:
        """Take a snapshot of the method's graph of a ScriptModule or C++ module.

        Calls are not looked into: the graph of a module that was not inlined shows its calls.

        Args:
            module: whose graph.
            method: which.
            parameters: let parameters, and buffers that the graph does not write to, count as
                constants, as if the module were frozen. These values have their paths as names. A
                value that the graph computes from them alone is a constant too; its operators are
                not shown.
        """
        cpp_module = module._c if isinstance(module, torch.jit.ScriptModule) else module
        analyses = Analyses(cpp_module, method)
        nodes, _, inputs, outputs = read_snapshot(
            _C.snapshot(cpp_module, method, parameters),
            FactsTable(partial(analyses.all, partial(_C.tensor_facts, parameters=parameters))),
        )
        for node in nodes:
            node.analyses = analyses
        kept = without_folded(nodes) if parameters else nodes
        return cls(kept, inputs[1:], outputs, module=cpp_module)

    @classmethod
    def of_graph(cls, graph: Any) -> GraphView:
        """Take a snapshot of a graph that belongs to no module, `torch._C.Graph`."""
        nodes, _, inputs, outputs = read_snapshot(
            _C.snapshot_of_graph(graph), FactsTable(partial(_C.tensor_facts, graph, ""))
        )
        return cls(nodes, inputs, outputs)


def without_folded(nodes: list[NodeView]) -> list[NodeView]:
    """Return the nodes without operators that compute constants, which have no uses there then."""
    kept = []
    for node in nodes:
        reads = node.kind not in _HOLDS and are_constant(node.inputs)
        if reads and node.outputs and are_constant(node.outputs):
            for value in dict.fromkeys(node.inputs):
                value.uses = [use for use in value.uses if use[0] is not node]
        else:
            kept.append(node)
    return kept


def read_snapshot(
    records: Any, table: FactsTable | None = None
) -> tuple[list[NodeView], dict[int, ValueView], list[ValueView], list[ValueView]]:
    """Return nodes, values by id, inputs and outputs of a snapshot from C++.

    Args:
        records: the snapshot.
        table: has the facts about its values; None where nobody asks for them.
    """
    node_records, value_records, inputs, outputs = records
    values = {record[0]: ValueView(*record) for record in _drained(value_records)}
    for value in values.values():
        value.table = table
    nodes = [node_of(index, record, values) for index, record in enumerate(_drained(node_records))]
    return nodes, values, [values[i] for i in inputs], [values[i] for i in outputs]


def _drained(records: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Give each record and drop it: Python's garbage collector visits all that are still there."""
    records.reverse()
    while records:
        yield records.pop()


def node_of(index: int, record: tuple[Any, ...], values: dict[int, ValueView]) -> NodeView:
    """Return a node that C++ recorded, joined with its values."""
    name, kind, path, module_type, source, block, moves, operands, results, *rest = record
    overload, carried = rest
    node = NodeView(
        index, name, kind, path, module_type, source, block, moves,
        [values[i] for i in operands], [values[i] for i in results], None, overload,
        tuple([(values[a], values[b]) for a, b in carried]),
    )  # fmt: skip
    for operand, value in enumerate(node.inputs):
        value.uses.append((node, operand))
    for value in node.outputs:
        value.producer = node
    return node
