"""PyTorch's own quantized operators.

The lowered model holds nothing but `quantized::*` and `aten::*`, so it loads and runs wherever
PyTorch or LibTorch does, without this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from .. import _C
from ..errors import JitPassesError, warn
from ..graph.view import NodeView
from ..observers import MinMax, PairSums
from ..passes.pipeline import PassRecord, Pipeline
from ..quantizers.backend import WEIGHT, BackendQuantizer
from ..quantizers.support import PER_TENSOR, OperatorSupport, SpecSupport
from ..specification.specification import QuantizationSpec
from .stock_rules import SUMS, rules
from .stock_support import adds_pairs_in_int16, support, without_fixed, without_means
from .target import Target

# The kernels take weights of any bits in int8, around 0.
WEIGHTS = SpecSupport(
    {"int8": (-127, 127)},
    (
        "per_tensor_symmetric",
        "per_channel_symmetric",
        "per_tensor_power_of_two",
        "per_channel_power_of_two",
    ),
)
PREFERENCE = ("x86", "fbgemm", "onednn", "qnnpack")

TO_INTEGERS = Pipeline(
    "lower_stock_prepare",
    (
        "fold_constant_lists",
        "pool_constants",
        "sink_dequantize",
        "replicate_dequantize",
        "clamp_codes",
    ),
)
TO_QUANTIZED_DTYPES = Pipeline(
    "lower_stock",
    (
        "fuse_cat",
        "fold_quantized_constants",
        "lower_quantize_dequantize",
        "widen_conv1d",
        "split_groups",
        "fold_prepack",
        "merge_dequantize",
        "remove_dead_code",
        "pool_constants",
        "remove_unused_attributes",
    ),
)


class Stock(Target):
    """PyTorch's quantized operators on one of its engines.

    Args:
        engine: x86, onednn, fbgemm or qnnpack; None for the best that this build has. It decides
            how weights are packed in this process. A saved file holds them unpacked, and is packed
            anew for `torch.backends.quantized.engine` of the process that loads it.
        reduce_range: quantize activations to 7 bits, which processors without VNNI need, where
            the int8 kernels add pairs of products in int16; None to ask this machine's processor.
            The kernels saturate at 8 bits, so codes are clamped to 7 behind each, at the price of a
            pass over 1 byte for each number.
        integer_pools: compute adaptive average pools and means on integers. PyTorch's kernels give
            the result the scale of their operand, too coarse for the average of many values: on
            ResNet-18 that alone costs 1.3 dB, and saves next to no time.

        fuse_sums: on the engine onednn, add within convolutions, so that their own result is not
            rounded: 0.9 dB more on ResNet-18. The kernel overwrites the tensor it adds, so it
            gets a copy, and ResNet-50 takes a third longer. Such a model runs only where
            `torch.backends.quantized.engine` is onednn.

    Raises:
        JitPassesError: the engine is unknown, or this build of PyTorch does not have it.
    """

    name: ClassVar[str] = "stock"

    def __init__(
        self,
        engine: str | None = None,
        reduce_range: bool | None = None,
        integer_pools: bool = False,
        fuse_sums: bool = False,
    ) -> None:
        self.integer_pools = integer_pools
        self.fuse_sums = fuse_sums
        available = [e for e in PREFERENCE if e in torch.backends.quantized.supported_engines]
        if engine is not None and engine not in available:
            raise JitPassesError(
                f"the target 'stock' has no engine {engine!r} here: this build of PyTorch offers "
                f"{', '.join(available) or 'none'}"
            )
        if not available:
            raise JitPassesError("this build of PyTorch has no quantized engine at all")
        self.engine = engine or available[0]
        self.reduce_range = (
            needs_reduced_range(self.engine) if reduce_range is None else reduce_range
        )

    def __repr__(self) -> str:
        return f"Stock({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    @property
    def support(self) -> Mapping[str, OperatorSupport]:
        table = support(self.engine)
        table = without_fixed(table) if self.reduce_range else table
        return table if self.integer_pools else without_means(table)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "reduce_range": self.reduce_range,
            "integer_pools": self.integer_pools,
            "fuse_sums": self.fuse_sums,
        }

    def quantizer(self) -> BackendQuantizer:
        highest = 127 if self.reduce_range else 255
        return BackendQuantizer(
            self.support,
            QuantizationSpec("uint8", 0, highest),
            SUMS if self.fuse_sums and self.engine == "onednn" else (),
            self.weight_specification,
            activations=SpecSupport({"uint8": (0, highest)}, PER_TENSOR, whole=True),
            weights=WEIGHTS,
            target=self,
        )

    def weight_specification(self, node: NodeView) -> QuantizationSpec:
        """Return the specification of an operator's weight: int8, symmetric, per output channel."""
        overflows = adds_pairs_in_int16(node) and not self.reduce_range
        weight = replace(WEIGHT, observer=PairSums() if overflows else MinMax())
        if "conv_transpose" in node.kind:
            return replace(weight, quant_max=126)  # room for the shift, see stock_rules.WEIGHTS
        return weight

    def lower(self, module: Any, method: str) -> tuple[Any, dict[str, str], list[PassRecord]]:
        contiguous = {"clamp_codes": {"contiguous": self.engine == "qnnpack"}}
        prepared = TO_INTEGERS.run(module, method, options=contiguous)
        matches = _C.apply_rules(prepared.module, method, rules(self.engine))
        refused = {name: f"not fused: {reason}" for _, name, _, reason in matches if reason}
        if any(rule.startswith("conv2d_add") for rule, _, _, _ in matches):
            warn_of_engine(self.engine)
        options: dict[str, dict[str, Any]] = {
            "split_groups": {"engine": self.engine},
            "fold_prepack": {"engine": self.engine},
            "fold_quantized_constants": {"dequantize": True},
        }
        lowered = TO_QUANTIZED_DTYPES.run(prepared.module, method, options=options)
        left = {
            name: refused.get(name, "not fused by the target")
            for name, kind in _C.node_kinds(lowered.module, method).items()
            if kind.startswith("aten::")
        }
        return lowered.module, left, [*prepared.records, *lowered.records]


def warn_of_engine(engine: str) -> None:
    """Tell who did not set the engine that quantized::conv2d_add looks for when it runs."""
    if torch.backends.quantized.engine != engine:
        warn(
            f"the model adds within convolutions, which only PyTorch's engine '{engine}' does: "
            f"set torch.backends.quantized.engine = '{engine}' before loading and running it"
        )


def needs_reduced_range(engine: str) -> bool:
    """Say whether 8-bit activations could overflow the kernels' int16 intermediate sums here."""
    vnni = torch.cpu._is_vnni_supported()
    return engine in ("x86", "fbgemm", "onednn") and not vnni
