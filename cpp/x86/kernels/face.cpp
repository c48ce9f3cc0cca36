// The kernels, and the choice of a number of threads, for tests and benchmarks, which call them by ctypes. Images
// and parameters are the structs of kernels.h, whose fields these callers repeat. A call computes a whole result on
// one thread, in parts of `part` items.
#include <algorithm>
#include <memory>

#include "amx.h"
#include "attention.h"
#include "copy_across.h"
#include "crowd.h"
#include "dynamic.h"
#include "floats.h"
#include "grouped.h"

#define JIT_PASSES_FACE extern "C" __attribute__((visibility("default")))

using namespace jit_passes::x86;

namespace {

template <typename Run>
void inParts(int64_t items, int64_t part, const Run& run) {
  for (int64_t begin = 0; begin < items; begin += part) {
    run(begin, std::min(items, begin + part));
  }
}

Form formOf(int32_t form) { return static_cast<Form>(form); }

std::vector<Span> spansAt(const Span*& spans, int64_t count) {
  spans += count;
  return {spans - count, spans};
}

} // namespace

JIT_PASSES_FACE bool jit_passes_x86_has_form(int32_t form) { return hasForm(formOf(form)); }

// Runs multiply-adds in registers `count` times, and returns their number in each round: the peak of a form's
// instructions.
JIT_PASSES_FACE int64_t jit_passes_x86_multiply_add(int64_t count, [[maybe_unused]] int32_t form) {
#ifdef JIT_PASSES_HAS_VNNI
#define JIT_PASSES_LOOP(sums, body) \
  "test %0, %0\n jz 2f\n1: .irp sum," sums "\n" body "\n.endr\ndec %0\njnz 1b\nvzeroupper\n2:\n"
#define JIT_PASSES_TWELVE "0,1,2,3,4,5,6,7,8,9,10,11"
  switch (formOf(form)) {
#ifdef JIT_PASSES_HAS_AMX
    case Form::Amx: {
      const AmxSums shapes(TwoSixteens::kPixels, TwoSixteens::kPixels);
      asm volatile(JIT_PASSES_LOOP("0,1,2,3", "tdpbusd %%tmm6, %%tmm4, %%tmm\\sum")
                   : "+r"(count)::"cc", "memory");
      return 4 * 16 * 16 * 64;
    }
#endif
    case Form::Avx512:
      asm volatile(JIT_PASSES_LOOP(
                       JIT_PASSES_TWELVE ",16,17,18,19,20,21,22,23", "vpdpbusd %%zmm28, %%zmm29, %%zmm\\sum")
                   : "+r"(count)::"cc", "memory");
      return 20 * 64;
    case Form::AvxVnni:
      asm volatile(JIT_PASSES_LOOP(JIT_PASSES_TWELVE, "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm\\sum")
                   : "+r"(count)::"cc", "memory");
      return 12 * 32;
    case Form::Avx2:
      asm volatile(
          JIT_PASSES_LOOP(
              JIT_PASSES_TWELVE, "vpmaddwd %%ymm12, %%ymm13, %%ymm14\nvpaddd %%ymm14, %%ymm\\sum, %%ymm\\sum")
          : "+r"(count)::"cc", "memory");
      return 12 * 16;
    default: break;
  }
#endif
  return 0 * count;
}

JIT_PASSES_FACE void jit_passes_x86_fill_border(const Image* image, const Border* border, uint8_t value) {
  const FillBorder fill{*border, value};
  fill.run(*image, 0, fill.items(*image));
}

JIT_PASSES_FACE Convolution* jit_passes_x86_convolution(
    const Window* window, int64_t in_channels, int64_t out_channels, const int8_t* weight, int32_t zero_point,
    bool dense, int32_t form) {
  try {
    return new Convolution(*window, in_channels, out_channels, weight, zero_point, dense, formOf(form));
  } catch (const std::exception&) {
    return nullptr;
  }
}

JIT_PASSES_FACE void jit_passes_x86_convolution_delete(Convolution* convolution) { delete convolution; }

JIT_PASSES_FACE void jit_passes_x86_convolution_border(
    const Convolution* convolution, const Image* in, const Image* out, Border* border) {
  *border = convolution->border(*in, *out);
}

JIT_PASSES_FACE void jit_passes_x86_convolution_run(
    const Convolution* convolution, const Image* in, const Image* out, const Requantize* requantize,
    int64_t part) {
  inParts(convolution->items(*in, *out, requantize->residual), part, [&](int64_t begin, int64_t end) {
    convolution->run(*in, *out, *requantize, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_quantize(
    const float* in, const Strides* strides, const Image* out, float inverse_scale, float offset,
    const CodeRange* range, int32_t form, int64_t part) {
  const Quantize quantize{inverse_scale, offset, *range, formOf(form)};
  inParts(quantize.items(*out), part, [&](int64_t begin, int64_t end) {
    quantize.run(in, *strides, *out, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_dequantize(
    const Image* in, float* out, const Strides* strides, float scale, int32_t zero_point, int32_t form,
    int64_t part) {
  const Dequantize dequantize{scale, zero_point, formOf(form)};
  inParts(dequantize.items(*in), part, [&](int64_t begin, int64_t end) {
    dequantize.run(*in, out, *strides, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_add(
    const Image* a, const Image* b, const Image* out, float a_multiplier, float b_multiplier, float offset,
    const CodeRange* range, const uint8_t* table, int32_t form, int64_t part) {
  const Add add{a_multiplier, b_multiplier, offset, *range, table, formOf(form)};
  inParts(add.items(*out), part, [&](int64_t begin, int64_t end) { add.run(*a, *b, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_multiply(
    const Image* a, const Image* b, const Image* out, int32_t a_zero_point, int32_t b_zero_point,
    float multiplier, float offset, const CodeRange* range, const uint8_t* table, int32_t form,
    int64_t part) {
  const Multiply multiply{a_zero_point, b_zero_point, multiplier, offset, *range, table, formOf(form)};
  inParts(multiply.items(*out), part, [&](int64_t begin, int64_t end) {
    multiply.run(*a, *b, *out, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_look_up(
    const Image* in, const Image* out, const uint8_t* table, int32_t form, int64_t part) {
  const LookUp look_up{table, formOf(form)};
  inParts(look_up.items(*out), part, [&](int64_t begin, int64_t end) { look_up.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_resample(
    const Image* in, const Image* out, const int64_t* z, const int64_t* y, const int64_t* x, int64_t part) {
  const Resample resample{{z, z + out->depth}, {y, y + out->height}, {x, x + out->width}};
  inParts(
      resample.items(*out), part, [&](int64_t begin, int64_t end) { resample.run(*in, *out, begin, end); });
}

// The spans of one axis, adaptive ones if the kernel is 0.
JIT_PASSES_FACE void jit_passes_x86_spans(
    int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, int64_t pad_before,
    int64_t pad_after, bool include_pad, Span* spans) {
  const auto found = kernel
                         ? windowSpans(in, out, kernel, stride, dilation, pad_before, pad_after, include_pad)
                         : adaptiveSpans(in, out);
  std::copy(found.begin(), found.end(), spans);
}

// `spans` are the spans of depth, height and width, one after the other.
JIT_PASSES_FACE void jit_passes_x86_max_pool(
    const Image* in, const Image* out, const Span* spans, int64_t dilation_d, int64_t dilation_h,
    int64_t dilation_w, int32_t form, int64_t part) {
  const MaxPool pool{
      spansAt(spans, out->depth),
      spansAt(spans, out->height),
      spansAt(spans, out->width),
      dilation_d,
      dilation_h,
      dilation_w,
      formOf(form)};
  inParts(pool.items(*out), part, [&](int64_t begin, int64_t end) { pool.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_average_pool(
    const Image* in, const Image* out, const Span* spans, double ratio, int32_t in_zero_point, float offset,
    int64_t divisor, const CodeRange* range, int32_t form, int64_t part) {
  const AveragePool pool{
      spansAt(spans, out->depth),
      spansAt(spans, out->height),
      spansAt(spans, out->width),
      ratio,
      in_zero_point,
      offset,
      divisor,
      *range,
      formOf(form)};
  inParts(pool.items(*out), part, [&](int64_t begin, int64_t end) { pool.run(*in, *out, begin, end); });
}

// The bytes of the packed right operand.
JIT_PASSES_FACE int64_t jit_passes_x86_matrix_product_bytes(const Image* b, bool transposed) {
  MatrixProduct product;
  product.transposed = transposed;
  return product.packedBytes(*b);
}

JIT_PASSES_FACE void jit_passes_x86_matrix_product(
    const Image* a, const Image* b, const Image* out, uint8_t* packed, bool transposed, int32_t a_zero_point,
    int32_t b_zero_point, float multiplier, float offset, const CodeRange* range, const uint8_t* table,
    int32_t form, int64_t part) {
  const MatrixProduct product{transposed, a_zero_point, b_zero_point, multiplier,
                              offset,     *range,       table,        formOf(form)};
  inParts(
      product.packItems(*b), part, [&](int64_t begin, int64_t end) { product.pack(*b, packed, begin, end); });
  inParts(product.items(*out), part, [&](int64_t begin, int64_t end) {
    product.run(*a, *b, packed, *out, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_softmax(
    const Image* in, const Image* out, double in_scale, double out_scale, float offset,
    const CodeRange* range, int32_t form, int64_t part) {
  Softmax softmax(in_scale, out_scale, formOf(form));
  softmax.offset = offset, softmax.range = *range;
  inParts(softmax.items(*out), part, [&](int64_t begin, int64_t end) { softmax.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_layer_norm(
    const Image* in, const Image* out, const float* multiplier, const float* offset, double eps,
    const CodeRange* range, int32_t form, int64_t part) {
  const LayerNorm norm{multiplier, offset, eps, *range, formOf(form)};
  inParts(norm.items(*out), part, [&](int64_t begin, int64_t end) { norm.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_group_norm(
    const Image* in, const Image* out, int64_t groups, const float* multiplier, const float* offset,
    double eps, const CodeRange* range, int64_t part) {
  const GroupNorm norm{groups, multiplier, offset, eps, *range};
  inParts(norm.items(*out), part, [&](int64_t begin, int64_t end) { norm.run(*in, *out, begin, end); });
}

// An operand in codes has a scale and a zero point. A scale of 0 means float32.
JIT_PASSES_FACE void jit_passes_x86_add_floats(
    const Image* a, const Image* b, const Image* out, float a_scale, int32_t a_zero_point, float b_scale,
    int32_t b_zero_point, float b_factor, int64_t part) {
  const AddFloats add{
      {a_scale == 0, a_scale, a_zero_point}, {b_scale == 0, b_scale, b_zero_point}, 1, b_factor};
  inParts(add.items(*out), part, [&](int64_t begin, int64_t end) { add.run(*a, *b, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_layer_norm_floats(
    const Image* in, const Image* floats, const Image* codes, const float* weight, const float* bias,
    double eps, bool centred, float inverse_scale, float offset, const CodeRange* range, int32_t form,
    int64_t part) {
  const LayerNormFloats norm{weight, bias, eps, centred, {inverse_scale, offset, *range}, formOf(form)};
  inParts(
      norm.items(*in), part, [&](int64_t begin, int64_t end) { norm.run(*in, floats, codes, begin, end); });
}

// Rows of `in` as codes, with the grid of each.
JIT_PASSES_FACE void jit_passes_x86_quantize_rows(
    const Image* in, RowGrid* grids, uint8_t* codes, bool per_row, int64_t range, bool steps, int32_t form,
    int64_t part) {
  const QuantizeRows quantize{static_cast<RangeForm>(range), steps, formOf(form)};
  const int64_t rows = quantize.items(*in);
  if (per_row) {
    inParts(rows, part, [&](int64_t begin, int64_t end) { quantize.run(*in, grids, codes, begin, end); });
    return;
  }
  Extent parts[Measure::kParts];
  const Measure measure{formOf(form)};
  inParts(measure.items(*in), part, [&](int64_t begin, int64_t end) { measure.run(*in, parts, begin, end); });
  const auto infinite = std::make_unique<bool[]>(rows);
  inParts(rows, part, [&](int64_t begin, int64_t end) {
    quantize.run(*in, parts, infinite.get(), codes, begin, end);
  });
  const RowGrid grid = gridOf(extentOf(parts), quantize.range);
  for (int64_t row = 0; row < rows; ++row) {
    grids[row] = infinite[row] ? withoutNumbers(grid) : grid;
  }
}

JIT_PASSES_FACE void jit_passes_x86_convolution_run_floats(
    const Convolution* convolution, const Image* in, const Image* out, const float* scales, const float* bias,
    const int32_t* sums, const RowGrid* grids, bool per_row, int64_t function, float first, float second,
    const Image* residual, const ToCodes* codes, int32_t form, int64_t part) {
  const auto which = static_cast<FloatFunction::Which>(function);
  const SumsToFloats how{scales,   bias, sums, grids, per_row, {which, first, second, formOf(form)},
                         residual, codes};
  inParts(convolution->items(*in, *out, residual), part, [&](int64_t begin, int64_t end) {
    convolution->run(*in, *out, how, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_function(
    const float* in, float* out, int64_t count, int64_t function, float first, float second, int32_t form) {
  FloatFunction{static_cast<FloatFunction::Which>(function), first, second, formOf(form)}.run(in, out, count);
}

JIT_PASSES_FACE int64_t jit_passes_x86_float_product_bytes(const Image* b, bool transposed) {
  return FloatProduct{transposed}.packedBytes(*b);
}

JIT_PASSES_FACE void jit_passes_x86_float_product(
    const Image* a, const Image* b, const Image* out, uint8_t* packed, bool transposed, bool in_place,
    int32_t form, int64_t part) {
  const FloatProduct product{transposed, {}, formOf(form), in_place};
  inParts(in_place ? 0 : product.packItems(*b), part, [&](int64_t begin, int64_t end) {
    product.pack(*b, packed, begin, end);
  });
  inParts(product.items(*out), part, [&](int64_t begin, int64_t end) {
    product.run(*a, *b, packed, *out, begin, end);
  });
}

JIT_PASSES_FACE int64_t jit_passes_x86_grouped_bytes(const GroupedShape* shape) { return shape->bytes(); }

JIT_PASSES_FACE void jit_passes_x86_pack_grouped(
    const GroupedShape* shape, const int8_t* codes, const float* scales, const int8_t* zero_points,
    const float* bias, uint8_t* packed) {
  packGrouped(*shape, codes, scales, zero_points, bias, packed);
}

JIT_PASSES_FACE void jit_passes_x86_grouped_codes(
    const GroupedShape* shape, const uint8_t* packed, const int8_t* zero_points, const uint8_t* codes,
    const RowGrid* grids, bool per_row, const Image* residual, const Image* out, int32_t form, int64_t part) {
  const GroupedLinear linear{*shape, packed, zero_points, {}, residual, formOf(form)};
  inParts(linear.items(), part, [&](int64_t begin, int64_t end) {
    linear.run(codes, grids, per_row, *out, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_grouped_floats(
    const GroupedShape* shape, const uint8_t* packed, const int8_t* zero_points, const Image* in,
    int64_t function, const Image* out, int32_t form, int64_t part) {
  const FloatFunction own{static_cast<FloatFunction::Which>(function), 0, 0, formOf(form)};
  const GroupedLinear linear{*shape, packed, zero_points, own, nullptr, formOf(form)};
  inParts(linear.items(), part, [&](int64_t begin, int64_t end) { linear.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_copy_across(
    const Image* in, int64_t in_channel, const Image* out, int64_t out_channel, int64_t bytes, int32_t form,
    int64_t part) {
  const CopyAcross copy{in_channel, out_channel, bytes, formOf(form)};
  inParts(copy.items(*out), part, [&](int64_t begin, int64_t end) { copy.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_multiply_floats(
    const Image* a, const Image* b, const Image* out, float a_scale, int32_t a_zero_point, float b_scale,
    int32_t b_zero_point, int64_t part) {
  const MultiplyFloats multiply{{a_scale == 0, a_scale, a_zero_point}, {b_scale == 0, b_scale, b_zero_point}};
  inParts(multiply.items(*out), part, [&](int64_t begin, int64_t end) {
    multiply.run(*a, *b, *out, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_softmax_floats(
    const Image* in, const Image* floats, const Image* codes, float inverse_scale, float offset,
    const CodeRange* range, bool hides, int32_t form, int64_t part) {
  const SoftmaxFloats softmax{{inverse_scale, offset, *range}, hides, formOf(form)};
  inParts(softmax.items(*in), part, [&](int64_t begin, int64_t end) {
    softmax.run(*in, floats, codes, begin, end);
  });
}

JIT_PASSES_FACE void jit_passes_x86_log_softmax_floats(
    const Image* in, const Image* out, int32_t form, int64_t part) {
  const LogSoftmaxFloats softmax{formOf(form)};
  inParts(softmax.items(*out), part, [&](int64_t begin, int64_t end) { softmax.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_reduce_floats(
    const Image* in, const Image* out, int64_t which, int32_t form, int64_t part) {
  const ReduceFloats reduce{static_cast<ReduceFloats::Which>(which), formOf(form)};
  inParts(reduce.items(*out), part, [&](int64_t begin, int64_t end) { reduce.run(*in, *out, begin, end); });
}

JIT_PASSES_FACE void jit_passes_x86_select_floats(
    const Image* c, const Image* a, const Image* b, const Image* out, int64_t part) {
  const SelectFloats select;
  inParts(select.items(*out), part, [&](int64_t begin, int64_t end) {
    select.run(*c, *a, *b, *out, begin, end);
  });
}

JIT_PASSES_FACE Crowd* jit_passes_x86_crowd() { return new Crowd; }

JIT_PASSES_FACE void jit_passes_x86_delete_crowd(Crowd* crowd) { delete crowd; }

JIT_PASSES_FACE int32_t jit_passes_x86_crowd_threads(const Crowd* crowd, int32_t most, int64_t now) {
  return crowd->threads(most, now);
}

JIT_PASSES_FACE void jit_passes_x86_crowd_finished(
    Crowd* crowd, int32_t left_out, bool was_late, int64_t begun, int64_t now) {
  crowd->finished(left_out, was_late, begun, now);
}
