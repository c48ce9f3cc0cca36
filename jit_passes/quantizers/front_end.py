"""Signal processing within a model, which is better left in float.

    power = stft(x).abs().square()     # eight decades between loud and quiet
    mel = power @ filterbank           # a product by a constant: counts as a linear
    y = log(mel + 1e-6)                # makes much of small differences between small numbers
    ...                                # layers that have learned

A grid of 8 bits has two decades, so codes of the product are 0 in quiet bands, for any range.
Learned layers are different: their numbers have similar sizes, and later layers were trained with
them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from torch import Tensor

from ..graph.view import GraphView, NodeView, ValueView
from .automatic import is_attention

OF_A_BUFFER = "it multiplies by a buffer, as by a filterbank, and not by learned weights"

LOGARITHMS = frozenset({"aten::log", "aten::log2", "aten::log10", "aten::log1p"})
POWERS = frozenset(
    {"aten::pow", "aten::square", "aten::sqrt", "aten::rsqrt", "aten::reciprocal", "aten::div"}
)
_STEEP = LOGARITHMS | POWERS | {"aten::mul"}
# Functions that stand behind learned layers; in some graphs they are the only sign of learning.
_NAMES = """
    batch_norm celu elu gelu group_norm hardsigmoid hardswish hardtanh instance_norm layer_norm
    leaky_relu log_softmax mish prelu relu relu6 rms_norm rrelu selu sigmoid silu softmax
    _safe_softmax softplus tanh
"""
NEURAL = frozenset(f"aten::{name}" for name in _NAMES.split())


def find_front_end(graph: GraphView) -> dict[int, str]:
    """Return why operators are better left in float, by index.

    Candidates are operators that compute before anything that has learned:

    - all that a logarithm, power, root or quotient of computed values depends on;
    - convolutions and linears by a buffer.

    A product by a buffer behind learned layers is better in float too, if no learned layer follows
    or a logarithm comes first: an inverse Fourier transform at the end, say. A product between
    layers, such as a blur, computes on numbers like theirs.

    In a frozen model, and for a parameter that needs no gradient, nothing says whether a weight was
    learned. With a bias it was. Without a bias it is fixed if a logarithm, power, root or quotient
    depends on it before anything learned, or before a function of neural networks.
    """
    return _FrontEnd(graph).find()


class _FrontEnd:
    """The search in one graph.

    Attributes:
        weighing: operators with weights, by index.
        fixed: operators that multiply by a buffer.
        unsure: other ones, whose weight may not be learned.
    """

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph
        self.weighing = {n.index for n in graph.nodes if n.traits.counts and not n.traits.product}
        self.fixed: list[NodeView] = []
        self.unsure: dict[int, NodeView] = {}
        for node in graph.nodes:
            weight = node.operand("weight").constant if node.traits.weighted is not None else None
            if not isinstance(weight, Tensor):
                continue
            bias = node.operand("bias")
            if graph.origins is not None and graph.origins.is_buffer(weight):
                self.fixed.append(node)
            elif bias.is_constant and bias.constant is None:
                self.unsure[node.index] = node

    def find(self) -> dict[int, str]:
        found = self._by_buffers() if self.fixed else {}
        readers = [node for node in self.graph.nodes if _is_steep(node)]
        products = any(node.traits.product for node in self.graph.nodes)
        if readers and (self.fixed or self.unsure or products):
            found |= self._read_by(readers)
        return found

    def _by_buffers(self) -> dict[int, str]:
        learned = self.weighing - {node.index for node in self.fixed}
        behind = _values_behind(self.graph, learned)
        return {
            node.index: OF_A_BUFFER
            for node in self.fixed
            if node.main_operand.id not in behind or _matters_behind(self.graph, node, learned)
        }

    def _read_by(self, readers: list[NodeView]) -> dict[int, str]:
        neural = {n.index for n in self.graph.nodes if n.kind in NEURAL or is_attention(n)}
        learned = neural | self.weighing - {node.index for node in self.fixed} - self.unsure.keys()
        while True:
            behind = _values_behind(self.graph, learned)
            found: dict[int, str] = {}
            for reader in readers:
                if not any(value.id in behind for value in reader.inputs):
                    why = f"'{reader.name}' depends on it, before anything learned"
                    for node in _upstream(self.graph, reader):
                        found.setdefault(node.index, why)
            more = {i for i in self.unsure.keys() & found.keys() if self._is_parameter(i)}
            if not more:
                return found
            learned |= more
            for index in more:
                del self.unsure[index]

    def _is_parameter(self, index: int) -> bool:
        weight = self.unsure[index].operand("weight").constant
        return self.graph.origins is not None and self.graph.origins.is_parameter(weight)


def _is_steep(node: NodeView) -> bool:
    """Say whether a node is a logarithm, power, root or quotient of computed values."""
    if node.kind not in _STEEP:
        return False
    computed = [value for value in node.inputs[:2] if value.is_tensor and not value.is_constant]
    computed = [value for value in computed if not value.from_sizes]
    if not computed or len(node.outputs) != 1 or not node.output.is_tensor:
        return False
    if node.kind == "aten::mul":
        return node.operand("self") is node.operand("other")
    return node.operand("other" if node.kind == "aten::div" else "self") in computed


def _values_behind(graph: GraphView, first: Container[int]) -> set[int]:
    """Return the ids of the values that depend on some operators, not only by shape."""
    found: set[int] = set()
    while True:
        known = len(found)
        for node in graph.nodes:
            if node.traits.asks_for_shape:
                continue
            if node.index in first or any(value.id in found for value in node.inputs):
                found.update(value.id for value in node.outputs)
            found.update(later.id for value, later in node.carried if value.id in found)
        if len(found) == known or not any(node.carried for node in graph.nodes):
            return found  # rounds of loops pass values on to earlier nodes


def _upstream(graph: GraphView, node: NodeView) -> Iterable[NodeView]:
    """Yield a node and all that it depends on, not only by shape."""
    earlier = _carried(graph, backwards=True)
    pending, seen = [node], {node.index}
    while pending:
        last = pending.pop()
        yield last
        values = list(last.inputs)
        for value in values:  # which grows
            values += [v for v in earlier.get(value.id, ()) if v not in values]
            maker = value.producer
            if maker is not None and maker.index not in seen and not maker.traits.asks_for_shape:
                seen.add(maker.index)
                pending.append(maker)


def _matters_behind(graph: GraphView, node: NodeView, learned: Container[int]) -> bool:
    """Say whether the caller or a logarithm reads a node's result, with nothing learned between."""
    later = _carried(graph, backwards=False)
    results = {value.id for value in graph.outputs}
    values = list(node.outputs)
    for value in values:  # which grows
        if value.id in results:
            return True
        values += [v for v in later.get(value.id, ()) if v not in values]
        for user, _ in value.uses:
            if user.kind in LOGARITHMS:
                return True
            if user.index not in learned and not user.traits.asks_for_shape:
                values += [v for v in user.outputs if v not in values]
    return False


def _carried(graph: GraphView, backwards: bool) -> dict[int, list[ValueView]]:
    """Return by id the values that a value becomes in or behind a block; backwards, that it was."""
    found: dict[int, list[ValueView]] = {}
    for node in graph.nodes:
        for value, later in node.carried:
            first, last = (later, value) if backwards else (value, later)
            found.setdefault(first.id, []).append(last)
    return found
