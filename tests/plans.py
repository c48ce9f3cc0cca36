"""Regions of int8 operators for tests of plans: reference models, made by hand or by quantizing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C
from jit_passes.passes.pipeline import FOLD_NUMBERS, Pipeline
from jit_passes.passes.steps import PassCall

Q = torch.ops.jit_passes


class Grid(nn.Module):
    """Quantize and dequantize."""

    def __init__(self, scale: float, zero_point: int, dtype: torch.dtype = torch.uint8) -> None:
        super().__init__()
        ends = torch.iinfo(dtype)
        self.scale, self.zero_point, self.dtype = scale, zero_point, dtype
        self.low, self.high = int(ends.min), int(ends.max)

    def forward(self, x: Tensor) -> Tensor:
        codes = Q.quantize(x, self.scale, self.zero_point, self.low, self.high, self.dtype)
        return Q.dequantize(codes, self.scale, self.zero_point)


class Weighted(nn.Module):
    """A layer on int8 weights, with a scale for each result."""

    def __init__(self, layer: nn.Module, exact: bool = False) -> None:
        super().__init__()
        shape = layer.weight.shape
        codes = torch.randint(-127, 128, shape, dtype=torch.int8)
        self.axis = int(getattr(layer, "transposed", False))  # of the results
        outputs = (shape[self.axis],)
        scales = 2.0 ** torch.randint(-6, -3, outputs) if exact else torch.rand(outputs) * 0.02
        layer.weight = None
        if layer.bias is not None:
            layer.bias = nn.Parameter(torch.randint(-64, 65, layer.bias.shape) / 8)
        self.layer = layer
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scales", scales.double())
        self.register_buffer("zero_points", torch.zeros(outputs, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        weight = Q.dequantize_per_channel(self.codes, self.scales, self.zero_points, self.axis)
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return nn.functional.linear(x, weight, layer.bias)
        dims = len(layer.kernel_size)
        if self.axis:
            more = (layer.output_padding, layer.groups, layer.dilation)
            function = getattr(nn.functional, f"conv_transpose{dims}d")
            return function(x, weight, layer.bias, layer.stride, layer.padding, *more)
        function = getattr(nn.functional, f"conv{dims}d")
        options = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return function(x, weight, layer.bias, *options)


# The canonical form, but nothing is computed ahead: weights stay integers.
CANONICAL = Pipeline(
    "canonical",
    (
        "freeze",
        FOLD_NUMBERS,
        "canonicalize_convolution",
        "canonicalize_synonyms",
        PassCall("simplify", tensors=False),
        "canonicalize_reshape",
        "remove_dead_code",
    ),
)


def traced(module: nn.Module, *inputs: Tensor) -> Any:
    """Return the module's graph in canonical form, for any sizes."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # of branches by sizes
        return CANONICAL.run(torch.jit.trace(module.eval(), inputs, check_trace=False)).module


def scripted(module: nn.Module) -> Any:
    """A region in canonical form, of a script."""
    return CANONICAL.run(torch.jit.script(module.eval())).module


def reference(module: nn.Module, batches: Sequence[Tensor]) -> Any:
    """Return the reference model."""
    model = torch.jit.trace(module.eval(), batches[0], check_trace=False)
    return jit_passes.quantize_script(model, list(batches), mode="static", target="reference")


def plan_of(region: Any) -> Any:
    return _C.build_plan(region._c)


def plans_in(model: torch.jit.ScriptModule) -> list[Any]:
    """Return the plans of a lowered model, in the order in which it holds them."""
    regions = [m for m in model.modules() if getattr(m, "original_name", "") == "CompiledRegion"]
    return [region.compiled for region in regions]


class Called(nn.Module):
    """A module that calls a plan."""

    def __init__(self, plan: Any) -> None:
        super().__init__()
        self.plan = plan

    def forward(self, x: Tensor) -> Tensor:
        return self.plan.run([x])[0]


def last_step(region: Any) -> float:
    """Return the scale with which the region's result is dequantized."""
    node = next(region.graph.outputs()).node()
    assert node.kind() == "jit_passes::dequantize"
    return float(list(node.inputs())[1].toIValue())
