"""A method's graph with its nested blocks, since a `GraphView` is flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...graph.view import GraphView, NodeView

# Facts of a node that its view does not show.
_DETAILS: dict[str, Callable[[Any], Any]] = {
    "prim::GetAttr": lambda node: node.s("name"),
    "prim::SetAttr": lambda node: node.s("name"),
    "prim::isinstance": lambda node: tuple(type_.kind() for type_ in node.tys("types")),
    "prim::Enter": lambda node: str(node.inputsAt(0).type()),
}


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Steps that run one after the other.

    Attributes:
        inputs: ids of the values that it takes.
        outputs: ids of the values that it returns.
        steps: in program order.
        free: ids of the values from outside that it reads, nested blocks included.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    free: tuple[int, ...]

    def walk(self) -> Iterator[Step]:
        """Yield all steps; steps of nested blocks come before the step that holds the blocks."""
        for step in self.steps:
            for block in step.blocks:
                yield from block.walk()
            yield step


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A node and its blocks.

    Attributes:
        node: the view of it.
        blocks: of a branch its two ways, of a loop its round; else none.
        detail: the attribute of `prim::GetAttr` and `prim::SetAttr`, the types that
            `prim::isinstance` asks for, or the context that `prim::Enter` enters; else None.
    """

    node: NodeView
    blocks: tuple[Block, ...] = ()
    detail: Any = None


def blocks_of(module: Any, method: str) -> tuple[GraphView, Block]:
    """Return the view of a method's graph, and its outermost block.

    Args:
        module: a C++ module.
        method: whose graph.
    """
    view = GraphView.of(module, method)
    graph = module._get_method(method).graph
    block = _block(graph, graph.inputs(), iter(view.nodes))
    return view, block


def _block(block: Any, inputs: Any, nodes: Iterator[NodeView]) -> Block:
    ids = tuple(value.unique() for value in inputs)
    made = set(ids)
    read: dict[int, None] = {}  # in order
    steps = []
    for node in block.nodes():
        nested = tuple(_block(inner, inner.inputs(), nodes) for inner in node.blocks())
        view = next(nodes)
        assert view.kind == node.kind(), f"{view.kind} is not {node.kind()}"
        read_detail = _DETAILS.get(view.kind)
        steps.append(Step(view, nested, read_detail and read_detail(node)))
        operands = [value.id for value in view.inputs]
        for id in (*operands, *(id for inner in nested for id in inner.free)):
            if id not in made:
                read[id] = None
        made.update(value.id for value in view.outputs)
    outputs = tuple(value.unique() for value in block.outputs())
    read.update(dict.fromkeys(id for id in outputs if id not in made))
    return Block(ids, outputs, tuple(steps), tuple(read))
