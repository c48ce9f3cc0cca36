"""Ways through operators that only rearrange: to the value behind, and to the readers in front."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from ..graph.view import LIST, NodeView, Use, ValueView

LISTS = (LIST, "prim::ListUnpack")


def passes_on(node: NodeView) -> bool:
    """Say whether a node only rearranges its operand; dropout by the mode does, in use."""
    return node.moves_data or (node.traits.dropout and not node.operand("train").is_constant)


def origin_of(
    value: ValueView, results: Container[int], barriers: Container[str] = ()
) -> ValueView:
    """Return the value that this one rearranges.

    The way back ends at values with the given ids, and at operators of the given kinds.
    """
    while (node := value.producer) is not None and not value.written:
        if value.id in results:
            break
        if node.kind == "prim::ListUnpack" and (maker := node.main_operand.producer) is not None:
            node = maker
        if not passes_on(node) or node.kind in barriers or node.main_operand.written:
            break
        value = node.main_operand
    return value


def readers_of(
    value: ValueView, reads: Callable[[NodeView, int], bool], barriers: Container[str] = ()
) -> Iterator[Use | None]:
    """Yield the uses of a value and of its rearrangements, but not questions for its shape.

    An operator of the kinds `barriers` is a use, though it only rearranges. None stands for the
    method's caller, and for an operator that writes to the value. `reads` says which uses count
    even where the operator only moves data.
    """
    pending = [value]
    while pending:
        seen = pending.pop()
        if seen.is_result or seen.written:
            yield None
        for user, operand in seen.uses:
            if reads(user, operand):
                yield user, operand
            elif user.kind in LISTS or (
                passes_on(user) and operand == 0 and user.kind not in barriers
            ):
                pending += user.outputs
            elif not user.traits.asks_for_shape:
                yield user, operand
