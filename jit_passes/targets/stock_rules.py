"""How each quantized operator of PyTorch replaces dequantize, operator, quantize.

A row gives the float operator and the quantized one that takes its place, as calls. Operands in
`quantized` are dequantized before the float operator and go as integers into the other; `scale`
and `zero_point` belong to the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..passes.rule import Match, RewriteRule

Check = Callable[[Match], bool | str]

QUANTIZE = "jit_passes::quantize(%{0}, %scale, %zero_point, %low, %high, %dtype)"
TAIL = ("scale", "zero_point", "low", "high", "dtype")
CLIPS = {
    "relu": ("  %c = aten::relu(%y)\n", "%q = aten::relu(%unclipped)"),
    "clamp": (
        "  %c = aten::clamp(%y, %clip_low, %clip_high)\n",
        "%q = aten::clamp(%unclipped, %clip_low, %clip_high)",
    ),
}
# QNNPACK's clamp reads the memory in order, and returns a tensor in the default layout.
QNNPACK_CLAMP = re.compile(r"(%q = aten::clamp\()(%\w+)")


def _for_engine(replacement: str, engine: str) -> str:
    """Return the lines with the additions that the engine's kernels need."""
    if engine != "qnnpack":
        return replacement
    lines = (
        "%default : int = prim::Constant[value=0]()\n  %ordered = aten::contiguous(\\2, %default)"
    )
    return QNNPACK_CLAMP.sub(lines + "\n  \\1%ordered", replacement)


# Ranges of the integers, by the number that PyTorch gives their dtype.
SATURATION = {0: (0, 255), 1: (-128, 127)}


@dataclass(frozen=True)
class Fusion:
    """A row of the table.

    Attributes:
        call: the float operator, `aten::add(a, b, 1)`; names are captured, literals must be equal.
        replacement: lines of IR that define %q.
        quantized: names in `call` that are dequantized activations.
        clips: whether a relu or clamp behind it is absorbed by the result's range.
        shared: whether the result has the parameters of the first quantized operand.
    """

    call: str
    replacement: str
    quantized: tuple[str, ...] = ("a",)
    clips: bool = False
    shared: bool = False


WEIGHTS = {
    "": "%w = aten::_make_per_tensor_quantized_tensor(%w_q, %w_scale, %w_zero)",
    # The engine x86 hands symmetric weights of a transposed convolution to oneDNN, which is wrong
    # for most shapes (see stock_support), and all others to FBGEMM: shift the zero point to 1.
    # So too for the other engines, whose files x86 may load; onednn refuses to load them.
    "_shifted": (
        "%one : int = prim::Constant[value=1]()\n"
        "  %w_1 = aten::add(%w_q, %one, %one)\n"
        "  %zero_1 = aten::add(%w_zero, %one)\n"
        "  %w = aten::_make_per_tensor_quantized_tensor(%w_1, %w_scale, %zero_1)"
    ),
    "_per_channel": (
        "%w = aten::_make_per_channel_quantized_tensor(%w_q, %w_scale, %w_zero, %w_axis)"
    ),
}

UNARY = (
    Fusion("aten::hardswish(a)", "%q = quantized::hardswish(%a, %scale, %zero_point)"),
    Fusion("aten::sigmoid(a)", "%q = quantized::sigmoid(%a, %scale, %zero_point)"),
    Fusion("aten::hardsigmoid(a)", "%q = aten::hardsigmoid(%a)"),
    Fusion("aten::tanh(a)", "%q = aten::tanh(%a)"),
    Fusion(
        "aten::leaky_relu(a, slope)",
        "%no : bool = prim::Constant[value=0]()\n"
        "  %q = quantized::leaky_relu(%a, %slope, %no, %scale, %zero_point)",
    ),
    Fusion(
        "aten::elu(a, alpha, one, one_too)",
        "%q = quantized::elu(%a, %scale, %zero_point, %alpha, %one, %one_too)",
    ),
    Fusion("aten::softmax(a, dim, none)", "%q = quantized::softmax(%a, %dim, %scale, %zero_point)"),
    Fusion(
        "aten::layer_norm(a, shape, weight, bias, eps, cudnn)",
        "%q = quantized::layer_norm(%a, %shape, %weight, %bias, %eps, %scale, %zero_point)",
    ),
    Fusion(
        "aten::batch_norm(a, gamma, beta, mean, var, 0, momentum, eps, cudnn)",
        "%q = quantized::batch_norm(%a, %gamma, %beta, %mean, %var, %eps, %scale, %zero_point)",
        clips=True,
    ),
)
BINARY = (
    Fusion(
        "aten::add(a, b, 1)",
        "%q = quantized::add(%a, %b, %scale, %zero_point)",
        ("a", "b"),
        clips=True,
    ),
    Fusion(
        "aten::mul(a, b)",
        "%q = quantized::mul(%a, %b, %scale, %zero_point)",
        ("a", "b"),
        clips=True,
    ),
)
SHARED = (
    Fusion(
        "aten::clamp(a, clip_low, clip_high)",
        "%q = aten::clamp(%a, %clip_low, %clip_high)",
        shared=True,
    ),
    *(
        Fusion(f"aten::{name}(a, rest)", f"%q = aten::{name}(%a, %rest)", shared=True)
        for name in (
            "avg_pool2d",
            "avg_pool3d",
            "adaptive_avg_pool2d",
            "adaptive_avg_pool3d",
            "mean",
        )
    ),
)
BOUNDS = ("clip_low", "clip_high")


def saturates(match: Match) -> bool | str:
    """Refuse a clip that saturation of the result's integers does not implement.

    It does when both bounds are quantized to the ends of the dtype:
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


# Not None, which PyTorch's quantized batch norm refuses.
TENSORS = ("gamma", "beta", "mean", "var")


def _arguments(call: str) -> list[str]:
    inner = re.fullmatch(r"[\w:]+\((.*)\)", call)
    assert inner is not None, call
    return [argument.strip() for argument in inner[1].split(",")]


def _rule(
    name: str,
    inputs: list[str],
    body: str,
    replacement: str,
    engine: str,
    clip: str = "",
    absorb: bool = True,
    check: Check | None = None,
) -> Any:
    """Assemble pattern and replacement from the operator's lines, which define %y and %q."""
    clip_inputs = ["clip_low", "clip_high"] if clip == "clamp" else []
    tail = [*(n for n in TAIL if n not in inputs), *clip_inputs]
    rest = ["rest"] if "rest" in inputs else []
    names = [n for n in inputs if n != "rest"] + tail + rest
    typed = [f"%{n} : Tensor" if n in TENSORS else f"%{n}" for n in names]
    header = f"graph({', '.join(typed)}):\n"
    clip_line, kept_line = CLIPS[clip] if clip else ("", "")
    quantized = QUANTIZE.format("c" if clip else "y")
    if not absorb:
        replacement = replacement.replace("%q = ", "%unclipped = ") + "\n  " + kept_line
        check = _between_two if clip == "clamp" and engine == "qnnpack" else check
    rule = RewriteRule(
        "_".join(part for part in (name, clip) if part),
        f"{header}{body}{clip_line}  %q = {quantized}\n  return (%q)",
        f"{header}  {_for_engine(replacement, engine)}\n  return (%q)",
        _of_numbers(saturates if absorb else check) if clip else check,
    )
    return rule.compile()


def _clipped_rules(
    name: str, inputs: list[str], body: str, replacement: str, engine: str
) -> list[Any]:
    """Return the rules of an operator with and without a clip behind it.

    A clip is absorbed by the result's range where saturation implements it, and else computed on
    the integers.
    """
    return [
        *(
            _rule(name, inputs, body, replacement, engine, clip, absorb)
            for clip in CLIPS
            for absorb in (True, False)
        ),
        _rule(name, inputs, body, replacement, engine),
    ]


def _fusion_rules(fusion: Fusion, engine: str) -> list[Any]:
    arguments = _arguments(fusion.call)
    inputs, lines = [], []
    operands = []
    for position, argument in enumerate(arguments):
        if argument.isdigit():
            lines.append(f"  %k{position} : int = prim::Constant[value={argument}]()\n")
            operands.append(f"%k{position}")
            continue
        inputs.append(argument)
        operands.append(f"%{argument}")
        if argument in fusion.quantized:
            grid = ("scale", "zero_point") if fusion.shared else (f"{argument}_s", f"{argument}_z")
            inputs += [name for name in grid if name not in inputs]
            lines.append(
                f"  %{argument}_d = jit_passes::dequantize(%{argument}, %{grid[0]}, %{grid[1]})\n"
            )
            operands[-1] = f"%{argument}_d"
    kind = fusion.call.split("(")[0]
    lines.append(f"  %y = {kind}({', '.join(operands)})\n")
    named = (kind.removeprefix("aten::"), inputs, "".join(lines), fusion.replacement, engine)
    if fusion.clips:
        return _clipped_rules(*named)
    result = fixed_grids(engine).get(kind)
    if kind == "aten::clamp":
        return [_rule(*named, check=_of_numbers(None))]
    return [_rule(*named, check=None if result is None else _has_grid(result))]


def _weighted_rules(
    op: str, operands: str, packed: str, per_channel: bool, make_weight: str, engine: str
) -> list[Any]:
    suffix = "_per_channel" if per_channel else ""
    weight = ["w_q", "w_scale", "w_zero", *(["w_axis"] if per_channel else [])]
    names = [name.strip().lstrip("%") for name in operands.split(",") if name.strip()]
    inputs = ["a", "a_s", "a_z", *weight, "bias", *names]
    more = "".join(f", %{name}" for name in names)
    body = (
        "  %a_d = jit_passes::dequantize(%a, %a_s, %a_z)\n"
        f"  %w_d = jit_passes::dequantize{suffix}({', '.join('%' + w for w in weight)})\n"
        f"  %y = aten::{op}(%a_d, %w_d, %bias{more})\n"
    )
    packed_more = "".join(f", {name.strip()}" for name in packed.split(",") if name.strip())
    replacement = (
        f"{make_weight}\n"
        f"  %packed = quantized::{op}_prepack(%w, %bias{packed_more})\n"
        f"  %q = quantized::{op}(%a, %packed, %scale, %zero_point)"
    )
    return _clipped_rules(op + suffix, inputs, body, replacement, engine)


SUMS = ("aten::conv2d",)


def _sum_rules() -> list[Any]:
    """Return the rules for a convolution whose result is added to another tensor.

    The kernel writes into the tensor it adds, parameters included, so it gets a copy.
    """
    inputs = ["a", "a_s", "a_z", "w_q", "w_scale", "w_zero", "w_axis", "bias", "b", "b_s", "b_z"]
    inputs += ["rest"]
    replacement = (
        f"{WEIGHTS['_per_channel']}\n"
        "  %packed = quantized::conv2d_prepack(%w, %bias, %rest)\n"
        "  %none : NoneType = prim::Constant()\n"
        "  %sum = aten::clone(%b, %none)\n"
        "  %q = quantized::conv2d_add(%a, %sum, %packed, %scale, %zero_point)"
    )
    body = (
        "  %one : int = prim::Constant[value=1]()\n"
        "  %a_d = jit_passes::dequantize(%a, %a_s, %a_z)\n"
        "  %w_d = jit_passes::dequantize_per_channel(%w_q, %w_scale, %w_zero, %w_axis)\n"
        "  %s = aten::conv2d(%a_d, %w_d, %bias, %rest)\n"
        "  %b_d = jit_passes::dequantize(%b, %b_s, %b_z)\n"
        "  %y = aten::add(%s, %b_d, %one)\n"
    )
    return _clipped_rules("conv2d_add", inputs, body, replacement, "onednn")


CONV = "%stride, %padding, %dilation, %groups"
TRANSPOSED = "%stride, %padding, %output_padding, %groups, %dilation"
TRANSPOSED_PACKED = "%stride, %padding, %output_padding, %dilation, %groups"


@cache
def rules(engine: str) -> tuple[Any, ...]:
    """Return all rules of an engine, parsed once; earlier ones win."""
    made: list[Any] = _sum_rules() if engine == "onednn" else []
    transposed = WEIGHTS["" if engine == "onednn" else "_shifted"]
    for per_channel in (True, False):
        weight = WEIGHTS["_per_channel" if per_channel else ""]
        made += _weighted_rules("linear", "", "", per_channel, weight, engine)
        for dims in (1, 2, 3):
            made += _weighted_rules(f"conv{dims}d", CONV, CONV, per_channel, weight, engine)
    for dims in (1, 2, 3):
        op = f"conv_transpose{dims}d"
        made += _weighted_rules(op, TRANSPOSED, TRANSPOSED_PACKED, False, transposed, engine)
    for fusion in (*BINARY, *UNARY, *SHARED):
        made += _fusion_rules(fusion, engine)
    return tuple(made)
