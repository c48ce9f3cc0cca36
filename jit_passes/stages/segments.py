"""Parts of a graph that run one after another, each on the results of the part in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Values = list[Any]


class Segments:
    """A method's graph, cut in front of some of its nodes.

    A cut keeps the values that depend on the arguments and are used behind it; all else, weights
    say, is computed anew in each segment. The graph is to be one of operands alone: no branches, no
    writes.

    Args:
        module: of the method; attributes that the graph reads are read when a segment runs.
        method: its name.
        kind: of the nodes that it can be cut in front of, by their number in program order.
    """

    def __init__(self, module: torch.jit.ScriptModule, method: str, kind: str) -> None:
        self._module: Any = module._c
        self._graph: Any = self._module._get_method(method).graph.copy()
        self._schema = self._module._get_method(method).schema
        nodes = list(self._graph.nodes())
        places = dict.fromkeys(_names(list(self._graph.inputs())[1:]), -1)
        last = dict.fromkeys(places, -1)
        self._marks = [place for place, node in enumerate(nodes) if node.kind() == kind]
        for place, node in enumerate(nodes):
            operands = [name for name in _names(node.inputs()) if name in places]
            last.update(dict.fromkeys(operands, place))
            if operands:
                made = _names(node.outputs())
                places.update(dict.fromkeys(made, place))
                last.update(dict.fromkeys(made, place))
        self._places, self._last = places, last

    def start(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Values:
        """Return the values in front of all nodes: arguments that fit, with defaults."""
        args, kwargs = arguments
        known = {each.name: each.default_value for each in self._schema.arguments[1:]}
        given = dict(zip(known, args, strict=False)) | kwargs
        return list((known | given).values())

    def segment(
        self, first: int | None, marks: Sequence[int]
    ) -> Callable[[Values], tuple[Values, list[Tensor]]]:
        """Return a function from the values at a cut to values at the next, and operands of nodes.

        Args:
            first: the node in front of which the segment begins; None for the arguments.
            marks: the nodes whose operands are returned; the next cut is in front of the first one.
        """
        graph = self._graph.copy()
        nodes = list(graph.nodes())
        # A copy has names of its own: values correspond by their order.
        names = dict(zip(_names(_values(self._graph)), _values(graph), strict=True))
        begin = -1 if first is None else self._marks[first]
        end = self._marks[marks[0]]
        given, left = self._live(begin), self._live(end)
        if first is None:
            given = _names(list(self._graph.inputs())[1:])
        results = [names[name] for name in left]
        results += [next(iter(nodes[self._marks[mark]].inputs())) for mark in marks]
        back = graph.return_node()
        back.removeAllInputs()
        for value in results:
            graph.registerOutput(value)
        if first is not None:
            for name in given:
                new = graph.addInput()
                new.setType(names[name].type())
                names[name].replaceAllUsesWith(new)
        graph.makeMultiOutputIntoTuple()
        for node in reversed(list(graph.nodes())):
            if not any(value.uses() for value in node.outputs()):
                node.destroy()
        if first is not None:
            for _ in range(len(self._schema.arguments) - 1):
                graph.eraseInput(1)
        call = torch._C._create_function_from_graph("segment", graph)

        def run(values: Values) -> tuple[Values, list[Tensor]]:
            with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
                found = call(self._module, *values)
            many = list(found) if len(results) > 1 else [found]
            return many[: len(left)], many[len(left) :]

        return run

    def _live(self, place: int) -> list[str]:
        return [n for n, made in self._places.items() if made < place <= self._last[n]]


def _names(values: Any) -> list[str]:
    return [value.debugName() for value in values]


def _values(graph: Any) -> list[Any]:
    made = [value for node in graph.nodes() for value in node.outputs()]
    return [*graph.inputs(), *made]
