"""Whole regions of int8 operators as plans, with kernels of this package.

The lowered model holds objects of the class `torch.classes.jit_passes.Plan`, so this package, or
its library, has to be loaded before the model is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, ClassVar

import torch

from .. import _C
from ..errors import first_line, warn
from ..graph.traits import arguments_of, kinds
from ..graph.view import NodeView
from ..passes.pipeline import CLEAN_UP, Pipeline
from ..passes.steps import PassCall, Step
from ..quantizers.capability import Capability, is_constant_behind
from ..quantizers.support import PER_TENSOR, OperatorSupport, Role, SpecSupport
from ..specification.grid import DYNAMIC_SCHEMES
from ..specification.recurrent import GATED
from ..specification.specification import FixedQParamsQuantizationSpec
from .cell_rules import expand_cells
from .dynamic_rules import fuse_dynamic
from .nan_rules import isolate_nan
from .partition import CompileRegions
from .stock import needs_reduced_range
from .stock_support import WEIGHTS_ALONE, dynamic_inputs, linear, lookups, recurrent
from .target import RefusedOperator, Target
from .x86_moves import (
    CLIPS,
    FUNCTIONS,
    LENGTHS,
    MOST_AXES,
    NORMS,
    REDUCTIONS,
    SOFTMAX,
    SUMS,
    moves,
    moves_of_codes,
    of_few_axes,
    options,
    roll,
    sizes,
)

ENGINE = "x86"  # of PyTorch, for packed sequences, and for dynamic operators in no plan
SUMMED = ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::linear")
FLOAT32 = 6  # as graphs have it
POWERS = (3, 2, 0.5, -0.5, -1)  # which PyTorch computes as squares, roots and quotients
MOST_RESIDUES = 4096  # convolutions that a transposed one falls into
MOST_NORMALIZED = 33024  # whose squares have a sum in int32
RANKS = (1, MOST_AXES)
HIDDEN = -100  # added to a score it leaves nothing of its share: exp(-100) is no number of float32
WEIGHTS = SpecSupport(
    {"int8": (-127, 127)},
    tuple(
        f"per_{granularity}_{scheme}"
        for granularity in ("tensor", "channel")
        for scheme in ("symmetric", "power_of_two")
    ),
)
FIXED = {
    "aten::sigmoid": FixedQParamsQuantizationSpec(1 / 256, 0),
    "aten::hardsigmoid": FixedQParamsQuantizationSpec(1 / 256, 0),
    "aten::tanh": FixedQParamsQuantizationSpec(1 / 128, 128),
}
_OWN, _SHARED = Role.OWN, Role.SHARED


def _convolution(node: NodeView) -> str | None:
    return None if is_constant_behind(node, 3) else "one of its options is computed by the model"


def _transposed(node: NodeView) -> str | None:
    if reason := _convolution(node):
        return reason
    stride, axes = node.operand("stride").constant, node.operand("weight").constant.dim() - 2
    parts = prod(stride * axes if len(stride) == 1 else stride)
    return None if parts <= MOST_RESIDUES else f"it falls into more than {MOST_RESIDUES} parts"


def _tensors(node: NodeView) -> str | None:
    if any(value.is_constant for value in node.inputs[:2]):
        return "one of its operands is a constant"
    return None if is_constant_behind(node, 2) else "one of its options is computed by the model"


def _tensors_or_constants(node: NodeView) -> str | None:
    constants = [value.constant for value in node.inputs[:2] if value.is_constant]
    for constant in constants:
        if isinstance(constant, torch.Tensor) and (
            constant.dtype != torch.float32
            or constant.dim() > MOST_AXES
            or not constant.numel()
            or not constant.isfinite().all()
        ):
            return "its constant is not float32, empty, not finite, or has too many axes"
        if isinstance(constant, torch.Tensor) and _hides(node, constant):
            return "its constant hides what softmax would see, and other numbers would be lost"
    if len(constants) == 2:
        return "its operands are constants"
    return None if is_constant_behind(node, 2) else "one of its options is computed by the model"


def _hides(node: NodeView, constant: torch.Tensor) -> bool:
    readers = [user.kind for user, _ in node.output.uses]
    return bool(readers) and {*readers} <= {*SOFTMAX} and bool(constant.min() <= HIDDEN)


def _floats(node: NodeView) -> str | None:
    for value in node.inputs[:2]:
        if not value.is_constant:
            if not value.is_tensor and not value.from_sizes:
                return "one of its operands is a number that the model computes"
        elif isinstance(value.constant, torch.Tensor) and value.constant.dim() > 0:
            if value.constant.dtype != torch.float32 or value.constant.dim() > MOST_AXES:
                return "its constant is not float32, or has too many axes"
            if not value.constant.numel():
                return "its constant is empty"
    return None if is_constant_behind(node, 2) else "one of its options is computed by the model"


def _fill(node: NodeView) -> str | None:
    number = node.inputs[2].constant
    known = (isinstance(number, torch.Tensor) and number.dim() == 0) or isinstance(
        number, float | int
    )
    return None if known else "the model computes what it fills in"


def _quotient(node: NodeView) -> str | None:
    return "it rounds quotients" if len(node.inputs) > 2 else _floats(node)


def _power(node: NodeView) -> str | None:
    power = node.inputs[1].constant if node.inputs[1].is_constant else None
    if isinstance(power, torch.Tensor):
        power = power.item() if power.dim() == 0 else None
    return None if power in POWERS else f"it has another power than {POWERS}"


def _reduction(node: NodeView) -> str | None:
    names = arguments_of(node.kind, node.overload or "")
    if reason := options(node):
        return reason
    if "dim" not in names or not node.operand("dim").constant:
        return "it goes over all axes"
    changes = "dtype" in names and node.operand("dtype").constant is not None
    return "it changes the dtype" if changes else None


def _length(node: NodeView) -> str | None:
    return _reduction(node) or (
        None if node.inputs[1].constant == 2 else "its norm is not that of 2"
    )


def _softmax(node: NodeView) -> str | None:
    if reason := options(node):
        return reason
    return None if node.operand("dtype").constant in (None, FLOAT32) else "it changes the dtype"


def _layer_norm(node: NodeView) -> str | None:
    if reason := options(node):
        return reason
    shape, eps = node.operand("normalized_shape").constant, node.operand("eps").constant
    if len(shape) != 1:
        return "it goes over more than the last axis"
    return None if eps is None or eps > 0 else "it adds no number above 0 to the variance"


def _to_float(node: NodeView) -> str | None:
    dtype = node.inputs[1].constant if node.overload == "dtype" else None
    return None if dtype == FLOAT32 else "it gives another dtype than float32, or another device"


def _integer_layer_norm(node: NodeView) -> str | None:
    if reason := _layer_norm(node):
        return reason
    many = node.operand("normalized_shape").constant[0] > MOST_NORMALIZED
    return f"it goes over more than {MOST_NORMALIZED} numbers" if many else None


def _batch_norm(node: NodeView) -> str | None:
    if not is_constant_behind(node, 1):
        return "one of its parameters is computed by the model"
    return "it is in training mode" if node.operand("training").constant is not False else None


def _group_norm(node: NodeView) -> str | None:
    if reason := options(node):
        return reason
    if node.operand("weight").constant is None:
        return "it has no weight"
    return None if node.operand("eps").constant > 0 else "it adds no number above 0 to the variance"


@cache
def _capability(integer_layer_norm: bool) -> Capability:
    functions = kinds(lambda traits: traits.elementwise == 1)
    dynamic, of_pytorch = (
        replace(dynamic_inputs(reduced), qschemes=DYNAMIC_SCHEMES, range_forms=forms, why="")
        for reduced, forms in (
            (False, ("pytorch", "fbgemm")),  # the first knows smaller steps
            (needs_reduced_range(ENGINE), ("fbgemm", "pytorch")),
        )
    )
    per_tensor = tuple(scheme for scheme in DYNAMIC_SCHEMES if scheme.startswith("per_tensor"))
    of_images = replace(dynamic, qschemes=per_tensor)
    rows = [
        OperatorSupport(kind, _OWN, ranks=RANKS, check=options, elementwise=True)
        for kind in functions
    ]
    rows += [
        OperatorSupport(f"aten::conv{n}d", Role.WEIGHTED, clips=CLIPS, ranks=(n + 1, n + 2),
                        check=_convolution, modes=("static", "dynamic"), dynamic=of_images)
        for n in (1, 2, 3)
    ]  # fmt: skip
    rows += [
        *(
            OperatorSupport(f"aten::conv_transpose{n}d", Role.WEIGHTED, clips=CLIPS,
                            ranks=(n + 1, n + 2), check=_transposed,
                            modes=("static", "dynamic"), dynamic=of_images)
            for n in (1, 2, 3)
        ),
        OperatorSupport("aten::linear", Role.WEIGHTED, clips=CLIPS, ranks=RANKS,
                        check=linear, weights_alone=WEIGHTS_ALONE,
                        modes=("static", "dynamic", "weight_only")),
        *lookups(),
        *(
            replace(row, dynamic=of_pytorch) if row.kind in GATED else row for row in recurrent()
        ),
        *(
            OperatorSupport(f"aten::{op}", _OWN, (0, 1), CLIPS, RANKS, _tensors_or_constants,
                            elementwise=True, constants=True, sums=sums)
            for op, sums in (("add", SUMMED), ("sub", SUMMED), ("mul", ()))
        ),
        OperatorSupport("aten::cat", _OWN, clips=CLIPS, ranks=RANKS, check=_options_of_lists,
                        reads_parts=_joins_channels),
        OperatorSupport("aten::max_pool3d", _SHARED, ranks=(4, 5), check=options),
        *(
            OperatorSupport(f"aten::avg_pool{n}d", _OWN, ranks=(n + 1, n + 2), check=options)
            for n in (2, 3)
        ),
        *(
            OperatorSupport(f"aten::adaptive_avg_pool{n}d", _OWN, (0,), ranks=(n + 1, n + 2),
                            check=options)
            for n in (1, 2, 3)
        ),
        OperatorSupport("aten::mean", _OWN, ranks=RANKS, check=_reduction),
        OperatorSupport("aten::upsample_bilinear2d", _OWN, (0,), CLIPS, (4, 4), sizes),
        *(
            OperatorSupport(f"aten::{op}", _OWN, (0, 1), CLIPS, RANKS, _tensors, begins=True)
            for op in ("matmul", "bmm")
        ),
        *(OperatorSupport(kind, _OWN, ranks=RANKS, check=_softmax) for kind in SOFTMAX),
        OperatorSupport("aten::batch_norm", _OWN, clips=CLIPS, ranks=RANKS, check=_batch_norm,
                        reads_parts=_joins_channels),
        OperatorSupport("aten::group_norm", _OWN, (0,), CLIPS, (2, MOST_AXES), _group_norm),
        OperatorSupport("aten::roll", _SHARED, ranks=RANKS, check=roll),
        *(OperatorSupport(kind, _SHARED, check=options, elementwise=True) for kind in CLIPS),
        *(OperatorSupport(k, Role.FIXED, fixed=s, elementwise=True) for k, s in FIXED.items()),
    ]  # fmt: skip
    if integer_layer_norm:
        rows.append(
            OperatorSupport("aten::layer_norm", _OWN, (0,), CLIPS, RANKS, _integer_layer_norm,
                            begins=True)
        )  # fmt: skip
    pools = (
        *(f"aten::{form}_pool{n}d" for form in ("adaptive_avg", "max") for n in (1, 2, 3)),
        *("aten::avg_pool2d", "aten::avg_pool3d"),
    )
    resizes = ("upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d")
    floats = {
        **dict.fromkeys(NORMS, _layer_norm),
        **dict.fromkeys(REDUCTIONS, _reduction),
        **dict.fromkeys(LENGTHS, _length),
        "aten::cat": _options_of_lists,
        "aten::roll": roll,
        "aten::neg": options,
        "aten::pow": _power,
        **dict.fromkeys(pools, options),
        **{f"aten::{kind}": sizes for kind in resizes},
        "aten::batch_norm": _batch_norm,
        "aten::group_norm": _group_norm,
        **dict.fromkeys(SOFTMAX, _softmax),
        "aten::div": _quotient,
        "aten::masked_fill": _fill,
        "aten::to": _to_float,
        **dict.fromkeys(("aten::matmul", "aten::bmm"), _tensors),
        **dict.fromkeys((*FUNCTIONS, *CLIPS), options),
        **dict.fromkeys(SUMS, _floats),
    }
    return Capability(
        {row.kind: row for row in rows},  # what is spelled out comes after, and wins
        SpecSupport({"uint8": (0, 255)}, PER_TENSOR, whole=True),
        WEIGHTS,
        moves={**moves(), **moves_of_codes()},
        floats={**moves(), **of_few_axes(floats)},
        begins=frozenset({*NORMS, *SOFTMAX}),
        forms=(
            *("spell_out_composites", "expand_attention"),
            *("gather_rms_norm", "gather_activations"),
        ),
        dynamic=dynamic,
        dynamic_regions=True,
    )


def _options_of_lists(node: NodeView) -> str | None:
    maker = node.inputs[0].producer
    if maker is None or maker.kind != "prim::ListConstruct" or node.inputs[0].written:
        return "the list of its operands is made elsewhere"
    return options(node)


def _joins_channels(node: NodeView) -> bool:
    """A batch norm has numbers for each channel, so each part may keep its scale."""
    return node.kind == "aten::cat" and node.inputs[1].constant == 1


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
    PyTorch's kernels. So are linears and embeddings in the mode weight_only, as for the target
    `stock`.

    A file needs this package: `import jit_passes` before `torch.jit.load`.

    Args:
        integer_layer_norm: compute layer norm, and the sums that it reads, on integers. A
            transformer takes a few per cent less time. But rows share one scale: those that are
            much smaller than others, as a class token may be, lose their digits right before they
            are made large, and so do all where a few channels are large.
    """

    name: ClassVar[str] = "x86"
    integer_layer_norm: bool = False

    @property
    def capability(self) -> Capability:
        return _capability(self.integer_layer_norm)

    def compile(self, region: torch.jit.ScriptModule) -> Any:
        try:
            return _C.build_plan(region._c)
        except _C.RefusedOperator as error:
            message, operator = error.args
            raise RefusedOperator(operator, message) from error
        except RuntimeError as error:
            warn(f"a region of the target 'x86' stays as it is: {first_line(error)}")
            return None

    def lowering(self) -> Pipeline:
        steps: tuple[Step, ...] = (
            "fold_constant_lists",
            "merge_conv_bias",
            "copy_written",
            "replicate_dequantize",
            expand_cells(),
            CompileRegions(self),
            "lower_recurrent",
            "expand_recurrent",
            *fuse_dynamic(saturates=needs_reduced_range(ENGINE)),
            isolate_nan(),
            PassCall("fold_prepack", engine=ENGINE),
            "lower_weights",
            *CLEAN_UP,
        )
        return Pipeline("lower_x86", steps)
