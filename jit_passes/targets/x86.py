"""Whole regions of int8 operators as plans, with kernels of this package.

The lowered model holds objects of the class `torch.classes.jit_passes.Plan`, so this package, or
its library, has to be loaded before the model is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch

from .. import _C
from ..graph.kinds import PRODUCTS, ROW_NORMS, SOFTMAX
from ..graph.traits import kinds
from ..graph.view import NodeView
from ..passes.pipeline import CLEAN_UP, FOLD_NUMBERS, Pipeline
from ..passes.steps import PassCall, Step
from ..quantizers.capability import Capability, Truths, options_reason
from ..quantizers.support import CLIPS, PER_TENSOR, OperatorSupport, Role, SpecSupport
from ..specification.grid import DYNAMIC_SCHEMES
from ..specification.recurrent import GATED
from ..specification.slots import LOOKUPS
from ..specification.specification import FixedQParamsQuantizationSpec
from .cell_rules import expand_cells
from .dynamic_rules import fuse_dynamic
from .nan_rules import isolate_nan
from .partition import CompileRegions
from .stock import needs_reduced_range
from .stock_support import WEIGHTS_ALONE, dynamic_inputs, lookups, recurrent
from .target import Target

ENGINE = "x86"  # of PyTorch, for packed sequences, and for dynamic operators in no plan
# Elements in other places of their axes, which only plans compute on codes.
PLACES = (
    "aten::roll",
    "aten::tile",
    "aten::repeat_interleave",
    "aten::pad",
    "aten::upsample_nearest1d",
    *(f"aten::{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    *(f"aten::_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
)
BITS = frozenset(
    f"aten::{kind}" for kind in ("bitwise_and", "bitwise_or", "bitwise_not", "__and__", "__or__")
)
TAKE_TRUTHS = {"aten::where": 0, "aten::masked_fill": 1, "aten::to": 0}
RANKS = (1, _C.most_axes())
HIDDEN = -100  # added to a score it leaves nothing of its share: exp(-100) is no number of float32
WEIGHTS = SpecSupport(
    {"int8": (-127, 127)},
    tuple(
        f"per_{granularity}_{scheme}"
        for granularity in ("tensor", "channel")
        for scheme in ("symmetric", "power_of_two")
    ),
)
_LINEAR_WEIGHTS = {
    "weight_only": WEIGHTS_ALONE,
    "dynamic": SpecSupport(
        {"int8": (-128, 127)},
        (*WEIGHTS.qschemes, "per_channel_affine", "per_tensor_affine"),
        groups=_C.group_multiple(),
    ),
}
FIXED = {
    "aten::sigmoid": FixedQParamsQuantizationSpec(1 / 256, 0),
    "aten::hardsigmoid": FixedQParamsQuantizationSpec(1 / 256, 0),
    "aten::tanh": FixedQParamsQuantizationSpec(1 / 128, 128),
}
_OWN, _SHARED = Role.OWN, Role.SHARED


def _refusals_of_codes(module: Any, method: str) -> dict[int, str]:
    return _C.plan_refusals(module, method, codes=True)


def _in_plan(node: NodeView) -> str | None:
    """Say why a plan cannot compute a node: the files of its operators know, cpp/x86/operators."""
    return node.analyses.of(_C.plan_refusals, node) if node.analyses else None


def _on_codes(node: NodeView) -> str | None:
    return node.analyses.of(_refusals_of_codes, node) if node.analyses else None


def _tensors(node: NodeView) -> str | None:
    if any(value.is_constant for value in node.inputs[:2]):
        return "one of its operands is a constant"
    return _in_plan(node)


def _tensors_or_constants(node: NodeView) -> str | None:
    constants = [value for value in node.inputs[:2] if value.is_constant]
    if len(constants) == 2:
        return "its operands are constants"
    for value in constants:
        if not value.is_finite:
            return "its constant is not finite"
        if isinstance(value.constant, torch.Tensor) and _hides(node, value.constant):
            return "its constant hides scores from softmax, and a grid for both would lose scores"
    return _in_plan(node)


def _hides(node: NodeView, constant: torch.Tensor) -> bool:
    readers = [user.kind for user, _ in node.output.uses]
    return bool(readers) and {*readers} <= {*SOFTMAX} and bool(constant.min() <= HIDDEN)


@cache
def _capability(integer_layer_norm: bool, operators: int) -> Capability:
    """Return the table for so many operators of plans; a library that is loaded may add some."""
    functions = kinds(lambda traits: traits.elementwise == 1)
    per_tensor, per_token = (
        tuple(scheme for scheme in DYNAMIC_SCHEMES if scheme.startswith(granularity))
        for granularity in ("per_tensor", "per_token")
    )
    dynamic, of_recurrent, of_pytorch = (
        replace(dynamic_inputs(reduced), qschemes=schemes, range_forms=forms, why="")
        for reduced, schemes, forms in (
            (False, per_token + per_tensor, ("pytorch", "fbgemm")),  # the first knows smaller steps
            (False, per_tensor + per_token, ("pytorch", "fbgemm")),
            (needs_reduced_range(ENGINE), per_tensor + per_token, ("fbgemm", "pytorch")),
        )
    )
    of_images = replace(dynamic, qschemes=per_tensor)
    summed = tuple(_C.summed_kinds())
    rows = [
        OperatorSupport(kind, _OWN, ranks=RANKS, check=options_reason, elementwise=True)
        for kind in functions
    ]
    rows += [
        OperatorSupport(f"aten::conv{n}d", Role.WEIGHTED, clips=CLIPS, ranks=(n + 1, n + 2),
                        check=_in_plan, modes=("static", "dynamic"), dynamic=of_images,
                        float_in_regions=True)
        for n in (1, 2, 3)
    ]  # fmt: skip
    rows += [
        *(
            OperatorSupport(f"aten::conv_transpose{n}d", Role.WEIGHTED, clips=CLIPS,
                            ranks=(n + 1, n + 2), check=_in_plan,
                            modes=("static", "dynamic"), dynamic=of_images)
            for n in (1, 2, 3)
        ),
        OperatorSupport("aten::linear", Role.WEIGHTED, clips=CLIPS, ranks=RANKS,
                        check=_in_plan, mode_weights=_LINEAR_WEIGHTS,
                        modes=("static", "dynamic", "weight_only"), float_in_regions=True,
                        returns_float=True),
        *lookups(),
        *(
            replace(row, dynamic=of_pytorch if row.kind in GATED else of_recurrent)
            for row in recurrent()
        ),
        *(
            OperatorSupport(f"aten::{op}", _OWN, (0, 1), CLIPS, RANKS, _tensors_or_constants,
                            elementwise=True, constants=True, sums=sums)
            for op, sums in (("add", summed), ("sub", summed), ("mul", ()))
        ),
        OperatorSupport("aten::cat", _OWN, clips=CLIPS, ranks=RANKS, check=_in_plan,
                        reads_parts=_reads_parts),
        OperatorSupport("aten::max_pool3d", _SHARED, ranks=(4, 5), check=_in_plan),
        *(
            OperatorSupport(f"aten::adaptive_max_pool{n}d", _SHARED, (0,), ranks=(n + 1, n + 2),
                            check=_in_plan)
            for n in (1, 2, 3)
        ),
        *(
            OperatorSupport(f"aten::avg_pool{n}d", _OWN, ranks=(n + 1, n + 2), check=_in_plan)
            for n in (1, 2, 3)
        ),
        *(
            OperatorSupport(f"aten::adaptive_avg_pool{n}d", _OWN, (0,), ranks=(n + 1, n + 2),
                            check=_in_plan)
            for n in (1, 2, 3)
        ),
        OperatorSupport("aten::mean", _OWN, ranks=RANKS, check=_in_plan),
        *(
            OperatorSupport(f"aten::upsample_{kind}", _OWN, (0,), CLIPS, (rank, rank), _in_plan)
            for kind, rank in (("linear1d", 3), ("bilinear2d", 4), ("trilinear3d", 5))
        ),
        *(
            OperatorSupport(kind, _OWN, (0, 1), CLIPS, RANKS, _tensors, begins=True)
            for kind in PRODUCTS
        ),
        *(OperatorSupport(kind, _OWN, ranks=RANKS, check=_in_plan) for kind in SOFTMAX),
        OperatorSupport("aten::batch_norm", _OWN, clips=CLIPS, ranks=RANKS, check=_in_plan,
                        reads_parts=_reads_parts),
        *(
            OperatorSupport(f"aten::{op}_norm", _OWN, (0,), CLIPS, (2, RANKS[1]), _in_plan)
            for op in ("group", "instance")
        ),
        OperatorSupport("aten::prelu", _OWN, (0,), ranks=(2, RANKS[1]), check=_in_plan),
        *(OperatorSupport(kind, _SHARED, ranks=RANKS, check=_in_plan) for kind in PLACES),
        *(OperatorSupport(kind, _SHARED, check=options_reason, elementwise=True) for kind in CLIPS),
        *(OperatorSupport(k, Role.FIXED, fixed=s, elementwise=True) for k, s in FIXED.items()),
    ]  # fmt: skip
    if integer_layer_norm:
        rows.append(
            OperatorSupport("aten::layer_norm", _OWN, (0,), CLIPS, RANKS, _on_codes,
                            begins=True)
        )  # fmt: skip
    planned = _C.planned_kinds()
    truths = {*kinds(lambda traits: traits.gives == torch.bool)} & planned.keys()
    return Capability(
        {row.kind: row for row in rows},  # rows that are spelled out come later, and win
        SpecSupport({"uint8": (0, 255)}, PER_TENSOR, whole=True),
        WEIGHTS,
        moves={kind: _in_plan for kind, (moves, _) in planned.items() if moves},
        floats={kind: _in_plan for kind, (_, in_floats) in planned.items() if in_floats},
        truths=Truths(BITS | truths, TAKE_TRUTHS, BITS),
        shapes=True,
        in_regions=_in_plan,
        outside=frozenset(LOOKUPS) - planned.keys(),
        begins=frozenset({*ROW_NORMS, *SOFTMAX}),
        forms=("spell_out_composites", "expand_attention", "gather_operators"),
        dynamic=dynamic,
        dynamic_regions=True,
    )


def _reads_parts(reader: NodeView, maker: NodeView) -> bool:
    """A batch norm has numbers for each channel, so each part may keep its scale."""
    taken = reader.analyses.of(_C.parts_taken, reader) if reader.analyses else None
    return maker.index in (taken or ())


@dataclass(frozen=True)
class X86(Target):
    """Plans of whole regions, computed by kernels of this package on plain integer tensors.

    uint8 activations, int8 weights with a scale for each output channel. A region is prepared for
    the sizes of its inputs when they first come, and computed in one go. Kernels have forms for the
    tiles of AMX, for AVX-512 VNNI, for AVX-VNNI, for AVX2 and for any processor, which give the
    same bits. The one of the processor is taken; the environment variable
    JIT_PASSES_X86_LEVEL=avx2, one of plain, avx2, avx_vnni, avx512_vnni and amx_int8, takes a lower
    one, but for loops that the compiler vectorizes.

    Linears and convolutions in the mode dynamic take and give float32 within a plan, and so do
    layer norm, sums, gelu and attention between them. LSTM, GRU and plain recurrent layers are part
    of a plan too; packed sequences, and LSTM and GRU on processors without VNNI, are computed by
    PyTorch's kernels. Linears with weights of 4 or 8 bits in groups of inputs are part of a plan in
    the modes dynamic and weight_only, symmetric or affine. Groups must be multiples of 32 inputs.
    Embeddings in the mode weight_only, whose tables stay codes, are part of a plan too; embedding
    bags are computed as on the target `stock`.

    A file needs this package: `import jit_passes` before `torch.jit.load`.

    Args:
        integer_layer_norm: compute layer norm, and the sums that it reads, on integers. A
            transformer takes a few per cent less time. But rows share one scale. Rows that are much
            smaller than others, as a class token may be, lose their digits right before the norm
            makes them large. If a few channels are large, all rows lose digits.
    """

    name: ClassVar[str] = "x86"
    integer_layer_norm: bool = False

    @property
    def capability(self) -> Capability:
        return _capability(self.integer_layer_norm, _C.count_plan_operators())

    def compile(self, region: torch.jit.ScriptModule) -> Any:
        return _C.build_plan(region._c)

    def lowering(self) -> Pipeline:
        steps: tuple[Step, ...] = (
            FOLD_NUMBERS,
            "merge_conv_bias",
            "copy_written",
            "replicate_dequantize",
            expand_cells(),
            CompileRegions(self, elsewhere=GATED),
            "lower_recurrent",
            *fuse_dynamic(saturates=needs_reduced_range(ENGINE)),
            isolate_nan(),
            PassCall("fold_prepack", engine=ENGINE),
            "lower_weights",
            *CLEAN_UP,
        )
        return Pipeline("lower_x86", steps)
