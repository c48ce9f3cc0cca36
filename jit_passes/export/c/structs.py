"""The structs of a program in C, declared as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AXES = 6


@dataclass(frozen=True)
class StructType:
    """A struct in C.

    Attributes:
        name: of the type.
        comment: which stands in front of it; "" for none.
        fields: their types, by name, in order; an array is `int32_t[6]`.
        functions: text of functions on it.
    """

    name: str
    comment: str
    fields: Mapping[str, str]
    functions: str = ""

    @property
    def text(self) -> str:
        """Its declaration, and its functions."""
        lines = [f"/* {self.comment} */"] if self.comment else []
        lines.append("typedef struct {")
        for name, ctype in self.fields.items():
            element, bracket, count = ctype.partition("[")
            lines.append(f"    {declared(element, name)}{bracket}{count};")
        return "\n".join([*lines, f"}} {self.name};", self.functions])


def declared(ctype: str, name: str) -> str:
    """Return the declaration of a name in C."""
    return f"{ctype}{'' if ctype.endswith('*') else ' '}{name}"


RESCALING = StructType(
    "rescaling",
    "How a sum becomes a code: clamp(round(sum * multiplier / 2^shift) + zero, low, high). There is"
    "\n   one multiplier and shift, or one for each channel.",
    {
        "multipliers": "const int32_t *",
        "shifts": "const uint8_t *",
        **dict.fromkeys(("per_channel", "zero", "low", "high"), "int32_t"),
    },
)
CONV2D = StructType(
    "conv2d_shape",
    "Sizes of a convolution. The zero point is the input's; the rim is 0.",
    dict.fromkeys(
        (
            *("batch", "in_channels", "in_height", "in_width"),
            *("out_channels", "out_height", "out_width", "kernel_height", "kernel_width"),
            *("stride_y", "stride_x", "padding_y", "padding_x", "dilation_y", "dilation_x"),
            *("groups", "zero"),
        ),
        "int32_t",
    ),
)
POOL = StructType(
    "pool_shape",
    "Sizes of a pool.",
    dict.fromkeys(
        (
            *("planes", "in_height", "in_width", "out_height", "out_width"),
            *("kernel_height", "kernel_width"),
            *("stride_y", "stride_x", "padding_y", "padding_x", "dilation_y", "dilation_x"),
        ),
        "int32_t",
    ),
)
LOOPS = StructType(
    "loops",
    "Axes of a loop over all numbers of a result, and steps in memory along each.",
    dict.fromkeys(("sizes", "a", "b", "y"), f"int32_t[{AXES}]"),
    f"""
/* The place of number i, with the steps of one operand. */
static int32_t place(int32_t i, const int32_t *sizes, const int32_t *steps)
{{
    int32_t found = 0;
    for (int32_t axis = {AXES - 1}; axis >= 0; --axis) {{
        found += i % sizes[axis] * steps[axis];
        i /= sizes[axis];
    }}
    return found;
}}

static int32_t count_of(const int32_t *sizes)
{{
    int32_t count = 1;
    for (int32_t axis = 0; axis < {AXES}; ++axis) {{
        count *= sizes[axis];
    }}
    return count;
}}
""",
)
STRUCTS = {struct.name: struct for struct in (RESCALING, CONV2D, POOL, LOOPS)}
