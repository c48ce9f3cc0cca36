"""Common parts of the capabilities of engines: grids, rows, and checks of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...graph.kinds import PRODUCTS
from ...graph.traits import kinds
from ...graph.view import NodeView
from ...quantizers.capability import dtype_reason, tensors_reason
from ...quantizers.support import CLIPS, OperatorSupport, Role, SpecSupport

AFFINE = ("per_tensor_affine", "per_tensor_symmetric", "per_tensor_power_of_two")
AROUND_ZERO = ("per_channel_symmetric", "per_channel_power_of_two")
OF_CHANNELS_OR_ONE = (*AROUND_ZERO, "per_tensor_symmetric", "per_tensor_power_of_two")

# An engine saturates at the ends of its types, so all codes are used.
UINT8 = SpecSupport({"uint8": (0, 255)}, AFFINE, whole=True)
UINT8_OR_INT8 = replace(UINT8, grids={"uint8": (0, 255), "int8": (-128, 127)})
INT8_WEIGHTS = SpecSupport({"int8": (-127, 127)}, OF_CHANNELS_OR_ONE)
# Beside float inputs. With a scale for each 16, 32, ... inputs, engines decode as they multiply.
WEIGHTS_ALONE = replace(INT8_WEIGHTS, grids={"int8": (-128, 127)}, groups=1)
# Scales of inputs that are chosen as the model runs, by the formulas of PyTorch's observers.
UINT8_AS_IT_RUNS, INT8_AS_IT_RUNS = (
    SpecSupport(grid, ("per_tensor_affine",), whole=True, range_forms=("pytorch",))
    for grid in ({"uint8": (0, 255)}, {"int8": (-128, 127)})
)
REARRANGING = frozenset(kinds(lambda traits: traits.moves_data))


def table_of(rows: Iterable[OperatorSupport]) -> Mapping[str, OperatorSupport]:
    """Return rows by kind; a later one wins."""
    return {row.kind: row for row in rows}


def convolutions(*dims: int, **options: Any) -> tuple[OperatorSupport, ...]:
    """Return the rows of convolutions of batches, by their number of spatial axes."""
    given: dict[str, Any] = {"clips": CLIPS} | options
    return tuple(
        OperatorSupport(f"aten::conv{n}d", Role.WEIGHTED, ranks=(n + 2, n + 2), **given)
        for n in dims
    )


def linear(**options: Any) -> OperatorSupport:
    """Return the row of linear layers; a vector has no batch axis."""
    given: dict[str, Any] = {"clips": CLIPS, "ranks": (2, 8)} | options
    return OperatorSupport("aten::linear", Role.WEIGHTED, **given)


def addition(**options: Any) -> OperatorSupport:
    """Return the row of sums of two tensors."""
    given: dict[str, Any] = {"clips": CLIPS, "check": sum_reason} | options
    return OperatorSupport("aten::add", Role.OWN, (0, 1), **given)


def products(**options: Any) -> tuple[OperatorSupport, ...]:
    """Return the rows of products of two matrices that the model computes."""
    return tuple(
        OperatorSupport(kind, Role.OWN, (0, 1), check=tensors_reason, begins=True, **options)
        for kind in PRODUCTS
    )


def pools(kind: str, role: Role, *dims: int, **options: Any) -> tuple[OperatorSupport, ...]:
    """Return the rows of pools of one kind, by their number of spatial axes."""
    return tuple(
        OperatorSupport(f"aten::{kind}_pool{n}d", role, ranks=(n + 2, n + 2), **options)
        for n in dims
    )


def sum_reason(node: NodeView) -> str | None:
    """Say why a node is no plain sum of two tensors."""
    return tensors_reason(node) or (
        None if node.operand("alpha").constant == 1 else "alpha is not 1"
    )


def average_reason(node: NodeView) -> str | None:
    """Say why a window's average is not one by the size of the window."""
    divisor = node.operand("divisor_override")
    plain = divisor.is_constant and divisor.constant is None
    return None if plain else "it divides by another number than the size of its window"


def global_average_reason(node: NodeView) -> str | None:
    """Say why an adaptive pool is not the average of all places."""
    size = node.operand("output_size")
    found = size.constant if size.is_constant else None
    alone = bool(found) and set(found if isinstance(found, list) else [found]) == {1}
    return None if alone else "it gives more than one average, which the engine computes in float"


def image_mean_reason(node: NodeView) -> str | None:
    """Say why a mean does not go over the pixels of images."""
    axes = node.operand("dim") if node.overload == "dim" else None
    found = axes.constant if axes is not None and axes.is_constant else None
    if not isinstance(found, list) or {*found} not in ({2, 3}, {-1, -2}):
        return "it does not average the last two axes of images"
    return dtype_reason(node)
