"""Units of operators that a backend computes on integers, and the regions that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _C
from ..graph.view import NodeView, ValueView
from ..quantizers.selection import LISTS

QUANTIZE = "jit_passes::quantize"
DEQUANTIZE = "jit_passes::dequantize"
CHOOSE = "jit_passes::choose_qparams"
QUANTIZE_DYNAMIC = f"{QUANTIZE}_dynamic"
DEQUANTIZE_DYNAMIC = f"{DEQUANTIZE}_dynamic"
# What lies between the result of one operator and the operand of another.
BETWEEN = (*LISTS, QUANTIZE, DEQUANTIZE, CHOOSE, QUANTIZE_DYNAMIC, DEQUANTIZE_DYNAMIC)


@dataclass
class IntegerOperators:
    """Operators that a backend computes on integers, and those in float between them.

    Attributes:
        units: the nodes of each: with a clip that it absorbs, or all functions of one table.
        links: numbers of two where one hands a value to the other, or both read the same integers.
        floats: numbers of those in float.
    """

    units: list[list[NodeView]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)
    floats: set[int] = field(default_factory=set)

    def regions(self, module: Any, method: str) -> list[list[list[NodeView]]]:
        """Return the units of each region: the largest sets that links hold together.

        No path leaves a region and comes back, and none crosses a block or a value that is written
        in place. A region that only rearranges values is none. Whatever is in float lies between
        integers: at the rim of a region it would be no faster.

        Args:
            module: the C++ module whose graph they were found in.
            method: whose graph.
        """
        chosen = self._between(set(range(len(self.units))))
        while True:
            found = self._found(module, method, chosen)
            kept = [self._between(units) for units in found]
            left = sorted(unit for units in kept for unit in units)
            # An operator that rearranges, behind one in float at the rim, may read what reads the
            # region: the search goes on without the latter.
            if sum(map(len, found)) == len(left):
                break
            chosen = left
        return [[self.units[u] for u in units] for units in kept if any(map(self._computes, units))]

    def _found(self, module: Any, method: str, chosen: list[int]) -> list[set[int]]:
        """Return the largest sets among some units, in program order."""
        place = {unit: place for place, unit in enumerate(chosen)}
        indices = [[node.index for node in self.units[unit]] for unit in chosen]
        links = [(place[a], place[b]) for a, b in self.links if a in place and b in place]
        found: dict[int, set[int]] = {}
        numbers = _C.find_regions(module, method, indices, links)
        for unit, number in zip(chosen, numbers, strict=True):
            if number >= 0:
                found.setdefault(number, set()).add(unit)
        return [found[number] for number in sorted(found)]

    def _computes(self, unit: int) -> bool:
        return unit not in self.floats and not all(node.moves_data for node in self.units[unit])

    def _between(self, chosen: set[int]) -> list[int]:
        """Leave out what is in float, but for what lies on a path from integers to integers."""
        number = {node.index: unit for unit in chosen for node in self.units[unit]}
        makers: dict[int, set[int]] = {unit: set() for unit in chosen}
        readers: dict[int, set[int]] = {unit: set() for unit in chosen}
        for unit in chosen:
            for node in self.units[unit]:
                for maker in {number[i] for i in _makers(node) if i in number} - {unit}:
                    makers[unit].add(maker)
                    readers[maker].add(unit)
        start = [unit for unit in chosen if self._computes(unit)]
        both = _reached(start, readers) & _reached(start, makers)
        return sorted(unit for unit in chosen if unit not in self.floats or unit in both)


def choice_of(value: ValueView) -> NodeView | None:
    """Return what chooses the parameters of a value that is quantized as the model runs."""
    maker = value.producer
    if maker is None or maker.kind != DEQUANTIZE_DYNAMIC:
        return None
    codes = maker.inputs[0].producer
    choice = codes.inputs[1].producer if codes and codes.kind == QUANTIZE_DYNAMIC else None
    return choice if choice is not None and choice.kind == CHOOSE else None


def _makers(node: NodeView) -> set[int]:
    """Return indices of the operators whose results a node reads, converted or in lists too."""
    found: set[int] = set()
    pending = [value.producer for value in node.inputs]
    while pending:
        maker = pending.pop()
        if maker is None:
            continue
        if maker.kind in BETWEEN:
            pending += [value.producer for value in maker.inputs]
        else:
            found.add(maker.index)
    return found


def _reached(start: Iterable[int], ends: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    pending = list(start)
    while pending:
        unit = pending.pop()
        if unit not in found:
            found.add(unit)
            pending += ends[unit]
    return found
