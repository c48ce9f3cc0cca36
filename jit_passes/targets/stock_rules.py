"""How each quantized operator of PyTorch replaces dequantize, operator, quantize.

%a and %b are activations: integers, which are dequantized before the float operator, and which the
quantized operator reads directly. %scale and %zero_point belong to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from ..passes.rule import Match, RewriteRule

Check = Callable[[Match], bool | str]

A, B = (f"jit_passes::dequantize(%{x}, %{x}_s, %{x}_z)" for x in "ab")
GRID = "%scale, %zero_point"
SHARED = f"jit_passes::dequantize(%a, {GRID})"  # the result has the parameters of the operand
# Ranges of the integers, by the number that PyTorch gives their dtype.
SATURATION = {0: (0, 255), 1: (-128, 127)}

WEIGHTS = {
    "": "aten::_make_per_tensor_quantized_tensor(%w_q, %w_scale, %w_zero)",
    # The engine x86 hands symmetric weights of a transposed convolution to oneDNN, which is wrong
    # for most shapes (see stock_support), and all others to FBGEMM: shift the zero point to 1.
    # So too for the other engines, whose files x86 may load; onednn refuses to load them.
    "_shifted": (
        "aten::_make_per_tensor_quantized_tensor("
        "aten::add(%w_q, 1, 1), %w_scale, aten::add(%w_zero, 1))"
    ),
    "_per_channel": "aten::_make_per_channel_quantized_tensor(%w_q, %w_scale, %w_zero, %w_axis)",
}
CODES = {
    "": "jit_passes::dequantize(%w_q, %w_scale, %w_zero)",
    "_per_channel": "jit_passes::dequantize_per_channel(%w_q, %w_scale, %w_zero, %w_axis)",
}

UNARY = (
    (f"aten::hardswish({A})", f"quantized::hardswish(%a, {GRID})"),
    (f"aten::sigmoid({A})", f"quantized::sigmoid(%a, {GRID})"),
    (f"aten::hardsigmoid({A})", "aten::hardsigmoid(%a)"),
    (f"aten::tanh({A})", "aten::tanh(%a)"),
    (f"aten::leaky_relu({A}, %slope)", f"quantized::leaky_relu(%a, %slope, False, {GRID})"),
    (
        f"aten::elu({A}, %alpha, %scale_out, %scale_in)",
        f"quantized::elu(%a, {GRID}, %alpha, %scale_out, %scale_in)",
    ),
    (f"aten::softmax({A}, %dim, %none)", f"quantized::softmax(%a, %dim, {GRID})"),
    (
        f"aten::layer_norm({A}, %shape, %weight, %bias, %eps, %cudnn)",
        f"quantized::layer_norm(%a, %shape, %weight, %bias, %eps, {GRID})",
    ),
)
# With a relu or clamp behind them, or without.
CLIPPED = (
    (f"aten::add({A}, {B}, 1)", f"quantized::add(%a, %b, {GRID})"),
    (f"aten::mul({A}, {B})", f"quantized::mul(%a, %b, {GRID})"),
    (  # PyTorch's quantized batch norm refuses None
        f"aten::batch_norm({A}, %gamma : Tensor, %beta : Tensor, %mean : Tensor, %var : Tensor, "
        "False, %momentum, %eps, %cudnn)",
        f"quantized::batch_norm(%a, %gamma, %beta, %mean, %var, %eps, {GRID})",
    ),
)
AVERAGES = ("avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "mean")
BOUNDS = ("clip_low", "clip_high")
SUMS = ("aten::conv2d",)
CONV = ", %stride, %padding, %dilation, %groups"
TRANSPOSED = ", %stride, %padding, %output_padding, %groups, %dilation"
TRANSPOSED_PACKED = ", %stride, %padding, %output_padding, %dilation, %groups"


def saturates(match: Match) -> bool | str:
    """Refuse a clip that saturation of the result's integers does not implement.

    Saturation implements the clip when both bounds are quantized to the ends of the dtype:
        bound_low / scale + zero_point <= lowest + 1/2
        bound_high / scale + zero_point >= highest - 1/2
    """
    constants = match.constants
    scale, zero_point = constants["scale"], constants["zero_point"]
    lowest, highest = SATURATION[constants["dtype"]]
    bound_low, bound_high = constants.get("clip_low", 0.0), constants.get("clip_high")
    slack = 1e-3  # of a step: the range may be made from the bounds
    if bound_low is not None and bound_low / scale + zero_point > lowest + 0.5 + slack:
        return "the result's range reaches below the clip"
    if bound_high is not None and bound_high / scale + zero_point < highest - 0.5 - slack:
        return "the result's range reaches above the clip"
    return True


def _of_numbers(check: Check | None) -> Check:
    """Return the check that also refuses clips by tensors, which PyTorch has for floats alone."""

    def refusal(match: Match) -> bool | str:
        if any(match.types.get(name) == "Tensor" for name in BOUNDS):
            return "it clips by tensors"
        return True if check is None else check(match)

    return refusal


def _between_two(match: Match) -> bool | str:
    """Refuse a clip at one end, which QNNPACK's clamp does not know."""
    ends = [match.constants.get(name) for name in BOUNDS]
    return None not in ends or "PyTorch's engine 'qnnpack' clamps between two numbers"


def fixed_grids(engine: str) -> dict[str, tuple[float, int]]:
    """Return scale and zero point of the results that have no others, by operator."""
    fixed = {"aten::hardsigmoid": (1 / 256, 0), "aten::tanh": (2 / 256, 128)}
    return {**fixed, "aten::sigmoid": (1 / 256, 0)} if engine == "qnnpack" else fixed


def _has_grid(grid: tuple[float, int]) -> Check:
    """Return the check of whether the result has the scale and zero point of the kernel's."""

    def check(match: Match) -> bool | str:
        wanted = tuple(match.constants[name] for name in ("scale", "zero_point"))
        return (
            wanted == grid or f"the kernel's result has scale and zero point {grid}, not {wanted}"
        )

    return check


def _clip(kind: str, x: str) -> str:
    return f"aten::relu({x})" if kind == "relu" else f"aten::clamp({x}, %clip_low, %clip_high)"


def _clip_of_codes(kind: str, codes: str, engine: str) -> str:
    """QNNPACK's clamp reads the memory in order, and returns a tensor in the default layout."""
    ordered = kind == "clamp" and engine == "qnnpack"
    return _clip(kind, f"aten::contiguous({codes}, 0)" if ordered else codes)


def _rule(name: str, call: str, replacement: str, check: Check | None = None) -> Any:
    pattern = f"jit_passes::quantize({call}, {GRID}, %low, %high, %dtype)"
    return RewriteRule(name, pattern, replacement, check).compile()


def _clipped_rules(name: str, call: str, replacement: str, engine: str) -> Iterator[Any]:
    """Yield the rules of an operator with and without a clip behind it.

    A clip is absorbed by the result's range where saturation implements it, and else computed on
    the integers.
    """
    for clip in ("relu", "clamp"):
        kept = _clip_of_codes(clip, replacement, engine)
        refuses = _between_two if clip == "clamp" and engine == "qnnpack" else None
        clipped = f"{name}_{clip}", _clip(clip, call)
        yield _rule(*clipped, replacement, _of_numbers(saturates))
        yield _rule(*clipped, kept, _of_numbers(refuses))
    yield _rule(name, call, replacement)


def _weighted_rules(
    op: str, options: str, packed: str, coding: str, weight: str, engine: str
) -> Iterator[Any]:
    return _clipped_rules(
        op + coding,
        f"aten::{op}({A}, {CODES[coding]}, %bias{options})",
        f"quantized::{op}(%a, quantized::{op}_prepack({weight}, %bias{packed}), {GRID})",
        engine,
    )


def _sum_rules() -> Iterator[Any]:
    """Yield the rules for a convolution whose result is added to another tensor.

    The kernel writes into the tensor it adds, parameters included, so it gets a copy.
    """
    packed = f"quantized::conv2d_prepack({WEIGHTS['_per_channel']}, %bias, %rest)"
    return _clipped_rules(
        "conv2d_add",
        f"aten::add(aten::conv2d({A}, {CODES['_per_channel']}, %bias, %rest), {B}, 1)",
        f"quantized::conv2d_add(%a, aten::clone(%b, None), {packed}, {GRID})",
        "onednn",
    )


def _all_rules(engine: str) -> Iterator[Any]:
    if engine == "onednn":
        yield from _sum_rules()
    for coding in ("_per_channel", ""):
        yield from _weighted_rules("linear", "", "", coding, WEIGHTS[coding], engine)
        for dims in (1, 2, 3):
            op = f"conv{dims}d"
            yield from _weighted_rules(op, CONV, CONV, coding, WEIGHTS[coding], engine)
    weight = WEIGHTS["" if engine == "onednn" else "_shifted"]
    for dims in (1, 2, 3):
        op = f"conv_transpose{dims}d"
        yield from _weighted_rules(op, TRANSPOSED, TRANSPOSED_PACKED, "", weight, engine)
    for call, replacement in CLIPPED:
        yield from _clipped_rules(_name_of(call), call, replacement, engine)
    grids = fixed_grids(engine)
    for call, replacement in UNARY:
        grid = grids.get(f"aten::{_name_of(call)}")
        yield _rule(_name_of(call), call, replacement, grid and _has_grid(grid))
    clamp = _clip_of_codes("clamp", "%a", engine)
    yield _rule("clamp", _clip("clamp", SHARED), clamp, _of_numbers(None))
    for op in AVERAGES:
        yield _rule(op, f"aten::{op}({SHARED}, %rest)", f"aten::{op}(%a, %rest)")


def _name_of(call: str) -> str:
    return call[len("aten::") : call.index("(")]


@cache
def rules(engine: str) -> tuple[Any, ...]:
    """Return all rules of an engine, parsed once; earlier ones win."""
    return tuple(_all_rules(engine))
