"""The result of a reference model's operator before it is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...export.program.forms import form_of
from ...graph.view import GraphView, NodeView, ValueView
from ...stages.values import DEQUANTIZE, QUANTIZE
from ...targets.reference_nodes import unrounded
from .values import Grid

NEAR = 1e-9  # of a step: double sums of codes times powers of two are exact


def before_rounding(
    graph: GraphView, node: NodeView, codes: Mapping[int, torch.Tensor], grid: Grid
) -> torch.Tensor | None:
    """Return the operand of a quantize in steps of its grid, zero point added, in double.

        steps = y / scale + zero_point,  y the float operators of dequantized codes

    Operators between dequantize and quantize are computed in double.

    Args:
        graph: of the reference model.
        node: the quantize.
        codes: by index of a quantize, its codes.
        grid: of the quantize.

    Returns:
        None where an operator has no form, or an operand is neither codes nor a constant.
    """
    if node.kind not in QUANTIZE:
        return None
    try:
        value = _value(unrounded(node), codes)
    except Exception:  # operators have errors of many kinds; a double is only for the report
        return None
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
        return None
    return value / grid.along(grid.scale, value.dim()) + grid.along(grid.zero_point, value.dim())


class _UnknownError(Exception):
    pass


def _value(value: ValueView, codes: Mapping[int, torch.Tensor]) -> Any:
    if value.is_constant:
        found = value.constant
        is_float = isinstance(found, torch.Tensor) and found.is_floating_point()
        return found.double() if is_float else found
    node = value.producer
    if node is None:
        raise _UnknownError
    if node.kind in DEQUANTIZE:
        source = node.main_operand
        if source.is_constant:
            integers = source.constant
        elif source.producer is not None and source.producer.index in codes:
            integers = codes[source.producer.index]
        else:
            raise _UnknownError
        return _dequantized(node, integers)
    if node.kind in ("prim::ListConstruct", "prim::TupleConstruct"):
        return [_value(part, codes) for part in node.inputs]
    form = form_of(node, {})
    if form is None or len(node.outputs) != 1 or value.written:
        raise _UnknownError
    return form(*(_value(operand, codes) for operand in node.inputs))


def _dequantized(node: NodeView, integers: torch.Tensor) -> torch.Tensor:
    scale, zero, *axis = (operand.constant for operand in node.other_operands)
    grid = Grid(scale, zero, int(axis[0]) if axis else None)
    steps = integers.double() - grid.along(grid.zero_point, integers.dim())
    return steps * grid.along(grid.scale, integers.dim())
