"""Which values from outside a block writes to, directly or through views of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...graph.view import NodeView
from .blocks import Block


def written_in(block: Block) -> frozenset[int]:
    """Return the ids of the values from outside that operators of a block may write to."""
    sources: dict[int, list[int]] = {}  # of what a value may be a view
    targets: list[int] = []
    for step in block.walk():
        node = step.node
        for inner in step.blocks:
            # Of a loop, inputs and operands, and results and outputs, differ by one or two.
            for ids, values in (
                (inner.inputs, [value.id for value in node.inputs]),
                ([value.id for value in node.outputs], inner.outputs),
            ):
                pairs = zip(reversed(list(ids)), reversed(list(values)), strict=False)
                for id, value in pairs:
                    sources.setdefault(id, []).append(value)
        for operand, writes in _aliased(node):
            if writes:
                targets.append(operand)
            for output in node.outputs:
                sources.setdefault(output.id, []).append(operand)
    free, found, seen = set(block.free), set(), set()
    while targets:
        id = targets.pop()
        if id in seen:
            continue
        seen.add(id)
        if id in free:
            found.add(id)
        targets += sources.get(id, ())
    return frozenset(found)


def _aliased(node: NodeView) -> Iterator[tuple[int, bool]]:
    """Yield the operands that results may share memory with, and whether the node writes there."""
    if node.overload is None:
        return
    try:
        schema = torch._C._get_schema(node.kind, node.overload)
    except RuntimeError:
        return
    for argument, value in zip(schema.arguments, node.inputs, strict=False):
        if argument.alias_info is not None:
            yield value.id, argument.alias_info.is_write
