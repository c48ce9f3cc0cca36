"""Functions of C that call CMSIS-NN, as text.

The arguments are as in `kernels`, but rescalings as CMSIS-NN has them: a multiplier from 2^30 on,
and a shift to the left. Images have their channels last.
"""

from __future__ import annotations

from collections.abc import Mapping

from .kernels import Kernel

INCLUDE = """\
#include "arm_nnfunctions.h"
#include "arm_nnsupportfunctions.h"

#if defined(ARM_MATH_MVEI)
#error "CMSIS-NN rounds otherwise on processors with Helium: write the program with its own loops"
#endif
"""
# Macros for CMSIS-NN by the target's rounding.
MACRO = "CMSIS_NN_USE_SINGLE_ROUNDING"
MACROS: Mapping[str, str] = {
    "half_up": f"""\
#if !defined({MACRO})
#error "the model rounds once: compile the program and CMSIS-NN with -D{MACRO}"
#endif
""",
    "double_round": f"""\
#if defined({MACRO})
#error "the model rounds twice: compile the program and CMSIS-NN without {MACRO}"
#endif
""",
}

ONCE = ("half_up",)  # roundings that need it

_SCALES = {
    "multipliers": "const int32_t *",
    "shifts": "const int32_t *",
    **dict.fromkeys(("zero", "low", "high"), "int32_t"),
}
_WEIGHTED = {"x": "const int8_t *", "weight": "const int8_t *", "bias": "const int32_t *"}
_TWO = {
    "count": "int32_t",
    "a": "const int8_t *",
    "zero_a": "int32_t",
    "b": "const int8_t *",
    "zero_b": "int32_t",
}
_TILES = """{s->stride_x, s->stride_y},
        {s->padding_x, s->padding_y}"""

CMSIS: Mapping[str, Kernel] = {
    "cmsis_convolve": Kernel(
        {"s": "const conv2d_shape *", **_WEIGHTED, **_SCALES, "y": "int8_t *"},
        f"""\
{{
    cmsis_nn_context context = {{scratch, (int32_t)sizeof(scratch)}};
    cmsis_nn_conv_params params = {{-s->zero, zero, {_TILES},
        {{s->dilation_x, s->dilation_y}}, {{low, high}}}};
    cmsis_nn_per_channel_quant_params scales = {{(int32_t *)multipliers, (int32_t *)shifts}};
    cmsis_nn_dims in = {{s->batch, s->in_height, s->in_width, s->in_channels}};
    cmsis_nn_dims out = {{s->batch, s->out_height, s->out_width, s->out_channels}};
    cmsis_nn_dims filter = {{s->out_channels, s->kernel_height, s->kernel_width,
        s->in_channels / s->groups}};
    cmsis_nn_dims biases = {{1, 1, 1, s->out_channels}};
    arm_convolve_s8(&context, &params, &scales, &in, x, &filter, weight, &biases, bias, 0, &out, y);
}}
""",
    ),
    "cmsis_depthwise": Kernel(
        {"s": "const conv2d_shape *", **_WEIGHTED, **_SCALES, "y": "int8_t *"},
        f"""\
{{
    cmsis_nn_context context = {{0, 0}};
    cmsis_nn_dw_conv_params params = {{-s->zero, zero, s->out_channels / s->in_channels,
        {_TILES}, {{s->dilation_x, s->dilation_y}}, {{low, high}}}};
    cmsis_nn_per_channel_quant_params scales = {{(int32_t *)multipliers, (int32_t *)shifts}};
    cmsis_nn_dims in = {{s->batch, s->in_height, s->in_width, s->in_channels}};
    cmsis_nn_dims out = {{s->batch, s->out_height, s->out_width, s->out_channels}};
    cmsis_nn_dims filter = {{1, s->kernel_height, s->kernel_width, s->out_channels}};
    cmsis_nn_dims biases = {{1, 1, 1, s->out_channels}};
    arm_depthwise_conv_s8(
        &context, &params, &scales, &in, x, &filter, weight, &biases, bias, &out, y);
}}
""",
    ),
    "cmsis_fully_connected": Kernel(
        {
            **dict.fromkeys(("rows", "ins", "outs", "zero_x"), "int32_t"),
            **_WEIGHTED,
            **_SCALES,
            "y": "int8_t *",
        },
        """\
{
    cmsis_nn_context context = {0, 0};
    cmsis_nn_fc_params params = {-zero_x, 0, zero, {low, high}};
    cmsis_nn_per_channel_quant_params scales = {(int32_t *)multipliers, (int32_t *)shifts};
    cmsis_nn_dims in = {rows, 1, 1, ins}, filter = {ins, 1, 1, outs};
    cmsis_nn_dims biases = {1, 1, 1, outs}, out = {rows, 1, 1, outs};
    arm_fully_connected_per_channel_s8(
        &context, &params, &scales, &in, x, &filter, weight, &biases, bias, &out, y);
}
""",
    ),
    "cmsis_add": Kernel(
        {
            **_TWO,
            **dict.fromkeys(("multiplier_a", "shift_a", "multiplier_b", "shift_b"), "int32_t"),
            **dict.fromkeys(("lift", "multiplier", "shift", "zero", "low", "high"), "int32_t"),
            "y": "int8_t *",
        },
        """\
{
    arm_elementwise_add_s8(a, b, -zero_a, multiplier_a, shift_a, -zero_b, multiplier_b, shift_b,
        lift, y, zero, multiplier, shift, low, high, count);
}
""",
    ),
    "cmsis_multiply": Kernel(
        {
            **_TWO,
            **dict.fromkeys(("multiplier", "shift", "zero", "low", "high"), "int32_t"),
            "y": "int8_t *",
        },
        """\
{
    arm_elementwise_mul_s8(
        a, b, -zero_a, -zero_b, y, zero, multiplier, shift, low, high, count);
}
""",
    ),
    "cmsis_matmul": Kernel(
        {
            **dict.fromkeys(("batch", "rows", "inner", "columns"), "int32_t"),
            **{name: kind for name, kind in _TWO.items() if name != "count"},
            **dict.fromkeys(("multiplier", "shift", "zero", "low", "high"), "int32_t"),
            "y": "int8_t *",
        },
        """\
{
    cmsis_nn_context context = {0, 0};
    cmsis_nn_bmm_params params = {0, 0, {-zero_a, -zero_b, zero, {low, high}}};
    cmsis_nn_per_tensor_quant_params scale = {multiplier, shift};
    cmsis_nn_dims left = {batch, 1, rows, inner}, right = {batch, 1, columns, inner};
    cmsis_nn_dims out = {batch, 1, rows, columns};
    arm_batch_matmul_s8(&context, &params, &scale, &left, a, &right, b, &out, y);
}
""",
    ),
    "cmsis_max_pool": Kernel(
        {
            "batch": "int32_t",
            "channels": "int32_t",
            "s": "const pool_shape *",
            "x": "const int8_t *",
            "y": "int8_t *",
        },
        f"""\
{{
    cmsis_nn_context context = {{0, 0}};
    cmsis_nn_pool_params params = {{{_TILES}, {{-128, 127}}}};
    cmsis_nn_dims in = {{batch, s->in_height, s->in_width, channels}};
    cmsis_nn_dims window = {{1, s->kernel_height, s->kernel_width, 1}};
    cmsis_nn_dims out = {{batch, s->out_height, s->out_width, channels}};
    arm_max_pool_s8(&context, &params, &in, x, &window, &out, y);
}}
""",
    ),
}
