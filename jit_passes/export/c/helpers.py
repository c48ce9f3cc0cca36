"""The functions of C that kernels of a program call, as text."""

from __future__ import annotations

from collections.abc import Iterable

from .rounding import arithmetic

_ROOT = """\
/* floor(sqrt(x)), digit by digit, for x below 2^62. */
static int64_t root_of(int64_t x)
{
    int64_t root = 0;
    for (int64_t bit = (int64_t)1 << 30; bit > 0; bit >>= 1) {
        if ((root + bit) * (root + bit) <= x) {
            root += bit;
        }
    }
    return root;
}
"""

_EXPONENTIAL = """\
/* exp(-below * scale) * 2^20, of a table; or of two, for the low 8 bits and for the others. */
static int32_t exponential(const int32_t *table, int32_t below, int32_t wide)
{
    if (!wide) {
        return table[below];
    }
    int64_t product = (int64_t)table[below & 255] * table[256 + (below >> 8)];
    return (int32_t)((product + ((int64_t)1 << 39)) >> 40);
}
"""


def helpers(rounding: str) -> dict[str, str]:
    """Return all functions that kernels call, by name, each behind the functions that it calls."""
    return {**arithmetic(rounding), "root_of": _ROOT, "exponential": _EXPONENTIAL}


def called(rounding: str, bodies: Iterable[str]) -> list[str]:
    """Return the functions that these bodies call, directly or not.

    Args:
        rounding: of the target.
        bodies: of kernels.
    """
    kept, texts = list[str](), list(bodies)
    for name, text in reversed(helpers(rounding).items()):
        if any(f"{name}(" in body for body in texts):
            texts.append(text)
            kept.append(text)
    return kept[::-1]
