"""Units of operators that a backend computes on integers, and the regions that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _C
from ..graph.traits import arguments_of
from ..graph.view import GraphView, NodeView, ValueView
from ..quantizers.capability import Truths
from ..quantizers.rearranged import LISTS

QUANTIZE = "jit_passes::quantize"
DEQUANTIZE = "jit_passes::dequantize"
ROUND = "jit_passes::fake_quantize"  # rounds otherwise than halves to even, in front of quantize
CHOOSE = "jit_passes::choose_qparams"
QUANTIZE_DYNAMIC = f"{QUANTIZE}_dynamic"
DEQUANTIZE_DYNAMIC = f"{DEQUANTIZE}_dynamic"
# Nodes between the result of one operator and the operand of another.
BETWEEN = (*LISTS, QUANTIZE, DEQUANTIZE, CHOOSE, QUANTIZE_DYNAMIC, DEQUANTIZE_DYNAMIC)


@dataclass
class IntegerOperators:
    """Operators that a backend computes on integers, and operators in float around them.

    Attributes:
        units: the nodes of each: with a clip that it absorbs, or all functions of one table.
        links: numbers of two where one hands a value to the other, or both read the same integers.
        floats: numbers of the units in float.
        begins: kinds of units in float at which a region may begin.
        truths: operators in float that give truths or take them.
    """

    units: list[list[NodeView]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)
    floats: set[int] = field(default_factory=set)
    begins: frozenset[str] = frozenset()
    truths: Truths = field(default_factory=Truths)

    def regions(self, module: Any, method: str) -> list[list[list[NodeView]]]:
        """Return the units of each region: the largest sets that links hold together.

        No path leaves a region and comes back, and none crosses a block or a value that is written
        in place. A region that only rearranges values is none. Operators in float between integers
        come first. Operators in float at the rim follow, which never cut a region in two.

        Args:
            module: the C++ module whose graph they were found in.
            method: whose graph.
        """
        every = set(range(len(self.units)))
        inner = self._settled(module, method, [{u} for u in self._between(every)], self._between)
        rim = (self._with_rim(every) & self.floats).difference(*inner)
        if rim:
            inner = self._settled(module, method, [*inner, *({u} for u in rim)], self._with_rim)
        return [
            [self.units[u] for u in sorted(units)]
            for units in inner
            if any(map(self._computes, units))
        ]

    def _settled(
        self, module: Any, method: str, groups: list[set[int]], keep: Callable[[set[int]], set[int]]
    ) -> list[set[int]]:
        """Return the largest sets of groups, without the units that `keep` leaves out."""
        while True:
            found = self._found(module, method, groups)
            kept = [keep(units) for units in found]
            if kept == found:
                return kept
            # An operator that rearranges may stand behind one that was left out, and then reads a
            # reader of the region. So the search begins anew, without the units that were left out.
            left = set().union(*kept)
            groups = [group for group in groups if group <= left]

    def _found(self, module: Any, method: str, groups: list[set[int]]) -> list[set[int]]:
        """Return the largest sets among some groups of units, in program order."""
        place = {unit: k for k, group in enumerate(groups) for unit in group}
        indices = [[node.index for unit in sorted(g) for node in self.units[unit]] for g in groups]
        links = [(place[a], place[b]) for a, b in self.links if a in place and b in place]
        found: dict[int, set[int]] = {}
        numbers = _C.find_regions(module, method, indices, links)
        for group, number in zip(groups, numbers, strict=True):
            if number >= 0:
                found.setdefault(number, set()).update(group)
        return [found[number] for number in sorted(found)]

    def _computes(self, unit: int) -> bool:
        return unit not in self.floats and not self._rearranges(unit)

    def _begins(self, unit: int) -> bool:
        return unit in self.floats and self.units[unit][0].kind in self.begins

    def _rearranges(self, unit: int) -> bool:
        return all(node.moves_data for node in self.units[unit])

    def _between(self, chosen: set[int]) -> set[int]:
        """Leave out units in float, except on a path from integers to integers."""
        chosen = self._with_truths_inside(chosen)
        makers, readers = self._paths(chosen)
        start = [unit for unit in chosen if self._computes(unit)]
        both = _reached(start, readers) & _reached(start, makers)
        return {unit for unit in chosen if unit not in self.floats or unit in both}

    def _with_rim(self, chosen: set[int]) -> set[int]:
        """Leave out units in float, except where they compute behind integers or in front of them.

        In front of integers, floats come in to an operator at which a region may begin, and to the
        operators that lead to it. Operators that average or sum do not come in, nor do operators at
        the rim that only rearrange, or whose results are read outside of the region too. An
        operator that may compute with whole numbers or cast them stays out as well: its inputs need
        not be floats.
        """
        chosen = self._with_truths_inside(chosen)
        makers, readers = self._paths(chosen)
        start = [unit for unit in chosen if self._computes(unit)]
        behind = _reached(start, readers)
        averages = {unit for unit in self.floats - behind if _reduces(self.units[unit][0])}
        makers_in = {unit: makers[unit] - averages for unit in chosen}
        ends = {unit for unit in _reached(start, makers_in) if self._begins(unit)}
        before = _reached(ends, makers_in)
        inside = {node.index for unit in chosen for node in self.units[unit]}
        told = {
            unit
            for unit in before - behind - ends
            if any(_leaves(node, inside) or not _is_float(node) for node in self.units[unit])
        }
        computing = {unit for unit in behind | before - told if not self._rearranges(unit)}
        inner = _reached(computing, readers) & _reached(computing, makers)
        kept = (computing | inner) - told
        return {unit for unit in chosen if unit not in self.floats or unit in kept}

    def _with_truths_inside(self, chosen: set[int]) -> set[int]:
        """Leave out operators on truths whose readers or operands do not stay.

        An operator that gives truths stays where each of its readers stays and takes truths. An
        operator on bits needs truths that operators of the region give.
        """
        while True:
            inside = {node.index for unit in chosen for node in self.units[unit]}
            gone = {
                unit
                for unit in chosen & self.floats
                if (node := self.units[unit][0]).kind in self.truths.given
                and (
                    node.output.is_result
                    or not all(
                        user.index in inside and self.truths.take(user, operand)
                        for user, operand in node.output.uses
                    )
                    or (node.kind in self.truths.bits and not _reads_only(node, inside))
                )
            }
            if not gone:
                return chosen
            chosen = chosen - gone

    def _paths(self, chosen: set[int]) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """Return, for each of some units, the units that make its operands, and its readers."""
        number = {node.index: unit for unit in chosen for node in self.units[unit]}
        makers: dict[int, set[int]] = {unit: set() for unit in chosen}
        readers: dict[int, set[int]] = {unit: set() for unit in chosen}
        for unit in chosen:
            for node in self.units[unit]:
                for maker in {number[i] for i in _makers(node) if i in number} - {unit}:
                    makers[unit].add(maker)
                    readers[maker].add(unit)
        return makers, readers


def choice_of(value: ValueView) -> NodeView | None:
    """Return the node that chooses parameters of a value that is quantized as the model runs."""
    maker = value.producer
    if maker is None or maker.kind != DEQUANTIZE_DYNAMIC:
        return None
    codes = maker.main_operand.producer
    choice = codes.operand("scale").producer if codes and codes.kind == QUANTIZE_DYNAMIC else None
    return choice if choice is not None and choice.kind == CHOOSE else None


def laid_out(graph: GraphView) -> set[str]:
    """Return operators that only rearrange, where the model asks how their result lies in memory.

    A region gives tensors in an order of its own, where these would be views.
    """
    found: set[str] = set()
    pending = [node.main_operand for node in graph.nodes if node.traits.tells_layout]
    while pending:
        maker = pending.pop().producer
        if maker is not None and maker.kind in LISTS:
            pending += maker.inputs
        elif maker is not None and maker.moves_data and maker.name not in found:
            found.add(maker.name)
            pending += maker.inputs[:1]
    return found


def _reduces(node: NodeView) -> bool:
    return node.traits.within or "keepdim" in arguments_of(node.kind, node.overload or "")


def _is_float(node: NodeView) -> bool:
    """Say whether an operator in front of a region computes with floats for certain."""
    return bool(node.analyses and node.analyses.of(_C.float_operators, node))


def _leaves(node: NodeView, inside: set[int]) -> bool:
    """Say whether others than some operators read a result, converted or in lists too."""
    pending = list(node.outputs)
    while pending:
        value = pending.pop()
        if value.is_result:
            return True
        for user, _ in value.uses:
            if user.kind in BETWEEN:
                pending += user.outputs
            elif user.index not in inside:
                return True
    return False


def _reads_only(node: NodeView, inside: set[int]) -> bool:
    """Say whether some operators make all operands of a node."""
    makers = [value.producer for value in node.inputs]
    return all(maker is not None and maker.index in inside for maker in makers)


def _makers(node: NodeView) -> set[int]:
    """Return indices of the operators whose results a node reads: converted, in lists, or sizes."""
    found: set[int] = set()
    passed: set[int] = set()
    pending = [value.producer for value in node.inputs]
    while pending:
        maker = pending.pop()
        if maker is None or maker.index in passed:
            continue
        if maker.kind in BETWEEN or any(value.from_sizes for value in maker.outputs):
            passed.add(maker.index)
            pending += [value.producer for value in maker.inputs]
        else:
            found.add(maker.index)
    return found


def takes_written_size(node: NodeView) -> bool:
    """Say whether a node takes a size of a value that is written in place. No region holds it."""
    pending = [value.producer for value in node.inputs if not value.is_tensor]
    while pending:
        maker = pending.pop()
        if maker is None:
            continue
        asks = maker.traits.asks_for_shape or any(v.from_sizes for v in maker.outputs)
        if asks or maker.kind in LISTS:
            if any(value.is_tensor and value.written for value in maker.inputs):
                return True
            pending += [value.producer for value in maker.inputs if not value.is_tensor]
    return False


def _reached(start: Iterable[int], ends: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    pending = list(start)
    while pending:
        unit = pending.pop()
        if unit not in found:
            found.add(unit)
            pending += ends[unit]
    return found
