"""Every kind of operator that plans have, built alone in a plan: in float32, and on codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import _C
from jit_passes.graph.traits import NOTHING, TRAITS
from jit_passes.specification.recurrent import CELLS, RECURRENT
from jit_passes.specification.slots import LOOKUPS
from jit_passes.targets.x86 import X86
from tests.advice import traced_branches
from tests.plans import Q, plan_of

pytestmark = traced_branches

A = torch.ops.aten
Call = Callable[[Tensor], Tensor]
PLANNED = _C.planned_kinds()  # before any test loads a further library
CAPABILITY = X86(integer_layer_norm=True).capability
LAYERS = {kind for kind in PLANNED if kind in RECURRENT or TRAITS.get(kind, NOTHING).weighted}

# A trace holds these as constants.
MEANS, VARIANCES = torch.arange(4.0), torch.arange(1.0, 5.0)
TABLE = (  # codes, scales, zero points
    torch.arange(-28, 28, dtype=torch.int8).reshape(7, 8),
    torch.arange(1, 8, dtype=torch.float64),
    torch.zeros(7, dtype=torch.long),
)
ROWS = torch.tensor([2, 0, 3])[None, :, None].repeat(2, 1, 6)


def call(kind: str, *options: Any) -> Call:
    return lambda x: getattr(A, kind)(x, *options)


def twice(kind: str) -> Call:
    return lambda x: getattr(A, kind)(x, x)


def first(kind: str, *options: Any) -> Call:
    """Of several results, which the graph unpacks."""

    def computed(x: Tensor) -> Tensor:
        one, _ = getattr(A, kind)(x, *options)
        return one

    return computed


def of_truths(kind: str, operands: int) -> Call:
    return lambda x: getattr(A, kind)(*(x > 0, x < 1)[:operands])


FUNCTIONS = (
    *("abs", "elu", "exp", "gelu", "hardsigmoid", "hardswish", "hardtanh", "isnan", "leaky_relu"),
    *("mish", "neg", "reciprocal", "relu", "relu6", "rsqrt", "sigmoid", "silu", "softplus", "sqrt"),
    *("square", "tanh", "alias", "contiguous", "detach"),
)
CALLS: dict[str, Call] = {
    **{kind: call(kind) for kind in FUNCTIONS},
    **{kind: call(kind, 0.3) for kind in ("lt", "le", "gt", "ge", "eq", "ne", "div")},
    **{kind: twice(kind) for kind in ("add", "sub", "mul")},
    **{kind: of_truths(kind, 1) for kind in ("logical_not", "bitwise_not")},
    **{
        kind: of_truths(kind, 2)
        for kind in ("logical_and", "logical_or", "bitwise_and", "bitwise_or", "__and__", "__or__")
    },
    **{kind: call(kind, [2]) for kind in ("mean", "sum", "amax", "amin")},
    **{kind: call(kind, 2, [2]) for kind in ("norm", "linalg_vector_norm")},
    **{kind: call(kind, -1) for kind in ("softmax", "_safe_softmax", "log_softmax", "cumsum")},
    **{kind: call(kind, [6]) for kind in ("layer_norm", "rms_norm")},
    **{kind: call(kind, 2) for kind in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")},
    **{kind: call(kind, [1, 2, 1]) for kind in ("repeat", "tile")},
    **{kind: call(kind, [1, 1]) for kind in ("pad", "constant_pad_nd")},
    **{kind: first(kind, 2, 1) for kind in ("chunk", "unsafe_chunk", "split", "unsafe_split")},
    **{kind: first(kind, [1, 3], 1) for kind in ("split_with_sizes", "unsafe_split_with_sizes")},
    "unbind": first("unbind", 0),
    "pow": call("pow", 3),
    "clamp": call("clamp", -0.3, 0.3),
    "clamp_min": call("clamp_min", -0.3),
    "clamp_max": call("clamp_max", 0.3),
    "matmul": lambda x: A.matmul(x, x.transpose(1, 2)),
    "bmm": lambda x: A.bmm(x, x.transpose(1, 2)),
    "batch_norm": lambda x: F.batch_norm(x, MEANS, VARIANCES),
    "instance_norm": lambda x: F.instance_norm(x),
    "group_norm": call("group_norm", 2),
    "prelu": lambda x: A.prelu(x, VARIANCES),
    "cat": lambda x: A.cat([x, x], 2),
    "where": lambda x: A.where(x > 0, x, x * 2),
    "masked_fill": lambda x: A.masked_fill(x, x > 0, 3.0),
    "gather": lambda x: A.gather(x, 1, ROWS),
    "embedding": lambda x: A.embedding(Q.dequantize_per_channel(*TABLE, 0), x),
    "to": call("to", torch.float32),
    "flatten": call("flatten", 1),
    "flip": call("flip", [1]),
    "roll": call("roll", [1], [1]),
    "repeat_interleave": call("repeat_interleave", 2, 1),
    "expand": lambda x: A.expand(x.unsqueeze(0), [3, 2, 4, 6]),
    "unsqueeze": call("unsqueeze", 1),
    "squeeze": lambda x: A.squeeze(x.unsqueeze(1), 1),
    "narrow": call("narrow", 1, 1, 2),
    "select": call("select", 1, 1),
    "slice": call("slice", 1, 1, 3),
    "reshape": call("reshape", [2, 24]),
    "unflatten": call("unflatten", 1, [2, 2]),
    "transpose": call("transpose", 1, 2),
    "permute": call("permute", [0, 2, 1]),
    "upsample_linear1d": call("upsample_linear1d", [12], False),
    "upsample_bilinear2d": call("upsample_bilinear2d", [12, 12], False),
    "upsample_bicubic2d": call("upsample_bicubic2d", [12, 12], False),
    "upsample_trilinear3d": call("upsample_trilinear3d", [12, 12, 12], False),
}
for n in (1, 2, 3):
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool"):
        CALLS[f"{kind}{n}d"] = call(f"{kind}{n}d", [2] * n)
    CALLS[f"adaptive_max_pool{n}d"] = first(f"adaptive_max_pool{n}d", [2] * n)
    for kind in ("reflection", "replication"):
        CALLS[f"{kind}_pad{n}d"] = call(f"{kind}_pad{n}d", [1, 2] * n)
    for kind in ("upsample_nearest", "_upsample_nearest_exact"):
        CALLS[f"{kind}{n}d"] = call(f"{kind}{n}d", [12] * n)

# On codes, though they do not only move them: a clip at a code, an identity, values of one grid.
ALSO_CODES = {"relu", "to", "cat"}


def operand_of(kind: str) -> Tensor:
    torch.manual_seed(0)
    if kind == "embedding":
        return torch.randint(7, (2, 3))
    spatial = re.search("([123])d$", kind)
    axes = 4 if "shuffle" in kind else 2 + int(spatial[1]) if spatial else 3
    return torch.randn(2, 4, *(6,) * (axes - 2))


class Alone(nn.Module):
    """An operator, and a grid of its operand."""

    def __init__(self, kind: str, coded: bool) -> None:
        super().__init__()
        self.kind, self.coded = kind, coded

    def forward(self, x: Tensor) -> Tensor:
        if self.coded:
            x = Q.dequantize(Q.quantize(x, 1 / 16, 128, 0, 255, torch.uint8), 1 / 16, 128)
        return CALLS[self.kind](x)


def built(kind: str, coded: bool) -> tuple[Any, Any, Tensor]:
    """Return the region, its plan, None where there is no such plan, and an operand."""
    x = operand_of(kind)
    region = torch.jit.trace(Alone(kind, coded), x, check_trace=False)
    assert f"aten::{kind}(" in str(region.graph)
    try:
        return region, plan_of(region), x
    except RuntimeError as error:
        assert re.search(f"aten::{kind} .* cannot be part of a plan", str(error)), error
        return region, None, x


@pytest.mark.parametrize("kind", CALLS)
def test_a_plan_has_what_the_target_says(kind: str) -> None:
    """A plan computes the kind in float32 if, and only if, the target says so; and moves codes so.

    An operator that moves codes keeps their grid: the plan holds no float32 behind its input.
    """
    region, plan, x = built(kind, coded=False)
    assert (plan is not None) == (f"aten::{kind}" in CAPABILITY.floats)
    if plan is not None:
        got, expected = plan.run([x])[0], region(x).float()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    if kind == "embedding":
        return  # it takes indices
    region, plan, x = built(kind, coded=True)
    behind = "" if plan is None else str(plan).partition("\n")[2]
    moves = f"aten::{kind}" in (CAPABILITY.moves or ())
    assert (plan is not None and "float32" not in behind) == (moves or kind in ALSO_CODES)
    if moves:
        assert torch.equal(plan.run([x])[0], region(x))


def test_the_target_asks_for_what_plans_have() -> None:
    """The table of the target, and the operators above, are of the kinds that plans have.

    Functions are tables on codes, whatever computes them. Layers need weights, and have tests of
    their own.
    """
    by_pytorch = {*LOOKUPS, *CELLS}
    rows = {
        row.kind
        for row in CAPABILITY.operators.values()
        if (not row.elementwise or row.sums or row.constants) and row.kind not in by_pytorch
    }
    others = {*(CAPABILITY.moves or ()), *CAPABILITY.floats}
    assert rows | others == {*PLANNED}
    assert {f"aten::{kind}" for kind in CALLS} == {*PLANNED} - LAYERS
    assert rows >= LAYERS and not others & LAYERS
