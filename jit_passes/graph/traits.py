"""Facts about operators beyond their names: the table of cpp/graph/operators.cpp, typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from .. import _C

Bound = float | str | None  # a number, or the operand that says it; None for no end


class Weighted(NamedTuple):
    """A convolution or linear: its operands are input, weight, bias, ...

    Attributes:
        spatial_dims: 0 for linear.
        transposed: whether its weight has output channels in axis 1, within a group.
    """

    spatial_dims: int
    transposed: bool


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts that follow from an operator's kind alone.

    Attributes:
        weighted: for convolutions and linears, which.
        holds_weights: whether it multiplies by weights, or looks them up, in another form:
            recurrent layers, attention, embeddings, operators of
            `torch.jit.optimize_for_inference`. Norms and prelu, with a number for each channel,
            are none of these.
        product: whether it multiplies matrices that the model computes.
        elementwise: how many tensor operands it takes at most, if each element of its result
            depends on the elements at the same place; else 0.
        clip: (low, high) if it limits each element of its first operand.
        within: whether its results lie between the smallest and the largest element of its first
            operand, as averages do.
        nonnegative_if: the operands with which its result is not below 0 if they are not; none of
            them: it never is. None where nothing is known.
        moves_data: whether it may only rearrange values; see `NodeView.moves_data`.
        dropout: whether it is dropout of some kind.
        asks_for_shape: whether it asks for its operand's shape and for no values.
        tells_layout: whether its result depends on how its first operand lies in memory.
        gives: the dtype of its result, where it is known and differs from the operands' dtype.
        commutes: whether its first two operands may change places, as far as the name tells: with
            alpha, operands of an addition may not.
        recurrent: "plain" for a recurrent layer without gates, "gated" for one with them, "cell"
            for one step of either; else "".
    """

    weighted: Weighted | None = None
    holds_weights: bool = False
    product: bool = False
    elementwise: int = 0
    clip: tuple[Bound, Bound] | None = None
    within: bool = False
    nonnegative_if: tuple[str, ...] | None = None
    moves_data: bool = False
    dropout: bool = False
    asks_for_shape: bool = False
    tells_layout: bool = False
    gives: torch.dtype | None = None
    commutes: bool = False
    recurrent: str = ""

    @property
    def counts(self) -> bool:
        """Whether reports count it: convolutions, linears, other weights, matrix products."""
        return self.weighted is not None or self.holds_weights or self.product


NOTHING = Traits()


def _read() -> dict[str, Traits]:
    table = {}
    for kind, row in _C.operator_table().items():
        weighted, holds, product, elementwise, clip, within, operands, *rest = row
        table[kind] = Traits(
            None if weighted is None else Weighted(*weighted), holds, product, elementwise, clip,
            within, None if operands is None else tuple(operands), *rest,
        )  # fmt: skip
    return table


TRAITS = _read()


def kinds(holds: Callable[[Traits], object]) -> tuple[str, ...]:
    """Return the qualified names of the operators that fulfil a condition."""
    return tuple(kind for kind, traits in TRAITS.items() if holds(traits))


def packet_of(kind: str) -> Any:
    """Return PyTorch's function of an operator, for its qualified name."""
    namespace, _, name = kind.partition("::")
    return getattr(getattr(torch.ops, namespace), name)


@lru_cache(None)
def schema_of(kind: str) -> Any:
    """Return the schema of an operator's first overload, for its qualified name."""
    packet = packet_of(kind)
    return getattr(packet, packet.overloads()[0])._schema


_ARGUMENTS: dict[tuple[str, str], dict[str, int]] = {}


def arguments_of(kind: str, overload: str) -> dict[str, int]:
    """Return the operands of an operator's overload by the names in its schema.

    The result is empty for an operator without a schema, whose library may be loaded later.
    """
    if (kind, overload) not in _ARGUMENTS:
        names = _C.operator_arguments(kind, overload)
        if names is None:
            return {}
        _ARGUMENTS[kind, overload] = {name: k for k, name in enumerate(names)}
    return _ARGUMENTS[kind, overload]
