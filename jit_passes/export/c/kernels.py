"""The functions of C that the operators call, as text.

Each is written once for all types of codes: X, X2 and Y stand for those of operands and result, W
for that of weights, SUM for the accumulator. Loops are plain, since this is the program that a
kernel of hardware is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping

AXES = 6

# x >> n of a negative number is not defined by C99, so shifts go through numbers from 0 on.
_SHIFT = """\
/* floor(x / 2^n), of negative numbers too. */
static int64_t shift_down(int64_t x, int32_t n)
{
    return x >= 0 ? x >> n : -1 - ((-1 - x) >> n);
}
"""

_ROUND_SHIFT: Mapping[str, str] = {
    "truncate": "    return shift_down(x, n);\n",
    "half_up": "    return shift_down(x + (((int64_t)1 << n) >> 1), n);\n",
    "half_away": """\
    int64_t half = ((int64_t)1 << n) >> 1;
    return shift_down(x + half - (n > 0 && x < 0 ? 1 : 0), n);
""",
    "half_even": """\
    int64_t half = ((int64_t)1 << n) >> 1;
    if (n == 0) {
        return x;
    }
    return shift_down(x + half - (shift_down(x, n) % 2 == 0 ? 1 : 0), n);
""",
}

_ROUND_QUOTIENT: Mapping[str, str] = {
    "truncate": "    return quotient;\n",
    "half_up": "    return quotient + (2 * rest >= divisor ? 1 : 0);\n",
    "half_away": "    return quotient + (2 * rest - (x < 0 ? 1 : 0) >= divisor ? 1 : 0);\n",
    "half_even": """\
    int64_t odd = quotient % 2 != 0 ? 1 : 0;
    return quotient + (2 * rest + odd > divisor ? 1 : 0);
""",
}


def arithmetic(rounding: str) -> str:
    """Return the functions that round and saturate."""
    return f"""\
/* How a sum becomes a code: clamp(round(sum * multiplier / 2^shift) + zero, low, high). */
typedef struct {{
    const int32_t *multipliers; /* one, or one for each channel */
    const uint8_t *shifts;
    int32_t per_channel;
    int32_t zero;
    int32_t low;
    int32_t high;
}} rescaling;

{_SHIFT}
/* x / 2^n, rounded: {rounding}. */
static int64_t round_shift(int64_t x, int32_t n)
{{
{_ROUND_SHIFT[rounding]}}}

static int32_t saturate(int64_t x, const rescaling *r)
{{
    x += r->zero;
    return (int32_t)(x < r->low ? r->low : x > r->high ? r->high : x);
}}

static int32_t rescale(int64_t sum, int32_t channel, const rescaling *r)
{{
    int32_t k = r->per_channel ? channel : 0;
    return saturate(round_shift(sum * r->multipliers[k], r->shifts[k]), r);
}}
"""


def division(rounding: str) -> str:
    """Return the function that divides exactly, for averages."""
    return f"""\
/* x / divisor, rounded: {rounding}. The divisor is above 0. */
static int64_t round_quotient(int64_t x, int64_t divisor)
{{
    int64_t quotient = x / divisor - (x % divisor < 0 ? 1 : 0);
    int64_t rest = x - quotient * divisor;
{"    (void)rest;" if rounding == "truncate" else ""}
{_ROUND_QUOTIENT[rounding]}}}
""".replace("\n\n", "\n")


CONV2D = """\
typedef struct {
    int32_t batch, in_channels, in_height, in_width;
    int32_t out_channels, out_height, out_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
    int32_t groups;
    int32_t zero; /* of the input; the rim is 0 */
} conv2d_shape;
"""

LOOPS = f"""\
/* Axes of a loop over all numbers of a result, and steps in memory along each. */
typedef struct {{
    int32_t sizes[{AXES}];
    int32_t a[{AXES}];
    int32_t b[{AXES}];
    int32_t y[{AXES}];
}} loops;

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
"""

POOL = """\
typedef struct {
    int32_t planes, in_height, in_width, out_height, out_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
} pool_shape;
"""

# What must stand in front of a kernel.
TYPES: Mapping[str, str] = {
    "conv2d": CONV2D,
    "add": LOOPS,
    "multiply": LOOPS,
    "copy": LOOPS,
    "mean": LOOPS,
    "max_pool2d": POOL,
    "average_pool2d": POOL,
}

_WINDOW = """\
                for (int32_t j = 0; j < s->kernel_height; ++j) {
                    for (int32_t i = 0; i < s->kernel_width; ++i) {
                        int32_t row = y0 * s->stride_y - s->padding_y + j * s->dilation_y;
                        int32_t column = x0 * s->stride_x - s->padding_x + i * s->dilation_x;
                        if (row < 0 || row >= s->in_height || column < 0 || column >= s->in_width) {
                            continue;
                        }
"""

KERNELS: Mapping[str, str] = {
    "conv2d": """\
static void NAME(const conv2d_shape *s, const X *x, const W *weight, const int32_t *bias,
                 const rescaling *r, Y *y)
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
    "linear": """\
static void NAME(int32_t rows, int32_t ins, int32_t outs, int32_t zero, const X *x,
                 const W *weight, const int32_t *bias, const rescaling *r, Y *y)
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
    "add": """\
static void NAME(const loops *l, const X *a, int32_t zero_a, int32_t factor_a, const X2 *b,
                 int32_t zero_b, int32_t factor_b, int32_t shift, const rescaling *r, Y *y)
{
    int32_t count = count_of(l->sizes);
    for (int32_t i = 0; i < count; ++i) {
        int64_t left = (int64_t)(a[place(i, l->sizes, l->a)] - zero_a) * factor_a;
        int64_t right = (int64_t)(b[place(i, l->sizes, l->b)] - zero_b) * factor_b;
        y[i] = (Y)saturate(round_shift(left + right, shift), r);
    }
}
""",
    "add_bias": """\
static void NAME(int32_t batch, int32_t channels, int32_t inner, const X *x, int32_t zero,
                 int32_t factor, const int64_t *bias, int32_t shift, const rescaling *r, Y *y)
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
    "multiply": """\
static void NAME(const loops *l, const X *a, int32_t zero_a, const X2 *b, int32_t zero_b,
                 const rescaling *r, Y *y)
{
    int32_t count = count_of(l->sizes);
    for (int32_t i = 0; i < count; ++i) {
        int64_t left = a[place(i, l->sizes, l->a)] - zero_a;
        int64_t right = b[place(i, l->sizes, l->b)] - zero_b;
        y[i] = (Y)rescale(left * right, 0, r);
    }
}
""",
    "requantize": """\
static void NAME(int32_t count, const X *x, int32_t zero, const rescaling *r, Y *y)
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = (Y)rescale(x[i] - zero, 0, r);
    }
}
""",
    "lookup": """\
static void NAME(int32_t count, const X *x, int32_t first, const Y *table, Y *y)
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = table[x[i] - first];
    }
}
""",
    "copy": """\
static void NAME(const loops *l, int32_t begin_x, const X *x, int32_t begin_y, Y *y)
{
    int32_t count = count_of(l->sizes);
    for (int32_t i = 0; i < count; ++i) {
        y[begin_y + place(i, l->sizes, l->y)] = x[begin_x + place(i, l->sizes, l->a)];
    }
}
""",
    "fill": """\
static void NAME(int32_t count, Y fill, Y *y)
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = fill;
    }
}
""",
    "gather": """\
static void NAME(int32_t count, const X *x, const int32_t *places, Y fill, Y *y)
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = places[i] < 0 ? fill : x[places[i]];
    }
}
""",
    "mean": """\
static void NAME(const loops *l, const int32_t *over, const int32_t *steps, const X *x,
                 int32_t zero, int64_t divisor, const rescaling *r, Y *y)
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
    "average_pool2d": """\
static void NAME(const pool_shape *s, const X *x, int32_t zero, int64_t divisor, const rescaling *r,
                 Y *y)
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
    "max_pool2d": """\
static void NAME(const pool_shape *s, const X *x, Y *y)
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
}

AVERAGE = """\
/* An average as a code; a divisor of 0 says that the shift divides by the count. */
static int32_t average(int64_t sum, int64_t divisor, const rescaling *r)
{
    int64_t product = sum * r->multipliers[0];
    return saturate(divisor ? round_quotient(product, divisor) : round_shift(product, r->shifts[0]),
                    r);
}
"""
