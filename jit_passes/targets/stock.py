"""PyTorch's own quantized operators.

The lowered model holds nothing but `quantized::*` and `aten::*`, so it loads and runs wherever
PyTorch or LibTorch does, without this package.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..errors import JitPassesError, warn
from ..graph.editor import GraphEditor
from ..passes.pipeline import CLEAN_UP, FOLD_NUMBERS, Pipeline
from ..passes.steps import PassCall, RuleSet
from ..quantizers.capability import Capability
from .cell_rules import expand_cells
from .dynamic_rules import fuse_dynamic
from .nan_rules import isolate_nan
from .stock_rules import SUMS, rules
from .stock_support import capability_of
from .table_rules import lower_tables
from .target import Target

PREFERENCE = ("x86", "fbgemm", "onednn", "qnnpack")


@dataclass(frozen=True)
class Stock(Target):
    """PyTorch's quantized operators on one of its engines.

    Args:
        engine: x86, onednn, fbgemm or qnnpack; None for the best that this build has. The engine
            decides how weights are packed in this process. A saved file holds them unpacked, and is
            packed anew for `torch.backends.quantized.engine` of the process that loads it.
        reduce_range: quantize activations to 7 bits, which processors without VNNI need, where
            the int8 kernels add pairs of products in int16; None to ask this machine's processor.
            The kernels saturate at 8 bits, so codes are clamped to 7 behind each, at the price of a
            pass over 1 byte for each number. In the mode dynamic that costs nothing.
        integer_pools: compute adaptive average pools and means on integers. PyTorch's kernels give
            the result the scale of their operand, which is too coarse for the average of many
            values. On ResNet-18 this alone costs 1.3 dB, and saves next to no time.
        fuse_sums: on the engine onednn, add within convolutions, so that their own result is not
            rounded: 0.9 dB more on ResNet-18. The kernel overwrites the tensor it adds, so it
            gets a copy, and ResNet-50 takes a third longer. The model then runs only where
            `torch.backends.quantized.engine` is onednn.
        bfloat16_weights: multiply by 8-bit weights whose input stays in float in bfloat16, by
            `aten::_weight_int8pack_mm`: for few rows of input as fast as float. Weights of normal
            numbers lose 43 dB by 8 bits, and half a dB more by this. False decodes the weight, to
            the bit as the reference model has it. PyTorch decodes in the first call and keeps the
            result, so memory and time are as in float.
        isolate_nan: in the mode dynamic, look for NaN and infinity in the input of each linear,
            LSTM and GRU. A row that holds one becomes NaN, and all other rows stay right. The check
            takes 3 µs for each linear. With 768 features this is a seventh of the time for one row,
            5 % for 32 rows, 2 % for 128. PyTorch's kernels by themselves give numbers for all rows,
            and wrong ones.

    Raises:
        JitPassesError: the engine is unknown, or this build of PyTorch does not have it.
    """

    name: ClassVar[str] = "stock"
    engine: str = None  # type: ignore[assignment]  # both are settled below
    reduce_range: bool = None  # type: ignore[assignment]
    integer_pools: bool = False
    fuse_sums: bool = False
    bfloat16_weights: bool = True
    isolate_nan: bool = True

    def __post_init__(self) -> None:
        available = [e for e in PREFERENCE if e in torch.backends.quantized.supported_engines]
        if self.engine is not None and self.engine not in available:
            raise JitPassesError(
                f"the target 'stock' has no engine {self.engine!r} here: this build of PyTorch "
                f"offers {', '.join(available) or 'none'}"
            )
        if not available:
            raise JitPassesError("this build of PyTorch has no quantized engine at all")
        engine = self.engine or available[0]
        object.__setattr__(self, "engine", engine)  # how frozen dataclasses normalize
        if self.reduce_range is None:
            object.__setattr__(self, "reduce_range", needs_reduced_range(engine))

    @property
    def capability(self) -> Capability:
        can = capability_of(self.engine, self.reduce_range, self.integer_pools)
        fused = self.fuse_sums and self.engine == "onednn"
        if not fused:
            return can
        add = replace(can.operators["aten::add"], sums=SUMS)
        return replace(can, operators={**can.operators, add.kind: add})

    def lowering(self) -> Pipeline:
        engine = self.engine
        return Pipeline(
            "lower_stock",
            (
                FOLD_NUMBERS,
                lower_tables(),
                "lower_recurrent",
                "merge_conv_bias",
                "pool_constants",
                "sink_dequantize",
                "replicate_dequantize",
                expand_cells(),
                PassCall("clamp_codes", contiguous=engine == "qnnpack"),
                *fuse_dynamic(decodes=True, isolate=self.isolate_nan),
                *((isolate_nan(),) if self.isolate_nan else ()),
                RuleSet("fuse_quantized", rules(engine)),
                "fuse_cat",
                "undo_dynamic",
                "remark_float",
                PassCall("lower_weights", bfloat16=self.bfloat16_weights),
                PassCall("fold_quantized_constants", dequantize=True),
                "lower_quantize_dequantize",
                "widen_conv1d",
                PassCall("split_groups", engine=engine),
                PassCall("fold_prepack", engine=engine),
                "merge_dequantize",
                *CLEAN_UP,
                *((warn_of_engine,) if engine == "onednn" else ()),
            ),
            ensures=("no_dialect",),
        )


def warn_of_engine(graph: GraphEditor) -> None:
    """Warn if PyTorch's engine is not the one that quantized::conv2d_add runs on."""
    if torch.backends.quantized.engine == "onednn":
        return
    if any(node.kind.startswith("quantized::conv2d_add") for node in graph.nodes):
        warn(
            "the model adds within convolutions, which only PyTorch's engine 'onednn' does: "
            "set torch.backends.quantized.engine = 'onednn' before loading and running it"
        )


def needs_reduced_range(engine: str) -> bool:
    """Say whether 8-bit activations could overflow the kernels' int16 intermediate sums here."""
    vnni = torch.cpu._is_vnni_supported()
    return engine in ("x86", "fbgemm", "onednn") and not vnni
