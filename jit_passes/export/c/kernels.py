"""The functions of C that the operators call, as text.

Each function is written once for all types of codes: X, X2 and Y stand for the types of operands
and result, W for the type of weights, SUM for the accumulator's. Loops are plain, since this is the
program that a kernel of hardware is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .structs import STRUCTS, StructType, declared


@dataclass(frozen=True)
class Kernel:
    """A function in C.

    Attributes:
        parameters: their types, by name, in order.
        body: its text, braces included.
    """

    parameters: Mapping[str, str]
    body: str

    @property
    def structs(self) -> list[StructType]:
        """The structs that its parameters point to."""
        names = (ctype.split()[-2] for ctype in self.parameters.values() if ctype.endswith("*"))
        return [STRUCTS[name] for name in names if name in STRUCTS]

    @property
    def head(self) -> list[str]:
        """Its declaration, parameter by parameter."""
        return [declared(ctype, name) for name, ctype in self.parameters.items()]


_WINDOW = """\
                for (int32_t j = 0; j < s->kernel_height; ++j) {
                    for (int32_t i = 0; i < s->kernel_width; ++i) {
                        int32_t row = y0 * s->stride_y - s->padding_y + j * s->dilation_y;
                        int32_t column = x0 * s->stride_x - s->padding_x + i * s->dilation_x;
                        if (row < 0 || row >= s->in_height || column < 0 || column >= s->in_width) {
                            continue;
                        }
"""

KERNELS: Mapping[str, Kernel] = {
    "conv2d": Kernel(
        {
            "s": "const conv2d_shape *",
            "x": "const X *",
            "weight": "const W *",
            "bias": "const int32_t *",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t ins = s->in_channels / s->groups, outs = s->out_channels / s->groups;
    for (int32_t n = 0; n < s->batch; ++n) {
        for (int32_t c = 0; c < s->out_channels; ++c) {
            for (int32_t y0 = 0; y0 < s->out_height; ++y0) {
                for (int32_t x0 = 0; x0 < s->out_width; ++x0) {
                    const W *w = weight + c * ins * s->kernel_height * s->kernel_width;
                    SUM sum = bias ? bias[c] : 0;
                    for (int32_t k = 0; k < ins; ++k) {
                        int32_t plane = (n * s->in_channels + c / outs * ins + k) * s->in_height;
                        for (int32_t j = 0; j < s->kernel_height; ++j) {
                            int32_t row = y0 * s->stride_y - s->padding_y + j * s->dilation_y;
                            for (int32_t i = 0; i < s->kernel_width; ++i, ++w) {
                                int32_t at = x0 * s->stride_x - s->padding_x + i * s->dilation_x;
                                if (row >= 0 && row < s->in_height && at >= 0 && at < s->in_width) {
                                    SUM step = x[(plane + row) * s->in_width + at] - s->zero;
                                    sum += step * *w;
                                }
                            }
                        }
                    }
                    *y++ = (Y)rescale(sum, c, r);
                }
            }
        }
    }
}
""",
    ),
    "linear": Kernel(
        {
            "rows": "int32_t",
            "ins": "int32_t",
            "outs": "int32_t",
            "zero": "int32_t",
            "x": "const X *",
            "weight": "const W *",
            "bias": "const int32_t *",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    for (int32_t row = 0; row < rows; ++row) {
        for (int32_t c = 0; c < outs; ++c) {
            SUM sum = bias ? bias[c] : 0;
            for (int32_t k = 0; k < ins; ++k) {
                SUM step = x[row * ins + k] - zero;
                sum += step * weight[c * ins + k];
            }
            *y++ = (Y)rescale(sum, c, r);
        }
    }
}
""",
    ),
    "add": Kernel(
        {
            "l": "const loops *",
            "a": "const X *",
            "zero_a": "int32_t",
            "factor_a": "int32_t",
            "b": "const X2 *",
            "zero_b": "int32_t",
            "factor_b": "int32_t",
            "shift": "int32_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t count = count_of(l->sizes);
    for (int32_t i = 0; i < count; ++i) {
        int64_t left = (int64_t)(a[place(i, l->sizes, l->a)] - zero_a) * factor_a;
        int64_t right = (int64_t)(b[place(i, l->sizes, l->b)] - zero_b) * factor_b;
        y[i] = (Y)saturate(round_shift(left + right, shift), r);
    }
}
""",
    ),
    "add_rescaled": Kernel(
        {
            "l": "const loops *",
            "lift": "int64_t",
            "a": "const X *",
            **dict.fromkeys(("zero_a", "multiplier_a", "shift_a"), "int32_t"),
            "b": "const X2 *",
            **dict.fromkeys(("zero_b", "multiplier_b", "shift_b", "sign"), "int32_t"),
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t count = count_of(l->sizes);
    for (int32_t i = 0; i < count; ++i) {
        int64_t left = (a[place(i, l->sizes, l->a)] - zero_a) * lift;
        int64_t right = (b[place(i, l->sizes, l->b)] - zero_b) * lift;
        left = round_shift(left * multiplier_a, shift_a);
        right = round_shift(right * multiplier_b, shift_b);
        y[i] = (Y)rescale(left + sign * right, 0, r);
    }
}
""",
    ),
    "add_bias": Kernel(
        {
            "batch": "int32_t",
            "channels": "int32_t",
            "inner": "int32_t",
            "x": "const X *",
            "zero": "int32_t",
            "factor": "int32_t",
            "bias": "const int64_t *",
            "shift": "int32_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    for (int32_t n = 0; n < batch; ++n) {
        for (int32_t c = 0; c < channels; ++c) {
            for (int32_t i = 0; i < inner; ++i) {
                int64_t sum = (int64_t)(*x++ - zero) * factor + bias[c];
                *y++ = (Y)saturate(round_shift(sum, shift), r);
            }
        }
    }
}
""",
    ),
    "multiply": Kernel(
        {
            "l": "const loops *",
            "a": "const X *",
            "zero_a": "int32_t",
            "b": "const X2 *",
            "zero_b": "int32_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t count = count_of(l->sizes);
    for (int32_t i = 0; i < count; ++i) {
        int64_t left = a[place(i, l->sizes, l->a)] - zero_a;
        int64_t right = b[place(i, l->sizes, l->b)] - zero_b;
        y[i] = (Y)rescale(left * right, 0, r);
    }
}
""",
    ),
    "matmul": Kernel(
        {
            "l": "const loops *",
            **dict.fromkeys(("rows", "inner", "columns"), "int32_t"),
            "a": "const X *",
            "zero_a": "int32_t",
            "b": "const X2 *",
            "zero_b": "int32_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t count = count_of(l->sizes);
    for (int32_t n = 0; n < count; ++n) {
        const X *left = a + place(n, l->sizes, l->a) * rows * inner;
        const X2 *right = b + place(n, l->sizes, l->b) * inner * columns;
        for (int32_t row = 0; row < rows; ++row) {
            for (int32_t column = 0; column < columns; ++column) {
                SUM sum = 0;
                for (int32_t k = 0; k < inner; ++k) {
                    SUM step = left[row * inner + k] - zero_a;
                    sum += step * (right[k * columns + column] - zero_b);
                }
                *y++ = (Y)rescale(sum, 0, r);
            }
        }
    }
}
""",
    ),
    "softmax": Kernel(
        {
            **dict.fromkeys(("outer", "count", "inner"), "int32_t"),
            "x": "const X *",
            "table": "const int32_t *",
            **dict.fromkeys(("wide", "multiplier", "divisor"), "int32_t"),
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    for (int32_t n = 0; n < outer * inner; ++n) {
        int32_t begin = n / inner * count * inner + n % inner;
        int32_t largest = INT32_MIN;
        int64_t sum = 0;
        for (int32_t k = 0; k < count; ++k) {
            int32_t code = x[begin + k * inner];
            largest = code > largest ? code : largest;
        }
        for (int32_t k = 0; k < count; ++k) {
            sum += exponential(table, largest - x[begin + k * inner], wide);
        }
        for (int32_t k = 0; k < count; ++k) {
            int32_t at = begin + k * inner;
            int64_t share = exponential(table, largest - x[at], wide);
            y[at] = (Y)saturate(round_quotient(share * multiplier, sum * divisor), r);
        }
    }
}
""",
    ),
    "masked_softmax": Kernel(
        {
            "l": "const loops *",
            **dict.fromkeys(("count", "inner"), "int32_t"),
            "x": "const X *",
            "hidden": "const uint8_t *",
            "table": "const int32_t *",
            **dict.fromkeys(("wide", "alone", "multiplier", "divisor"), "int32_t"),
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t rows = count_of(l->sizes) / count;
    for (int32_t n = 0; n < rows; ++n) {
        int32_t begin = n / inner * count * inner + n % inner;
        int32_t largest = INT32_MIN, seen = 0;
        int64_t sum = 0;
        for (int32_t k = 0; k < count; ++k) {
            int32_t at = begin + k * inner;
            if (!hidden[place(at, l->sizes, l->a)]) {
                largest = x[at] > largest ? x[at] : largest;
                ++seen;
            }
        }
        for (int32_t k = 0; k < count; ++k) {
            int32_t at = begin + k * inner, hides = hidden[place(at, l->sizes, l->a)];
            int32_t e = hides ? 0 : exponential(table, largest - x[at], wide);
            sum += seen == 0 ? alone : e;
        }
        sum = sum > 0 ? sum : 1;
        for (int32_t k = 0; k < count; ++k) {
            int32_t at = begin + k * inner, hides = hidden[place(at, l->sizes, l->a)];
            int32_t e = hides ? 0 : exponential(table, largest - x[at], wide);
            int64_t share = (int64_t)(seen == 0 ? alone : e) * multiplier;
            y[at] = (Y)saturate(round_quotient(share, sum * divisor), r);
        }
    }
}
""",
    ),
    "group_norm": Kernel(
        {
            **dict.fromkeys(("rows", "groups", "channels", "inner"), "int32_t"),
            "x": "const X *",
            "zero": "int32_t",
            **dict.fromkeys(("factor", "epsilon", "lift"), "int64_t"),
            **dict.fromkeys(("gain", "offset"), "const int32_t *"),
            "divisor": "int32_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t count = channels * inner;
    for (int32_t row = 0; row < rows; ++row, x += count) {
        int64_t sum = 0, squares = 0;
        for (int32_t k = 0; k < count; ++k) {
            int64_t step = x[k] - zero;
            sum += step;
            squares += step * step;
        }
        int64_t root = root_of((count * squares - sum * sum) * factor + epsilon);
        for (int32_t k = 0; k < count; ++k) {
            int32_t c = row % groups * channels + k / inner;
            int64_t centred = ((int64_t)count * (x[k] - zero) - sum) * lift;
            int64_t scaled = centred * gain[c] + root * offset[c];
            *y++ = (Y)saturate(round_quotient(scaled, root * divisor), r);
        }
    }
}
""",
    ),
    "rms_norm": Kernel(
        {
            **dict.fromkeys(("rows", "count"), "int32_t"),
            "x": "const X *",
            "zero": "int32_t",
            **dict.fromkeys(("factor", "epsilon", "lift"), "int64_t"),
            "gain": "const int32_t *",
            "divisor": "int32_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    for (int32_t row = 0; row < rows; ++row, x += count) {
        int64_t squares = 0;
        for (int32_t k = 0; k < count; ++k) {
            int64_t step = x[k] - zero;
            squares += step * step;
        }
        int64_t root = root_of(squares * factor + epsilon);
        for (int32_t k = 0; k < count; ++k) {
            int64_t scaled = (x[k] - zero) * lift * gain[k];
            *y++ = (Y)saturate(round_quotient(scaled, root * divisor), r);
        }
    }
}
""",
    ),
    "requantize": Kernel(
        {
            "count": "int32_t",
            "x": "const X *",
            "zero": "int32_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = (Y)rescale(x[i] - zero, 0, r);
    }
}
""",
    ),
    "lookup": Kernel(
        {
            "count": "int32_t",
            "x": "const X *",
            "first": "int32_t",
            "table": "const Y *",
            "y": "Y *",
        },
        """\
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = table[x[i] - first];
    }
}
""",
    ),
    "copy": Kernel(
        {
            "l": "const loops *",
            "begin_x": "int32_t",
            "x": "const X *",
            "begin_y": "int32_t",
            "y": "Y *",
        },
        """\
{
    int32_t count = count_of(l->sizes);
    for (int32_t i = 0; i < count; ++i) {
        y[begin_y + place(i, l->sizes, l->y)] = x[begin_x + place(i, l->sizes, l->a)];
    }
}
""",
    ),
    "fill": Kernel(
        {"count": "int32_t", "fill": "Y", "y": "Y *"},
        """\
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = fill;
    }
}
""",
    ),
    "gather": Kernel(
        {
            "count": "int32_t",
            "x": "const X *",
            "places": "const int32_t *",
            "fill": "Y",
            "y": "Y *",
        },
        """\
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = places[i] < 0 ? fill : x[places[i]];
    }
}
""",
    ),
    "mean": Kernel(
        {
            "l": "const loops *",
            "over": "const int32_t *",
            "steps": "const int32_t *",
            "x": "const X *",
            "zero": "int32_t",
            "divisor": "int64_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    int32_t count = count_of(l->sizes), summed = count_of(over);
    for (int32_t i = 0; i < count; ++i) {
        int64_t sum = 0;
        for (int32_t k = 0; k < summed; ++k) {
            sum += x[place(i, l->sizes, l->a) + place(k, over, steps)] - zero;
        }
        y[i] = (Y)average(sum, divisor, r);
    }
}
""",
    ),
    "average_pool2d": Kernel(
        {
            "s": "const pool_shape *",
            "x": "const X *",
            "zero": "int32_t",
            "divisor": "int64_t",
            "r": "const rescaling *",
            "y": "Y *",
        },
        """\
{
    for (int32_t plane = 0; plane < s->planes; ++plane) {
        for (int32_t y0 = 0; y0 < s->out_height; ++y0) {
            for (int32_t x0 = 0; x0 < s->out_width; ++x0) {
                int64_t sum = 0;
"""
        + _WINDOW
        + """\
                        sum += x[(plane * s->in_height + row) * s->in_width + column] - zero;
                    }
                }
                *y++ = (Y)average(sum, divisor, r);
            }
        }
    }
}
""",
    ),
    "max_pool2d": Kernel(
        {"s": "const pool_shape *", "x": "const X *", "y": "Y *"},
        """\
{
    for (int32_t plane = 0; plane < s->planes; ++plane) {
        for (int32_t y0 = 0; y0 < s->out_height; ++y0) {
            for (int32_t x0 = 0; x0 < s->out_width; ++x0) {
                int32_t largest = INT32_MIN;
"""
        + _WINDOW
        + """\
                        int32_t found = x[(plane * s->in_height + row) * s->in_width + column];
                        largest = found > largest ? found : largest;
                    }
                }
                *y++ = (Y)largest;
            }
        }
    }
}
""",
    ),
}
