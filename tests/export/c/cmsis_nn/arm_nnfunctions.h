/* What CMSIS-NN documents of the functions that programs call, in plain loops: for tests where its
   sources are not there. Types and declarations are those of CMSIS-NN 7. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct { void *buf; int32_t size; } cmsis_nn_context;
typedef struct { int32_t w, h; } cmsis_nn_tile;
typedef struct { int32_t n, h, w, c; } cmsis_nn_dims;
typedef struct { int32_t min, max; } cmsis_nn_activation;
typedef struct { int32_t *multiplier, *shift; } cmsis_nn_per_channel_quant_params;
typedef struct { int32_t multiplier, shift; } cmsis_nn_per_tensor_quant_params;
typedef struct {
    int32_t input_offset, output_offset;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_conv_params;
typedef struct {
    int32_t input_offset, output_offset, ch_mult;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_dw_conv_params;
typedef struct { cmsis_nn_tile stride, padding; cmsis_nn_activation activation; } cmsis_nn_pool_params;
typedef struct {
    int32_t input_offset, filter_offset, output_offset;
    cmsis_nn_activation activation;
} cmsis_nn_fc_params;
typedef struct {
    const bool adj_x, adj_y;
    cmsis_nn_fc_params fc_params;
} cmsis_nn_bmm_params;

/* value * multiplier / 2^(31 - shift): rounded once, halves up; or as gemmlowp does it. */
static int32_t requantized(int64_t value, int32_t multiplier, int32_t shift)
{
    int64_t product = value * multiplier;
#if defined(CMSIS_NN_USE_SINGLE_ROUNDING)
    int64_t unit = (int64_t)1 << (31 - shift), sum = product + unit / 2;
    return (int32_t)(sum >= 0 ? sum / unit : -((unit - 1 - sum) / unit));
#else
    int64_t sum = product + ((int64_t)1 << 30), unit = (int64_t)1 << 31, down = (int64_t)1 << -shift;
    int64_t high = sum >= 0 ? sum / unit : -((unit - 1 - sum) / unit);
    return (int32_t)(high >= 0 ? (high + down / 2) / down : -((-high + down / 2) / down));
#endif
}

static int8_t code(int64_t value, int32_t multiplier, int32_t shift, int32_t zero, int32_t low,
                   int32_t high)
{
    int32_t found = requantized(value, multiplier, shift) + zero;
    return (int8_t)(found < low ? low : found > high ? high : found);
}

/* One result of a convolution; of `deep` ones the filter has its channels last. */
static int32_t correlation(cmsis_nn_tile stride, cmsis_nn_tile padding, cmsis_nn_tile dilation,
                           int32_t zero, const cmsis_nn_dims *in, const int8_t *x,
                           const cmsis_nn_dims *filter, const int8_t *weight, int32_t first,
                           int32_t count, int32_t channel, int32_t deep, int32_t row, int32_t column)
{
    int32_t sum = 0;
    for (int32_t j = 0; j < filter->h; ++j) {
        for (int32_t i = 0; i < filter->w; ++i) {
            int32_t y0 = row * stride.h - padding.h + j * dilation.h;
            int32_t x0 = column * stride.w - padding.w + i * dilation.w;
            if (y0 < 0 || y0 >= in->h || x0 < 0 || x0 >= in->w) {
                continue;
            }
            for (int32_t k = 0; k < count; ++k) {
                int32_t w = deep ? (j * filter->w + i) * filter->c + channel
                                 : ((channel * filter->h + j) * filter->w + i) * count + k;
                sum += (x[(y0 * in->w + x0) * in->c + first + k] + zero) * weight[w];
            }
        }
    }
    return sum;
}

static int arm_convolve_s8(const cmsis_nn_context *context, const cmsis_nn_conv_params *p,
                           const cmsis_nn_per_channel_quant_params *scales, const cmsis_nn_dims *in,
                           const int8_t *x, const cmsis_nn_dims *filter, const int8_t *weight,
                           const cmsis_nn_dims *biases, const int32_t *bias,
                           const cmsis_nn_dims *upscale, const cmsis_nn_dims *out, int8_t *y)
{
    int32_t needed = 4 * ((filter->w * filter->h * in->c + 3) / 4 * 4);
    if (!context->buf || context->size < needed || upscale || biases->c != out->c ||
        (!bias && filter->c != in->c)) { /* version 7 reads biases of later groups */
        return -1;
    }
    for (int32_t n = 0; n < in->n; ++n, x += in->h * in->w * in->c) {
        for (int32_t row = 0; row < out->h; ++row) {
            for (int32_t column = 0; column < out->w; ++column) {
                for (int32_t c = 0; c < out->c; ++c) {
                    int32_t first = c / (out->c / (in->c / filter->c)) * filter->c;
                    int32_t sum = correlation(p->stride, p->padding, p->dilation, p->input_offset,
                                              in, x, filter, weight, first, filter->c, c, 0, row,
                                              column);
                    *y++ = code(sum + (bias ? bias[c] : 0), scales->multiplier[c], scales->shift[c],
                                p->output_offset, p->activation.min, p->activation.max);
                }
            }
        }
    }
    return 0;
}

static int arm_depthwise_conv_s8(const cmsis_nn_context *context, const cmsis_nn_dw_conv_params *p,
                                 const cmsis_nn_per_channel_quant_params *scales,
                                 const cmsis_nn_dims *in, const int8_t *x,
                                 const cmsis_nn_dims *filter, const int8_t *weight,
                                 const cmsis_nn_dims *biases, const int32_t *bias,
                                 const cmsis_nn_dims *out, int8_t *y)
{
    (void)context;
    (void)biases;
    for (int32_t n = 0; n < in->n; ++n, x += in->h * in->w * in->c) {
        for (int32_t row = 0; row < out->h; ++row) {
            for (int32_t column = 0; column < out->w; ++column) {
                for (int32_t c = 0; c < out->c; ++c) {
                    int32_t sum = correlation(p->stride, p->padding, p->dilation, p->input_offset,
                                              in, x, filter, weight, c / p->ch_mult, 1, c, 1, row,
                                              column);
                    *y++ = code(sum + (bias ? bias[c] : 0), scales->multiplier[c], scales->shift[c],
                                p->output_offset, p->activation.min, p->activation.max);
                }
            }
        }
    }
    return 0;
}

static int arm_fully_connected_per_channel_s8(
    const cmsis_nn_context *context, const cmsis_nn_fc_params *p,
    const cmsis_nn_per_channel_quant_params *scales, const cmsis_nn_dims *in, const int8_t *x,
    const cmsis_nn_dims *filter, const int8_t *weight, const cmsis_nn_dims *biases,
    const int32_t *bias, const cmsis_nn_dims *out, int8_t *y)
{
    (void)context;
    (void)biases;
    for (int32_t n = 0; n < in->n; ++n, x += filter->n) {
        for (int32_t c = 0; c < out->c; ++c) {
            int32_t sum = bias ? bias[c] : 0;
            for (int32_t k = 0; k < filter->n; ++k) {
                sum += (x[k] + p->input_offset) * weight[c * filter->n + k];
            }
            *y++ = code(sum, scales->multiplier[c], scales->shift[c], p->output_offset,
                        p->activation.min, p->activation.max);
        }
    }
    return 0;
}

/* Products of matrices [rows, inner] and [columns, inner], in which n and h count matrices. */
static int arm_batch_matmul_s8(const cmsis_nn_context *context, const cmsis_nn_bmm_params *p,
                               const cmsis_nn_per_tensor_quant_params *scale,
                               const cmsis_nn_dims *left, const int8_t *a,
                               const cmsis_nn_dims *right, const int8_t *b,
                               const cmsis_nn_dims *out, int8_t *y)
{
    const cmsis_nn_fc_params *f = &p->fc_params;
    (void)context;
    if (p->adj_x || p->adj_y || left->n != right->n || left->h != 1 || right->h != 1 ||
        out->n != left->n || out->w != left->w || out->c != right->w || left->c != right->c) {
        return -1;
    }
    for (int32_t n = 0; n < out->n; ++n, b += right->w * right->c) {
        for (int32_t row = 0; row < left->w; ++row, a += left->c) {
            for (int32_t column = 0; column < right->w; ++column) {
                int32_t sum = 0;
                for (int32_t k = 0; k < left->c; ++k) {
                    int32_t other = b[column * right->c + k] + f->filter_offset;
                    sum += (a[k] + f->input_offset) * other;
                }
                *y++ = code(sum, scale->multiplier, scale->shift, f->output_offset,
                            f->activation.min, f->activation.max);
            }
        }
    }
    return 0;
}

static int arm_elementwise_add_s8(const int8_t *a, const int8_t *b, int32_t zero_a,
                                  int32_t multiplier_a, int32_t shift_a, int32_t zero_b,
                                  int32_t multiplier_b, int32_t shift_b, int32_t lift, int8_t *y,
                                  int32_t zero, int32_t multiplier, int32_t shift, int32_t low,
                                  int32_t high, int32_t count)
{
    for (int32_t i = 0; i < count; ++i) {
        int32_t left = requantized((a[i] + zero_a) * ((int64_t)1 << lift), multiplier_a, shift_a);
        int32_t right = requantized((b[i] + zero_b) * ((int64_t)1 << lift), multiplier_b, shift_b);
        y[i] = code(left + right, multiplier, shift, zero, low, high);
    }
    return 0;
}

static int arm_elementwise_mul_s8(const int8_t *a, const int8_t *b, int32_t zero_a, int32_t zero_b,
                                  int8_t *y, int32_t zero, int32_t multiplier, int32_t shift,
                                  int32_t low, int32_t high, int32_t count)
{
    for (int32_t i = 0; i < count; ++i) {
        y[i] = code((a[i] + zero_a) * (b[i] + zero_b), multiplier, shift, zero, low, high);
    }
    return 0;
}

static int arm_max_pool_s8(const cmsis_nn_context *context, const cmsis_nn_pool_params *p,
                           const cmsis_nn_dims *in, const int8_t *x, const cmsis_nn_dims *window,
                           const cmsis_nn_dims *out, int8_t *y)
{
    (void)context;
    for (int32_t n = 0; n < in->n; ++n, x += in->h * in->w * in->c) {
        for (int32_t i = 0; i < out->h * out->w * out->c; ++i) {
            int32_t c = i % out->c, column = i / out->c % out->w, row = i / out->c / out->w;
            int32_t largest = p->activation.min;
            for (int32_t k = 0; k < window->h * window->w; ++k) {
                int32_t y0 = row * p->stride.h - p->padding.h + k / window->w;
                int32_t x0 = column * p->stride.w - p->padding.w + k % window->w;
                if (y0 >= 0 && y0 < in->h && x0 >= 0 && x0 < in->w) {
                    int32_t own = x[(y0 * in->w + x0) * in->c + c];
                    largest = own > largest ? own : largest;
                }
            }
            *y++ = (int8_t)largest;
        }
    }
    return 0;
}

#endif
