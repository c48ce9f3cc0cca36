"""Functions in C that round and saturate, as text."""

from __future__ import annotations

from collections.abc import Mapping

from ...targets.fixed_point.rescale import rounding_of_quotients

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
    "double_round": """\
    int64_t half = ((int64_t)1 << n) >> 1, first = n > 31 ? (int64_t)1 << 30 : 0;
    return shift_down(x + half + (x < 0 ? -first : first), n);
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


def arithmetic(rounding: str) -> dict[str, str]:
    """Return the functions that round and saturate, each behind the functions that it calls."""
    quotient = rounding_of_quotients(rounding)
    return {
        "shift_down": _SHIFT,
        "round_shift": f"""\
/* x / 2^n, rounded: {rounding}. */
static int64_t round_shift(int64_t x, int32_t n)
{{
{_ROUND_SHIFT[rounding]}}}
""",
        "saturate": _SATURATE,
        "rescale": _RESCALE,
        "round_quotient": f"""\
/* x / divisor, rounded: {quotient}. The divisor is above 0. */
static int64_t round_quotient(int64_t x, int64_t divisor)
{{
    int64_t quotient = x / divisor - (x % divisor < 0 ? 1 : 0);
    int64_t rest = x - quotient * divisor;
{"    (void)rest;" if quotient == "truncate" else ""}
{_ROUND_QUOTIENT[quotient]}}}
""".replace("\n\n", "\n"),
        "average": _AVERAGE,
    }


_SATURATE = """\
static int32_t saturate(int64_t x, const rescaling *r)
{
    x += r->zero;
    return (int32_t)(x < r->low ? r->low : x > r->high ? r->high : x);
}
"""

_RESCALE = """\
static int32_t rescale(int64_t sum, int32_t channel, const rescaling *r)
{
    int32_t k = r->per_channel ? channel : 0;
    return saturate(round_shift(sum * r->multipliers[k], r->shifts[k]), r);
}
"""

_AVERAGE = """\
/* An average as a code; a divisor of 0 says that the shift divides by the count. */
static int32_t average(int64_t sum, int64_t divisor, const rescaling *r)
{
    int64_t rescaled = round_shift(sum * r->multipliers[0], r->shifts[0]);
    return saturate(divisor ? round_quotient(rescaled, divisor) : rescaled, r);
}
"""
