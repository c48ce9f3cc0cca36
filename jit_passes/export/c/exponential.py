"""The function of C that softmax takes exponentials from."""

EXPONENTIAL = """\
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
