"""The rows of a capability: operators, and specifications that they compute with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ..graph.view import NodeView, ValueView, is_number
from ..specification.grid import DTYPES, DYNAMIC_SCHEMES, SCHEMES, check_grid
from ..specification.specification import (
    RANGE_FORMS,
    ROUNDINGS,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
)


class Role(Enum):
    """How an operator takes part in quantization.

    WEIGHTED operators multiply by a constant weight and start a quantized region; all others are
    quantized only between quantized neighbours, where staying float would cost two conversions.
    LOOKUP operators pick rows of a constant weight, which is quantized where a configuration says
    how. RECURRENT ones have weights, and are quantized in the mode dynamic.
    """

    WEIGHTED = "input, weight, bias; result with its own parameters"
    OWN = "result with its own parameters"
    SHARED = "result with the parameters of the first operand"
    FIXED = "result with parameters known beforehand"
    LOOKUP = "weight alone; result in float"
    RECURRENT = "input as the model runs, weights; result in float"


@dataclass(frozen=True)
class SpecSupport:
    """The specifications that a backend can compute with, for activations or for weights.

    Attributes:
        grids: by dtype, the smallest and the largest code.
        qschemes: the schemes; the first is the default of dynamic inputs.
        whole: whether the codes must be all codes of the grid: kernels saturate at its ends.
        roundings: how it rounds; the first is the default.
        groups: a channel may have a scale for each group of its inputs, whose size is a multiple of
            this number; 0 where it has one scale.
        range_forms: formulas for parameters, where kernels choose these; the first is the default
            of dynamic inputs.
        why: why it has no other codes, and what to do, for messages.
        why_rounded: why it has no other roundings, for messages.
    """

    grids: Mapping[str, tuple[int, int]]
    qschemes: tuple[str, ...]
    whole: bool = False
    roundings: tuple[str, ...] = ("half_even",)
    groups: int = 0
    range_forms: tuple[str, ...] = RANGE_FORMS
    why: str = ""
    why_rounded: str = ""

    def __str__(self) -> str:
        """Return dtypes and schemes in one line."""
        grids = ", ".join(f"{name} [{low}, {high}]" for name, (low, high) in self.grids.items())
        every = set(self.qschemes) in (set(SCHEMES), set(DYNAMIC_SCHEMES))
        schemes = "any scheme" if every else ", ".join(self.qschemes)
        return f"{grids}{' or fewer codes' * (not self.whole)}; {schemes}"

    @property
    def per_channel(self) -> bool:
        """Whether there may be a scale for each channel."""
        return any(scheme.startswith("per_channel") for scheme in self.qschemes)

    def narrow(self, spec: QuantizationSpec) -> QuantizationSpec:
        """Return the specification with no more codes and no more scales than there can be."""
        if spec.ch_axis is not None and not self.per_channel:
            spec = per_tensor(spec)
        if not self.groups:
            spec = replace(spec, group_size=None)
        low, high = self.grids.get(spec.dtype, (spec.quant_min, spec.quant_max))
        if not self.whole:
            low, high = max(low, spec.quant_min), min(high, spec.quant_max)
        return replace(spec, quant_min=low, quant_max=high) if low < high else spec

    def nearest(self, spec: QuantizationSpec) -> QuantizationSpec:
        """Return the specification, or the nearest one that the backend has."""
        spec = self.narrow(spec)
        if spec.dtype not in self.grids:
            dtype, (low, high) = next(iter(self.grids.items()))
            spec = replace(spec, dtype=dtype, quant_min=low, quant_max=high)
        if spec.qscheme not in self.qschemes:
            axis = (spec.ch_axis or 0) if self.qschemes[0].startswith("per_channel") else None
            groups = None if axis is None else spec.group_size
            spec = replace(spec, qscheme=self.qschemes[0], ch_axis=axis, group_size=groups)
        if spec.range_form not in self.range_forms:
            spec = replace(spec, range_form=self.range_forms[0])
        if spec.rounding not in self.roundings:
            spec = replace(spec, rounding=self.roundings[0])
        return spec

    def nearest_dynamic(self, spec: QuantizationSpec) -> QuantizationSpec:
        """Return the nearest one for the mode dynamic: the backend's first scheme and formulas."""
        first = replace(spec, qscheme=self.qschemes[0], range_form=self.range_forms[0])
        return self.nearest(first)

    def refusal(self, spec: QuantizationSpec | FixedQParamsQuantizationSpec) -> str | None:
        """Say which part of a specification the backend cannot do; None when it can do all."""
        low, high = self.grids.get(spec.dtype, (0, 0))
        whole = (spec.quant_min, spec.quant_max) == (low, high)
        if not (whole if self.whole else low <= spec.quant_min and spec.quant_max <= high):
            can = " or ".join(f"{name} [{low}, {high}]" for name, (low, high) in self.grids.items())
            wanted = f"{spec.dtype} [{spec.quant_min}, {spec.quant_max}]"
            text = f"{wanted}, and the target has {can}{self.why and f' ({self.why})'}"
            few = self.whole and low <= spec.quant_min and spec.quant_max <= high
            bits = (high - low).bit_length()
            return text + f": give it {bits} bits, or take the target 'reference'" * few
        if not _schemes(spec) & set(self.qschemes):
            return f"{spec.qscheme}, and the target has {', '.join(self.qschemes)}"
        if spec.rounding not in self.roundings:
            text = f"rounded {spec.rounding}, and the target has {', '.join(self.roundings)}"
            return text + (self.why_rounded and f" ({self.why_rounded})")
        if isinstance(spec, QuantizationSpec) and (why := self._no_groups(spec.group_size)):
            return why
        if isinstance(spec, QuantizationSpec) and spec.range_form not in self.range_forms:
            forms = ", ".join(self.range_forms)
            return f"of the range form {spec.range_form}, and the target has {forms}"
        return None

    def _no_groups(self, size: int | None) -> str | None:
        if size is None or (self.groups and size % self.groups == 0):
            return None
        own = f"groups of {self.groups}, or a multiple" if self.groups else (
            "one scale for each channel"
        )  # fmt: skip
        return f"in groups of {size}, and the target has {own}"


def _schemes(spec: QuantizationSpec | FixedQParamsQuantizationSpec) -> set[str]:
    """Return the schemes that it fits: a given scale for codes around 0 is symmetric as well."""
    if isinstance(spec, FixedQParamsQuantizationSpec) and spec.zero_point == 0 > spec.quant_min:
        return {spec.qscheme, "per_tensor_symmetric"}
    return {spec.qscheme}


def per_tensor(spec: QuantizationSpec) -> QuantizationSpec:
    """Return a specification of the same kind with one scale."""
    scheme = spec.qscheme.replace("per_channel", "per_tensor")
    return replace(spec, qscheme=scheme, ch_axis=None, group_size=None)


WEIGHT_OPERAND, BIAS_OPERAND = 1, 2  # positions at convolutions and linears
CLIPS = ("aten::relu", "aten::clamp")  # behind an operator, most kernels absorb them
PER_TENSOR = tuple(scheme for scheme in SCHEMES if scheme.startswith("per_tensor"))
DIALECT_GRIDS = {name: check_grid(name, None, None)[1:] for name in DTYPES}
# The reference model computes everything.
ANY_SPEC = SpecSupport(DIALECT_GRIDS, SCHEMES, roundings=ROUNDINGS, groups=1)

ANY_DYNAMIC = SpecSupport(DIALECT_GRIDS, DYNAMIC_SCHEMES)

Check = Callable[[NodeView], str | None]
Spec = QuantizationSpec | FixedQParamsQuantizationSpec
ClipCheck = Callable[[NodeView, Spec | None], str | None]


@dataclass(frozen=True)
class OperatorSupport:
    """A row of a support table.

    Attributes:
        kind: qualified operator name.
        role: see `Role`.
        operands: the operands that must be quantized; for a list operand, all its elements.
        clips: the operators that become part of it when they follow: the result's range clips.
        clip_refusal: says why a clip that follows does not become part of it, for a result of a
            specification; and, without one, for a result of any. None for no refusals.
        ranks: numbers of dimensions of the result that the backend can do.
        check: says why a node cannot be quantized, or None when it can.
        weights: the specifications of its weight, where the backend can do less than for others.
        mode_weights: by mode, the specifications of its weight where the mode has others. Without
            "weight_only" the backend needs the input quantized too.
        adds_pairs: says whether its kernel for a node adds pairs of products in int16.
        fixed: the parameters, for Role.FIXED.
        elementwise: whether the target computes it by a table when it depends on one tensor only:
            functions of functions are then rounded once, at the end. Operands may be numbers.
        input_range: beyond which the operator is flat; its operand's range is taken within that.
        begins: whether its operand is known to be float, so that it may be quantized even where no
            operator with weights makes or reads it.
        reads_parts: says, of itself and an operator whose result it reads, whether it takes the
            quantized operands of that one in place of the result: a concatenation in front of it is
            not rounded.
        only_part: whether it is on integers only where a reader takes its operands like that, and
            else in float.
        sums: the weighted operators whose results it takes before they are rounded: of an addition
            one of its two operands, of a function its only one. Its own result alone is quantized
            then, where nothing else reads the weighted operator's.
        gives_float: whether its result may stay in float while its operands are quantized.
        float_in_regions: for an operator with weights, whether regions have a form of it that reads
            integers, gives float, and adds a sum in float in one step.
        returns_float: whether this form is taken where the method's caller alone reads the result.
        constants: whether it takes constant tensors among its operands, on grids of their own.
        modes: the modes that it has: "static", parameters of its input come from calibration;
            "dynamic", from the input itself as the model runs, and its result is float;
            "weight_only", its input stays in float.
        dynamic: the specifications of its input in the mode dynamic, where the backend can do less
            than for others.
        adds_batch_axis: of a convolution, whether its kernel takes batches alone: `convert` adds an
            axis of one where data had none. The lowering, `sink_dequantize`, moves quantize in
            front of the operator that removes this axis again.
    """

    kind: str
    role: Role
    operands: tuple[int, ...] = (0,)
    clips: tuple[str, ...] = ()
    ranks: tuple[int, int] = (1, 8)
    check: Check | None = None
    weights: SpecSupport | None = None
    mode_weights: Mapping[str, SpecSupport] = field(default_factory=dict)
    adds_pairs: Callable[[NodeView], bool] | None = None
    fixed: FixedQParamsQuantizationSpec | None = None
    elementwise: bool = False
    input_range: tuple[float, float] | None = None
    begins: bool = False
    reads_parts: Callable[[NodeView, NodeView], bool] | None = None
    only_part: bool = False
    sums: tuple[str, ...] = ()
    gives_float: bool = True
    float_in_regions: bool = False
    returns_float: bool = False
    constants: bool = False
    modes: tuple[str, ...] = ("static",)
    dynamic: SpecSupport | None = None
    adds_batch_axis: bool = False
    clip_refusal: ClipCheck | None = None

    def is_activation(self, position: int, value: ValueView) -> bool:
        """Say whether an operand must be quantized: numbers of a table need not."""
        return position in self.operands and not (self.elementwise and is_number(value))
