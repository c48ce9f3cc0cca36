// Sums, products and quotients of float32.
#include "floats.h"

#include <algorithm>

#include "plain.h"

namespace jit_passes::x86 {
namespace {

// A separate function, so that no compiler fuses its product with the sum: the product must be rounded before.
JIT_PASSES_VECTORIZED void floatsOfCodes(
    const uint8_t* in, int64_t count, float scale, int32_t zero_point, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(in[i] - zero_point) * scale;
  }
}

// `out` may be an operand. A loop with a check for overlap would compute numbers one by one in that case.
JIT_PASSES_VECTORIZED void addFloats(
    const float* a, const float* b, int64_t count, float a_factor, float b_factor, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i] = __builtin_fmaf(b[i], b_factor, a[i] * a_factor);
  }
}

JIT_PASSES_VECTORIZED void multiplyFloats(const float* a, const float* b, int64_t count, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i] = a[i] * b[i];
  }
}

JIT_PASSES_VECTORIZED void divideFloats(const float* a, const float* b, int64_t count, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i] = a[i] / b[i];
  }
}

JIT_PASSES_VECTORIZED void fillFloats(
    const float* a, const float* b, int64_t count, float number, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i] = b[i] == 0 ? a[i] : number;
  }
}

JIT_PASSES_VECTORIZED void selectFloats(
    const float* c, const float* a, const float* b, int64_t count, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float chosen = a[i], other = b[i]; // both are read, so that the choice vectorizes
    out[i] = c[i] != 0 ? chosen : other;
  }
}

// out = test(a, b) for each pair.
template <typename Test>
inline __attribute__((always_inline)) void testFloats(
    const float* a, const float* b, int64_t count, float* out, const Test& test) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i] = test(a[i], b[i]) ? 1.0F : 0.0F;
  }
}

JIT_PASSES_VECTORIZED void compareFloats(
    const float* a, const float* b, int64_t count, CompareFloats::Which which, float* out) {
  const auto each = [=](const auto& test)
                        __attribute__((always_inline)) { testFloats(a, b, count, out, test); };
  switch (which) {
    case CompareFloats::Less: return each([](float x, float y) { return x < y; });
    case CompareFloats::LessOrEqual: return each([](float x, float y) { return x <= y; });
    case CompareFloats::Equal: return each([](float x, float y) { return x == y; });
    case CompareFloats::NotEqual: return each([](float x, float y) { return x != y; });
    case CompareFloats::Both: return each([](float x, float y) { return x != 0 && y != 0; });
    case CompareFloats::Either: return each([](float x, float y) { return x != 0 || y != 0; });
    case CompareFloats::Neither: return each([](float x, float y) { return x == 0 && y == 0; });
    case CompareFloats::Count: return;
  }
}

JIT_PASSES_VECTORIZED void scaleChannels(
    const float* x, const float* factor, const float* bias, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = __builtin_fmaf(x[i], factor[i], bias[i]);
  }
}

JIT_PASSES_VECTORIZED void preluFloats(const float* x, const float* slopes, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = x[i] > 0 ? x[i] : x[i] * slopes[i];
  }
}

// The most floats of an operand at one time.
constexpr int64_t kFloats = 1024;

// The operand's floats from channel `first` on. An operand with one channel is copied to all channels once, when
// `first` is 0.
const float* floatsAt(
    const FloatOperand& operand, const Image& image, int64_t channels, const uint8_t* pixel, int64_t first,
    int64_t count, float* copies) {
  const bool all = image.channels == channels;
  if (all && operand.is_float) {
    return reinterpret_cast<const float*>(pixel) + first;
  }
  if (all) {
    floatsOfCodes(pixel + first, count, operand.scale, operand.zero_point, copies);
  } else if (first == 0) {
    float number;
    if (operand.is_float) {
      number = *reinterpret_cast<const float*>(pixel);
    } else {
      floatsOfCodes(pixel, 1, operand.scale, operand.zero_point, &number);
    }
    std::fill_n(copies, count, number);
  }
  return copies;
}

// Calls combine(operands, count, out) for all contiguous stretches. `which` tells how to read each operand.
template <size_t kOperands, typename Combine>
void overFloatOperands(
    const FloatOperand (&which)[kOperands], Image (&images)[kOperands], const Image& out, int64_t begin,
    int64_t end, const Combine& combine) {
  const auto isDense = [&](const Image& image, bool is_float) {
    return image.channels == out.channels &&
           image.pixel == out.channels * int64_t(is_float ? sizeof(float) : 1);
  };
  const auto isNumber = [](const Image& image) { return image.channels == 1 && image.pixel == 0; };
  bool dense = isDense(out, true);
  for (size_t k = 0; k < kOperands; ++k) { // a stride of 0 broadcasts
    images[k].images = out.images, images[k].depth = out.depth, images[k].height = out.height;
    dense = dense && (isNumber(images[k]) || isDense(images[k], which[k].is_float));
  }
  const int64_t pixels = dense ? 1 : out.width, channels = dense ? out.width * out.channels : out.channels;
  for (Image& image : images) {
    image.channels = dense && !isNumber(image) ? channels : image.channels;
  }
  float copies[kOperands][kFloats];
  for (int64_t index = begin; index < end; ++index) {
    const uint8_t* rows[kOperands];
    std::transform(images, images + kOperands, rows, [&](const Image& image) { return image.rowAt(index); });
    for (int64_t i = 0; i < pixels; ++i) {
      auto* to = reinterpret_cast<float*>(out.rowAt(index) + i * out.pixel);
      for (int64_t c = 0; c < channels; c += kFloats) {
        const int64_t count = std::min(kFloats, channels - c);
        const float* operands[kOperands];
        for (size_t k = 0; k < kOperands; ++k) {
          operands[k] =
              floatsAt(which[k], images[k], channels, rows[k] + i * images[k].pixel, c, count, copies[k]);
        }
        combine(operands, count, to + c);
      }
    }
  }
}

// Calls combine(a, b, count, out) in this way.
template <typename Combine>
void overFloats(
    const FloatOperand& a, const FloatOperand& b, const Image& left, const Image& right, const Image& out,
    int64_t begin, int64_t end, const Combine& combine) {
  Image images[] = {left, right};
  overFloatOperands({a, b}, images, out, begin, end, [&](const float* const* x, int64_t count, float* to) {
    combine(x[0], x[1], count, to);
  });
}

} // namespace

void AddFloats::run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const {
  overFloats(a, b, x, y, out, begin, end, [&](const float* l, const float* r, int64_t count, float* to) {
    addFloats(l, r, count, a_factor, b_factor, to);
  });
}

void MultiplyFloats::run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const {
  overFloats(a, b, x, y, out, begin, end, multiplyFloats);
}

void ScaleFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t i = 0; i < out.width; ++i) {
      scaleChannels(
          reinterpret_cast<const float*>(in.rowAt(index) + i * in.pixel), factor, bias, out.channels,
          reinterpret_cast<float*>(out.rowAt(index) + i * out.pixel));
    }
  }
}

void PreluFloats::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  for (int64_t index = begin; index < end; ++index) {
    for (int64_t i = 0; i < out.width; ++i) {
      preluFloats(
          reinterpret_cast<const float*>(in.rowAt(index) + i * in.pixel), slopes, out.channels,
          reinterpret_cast<float*>(out.rowAt(index) + i * out.pixel));
    }
  }
}

void DivideFloats::run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const {
  overFloats(a, b, x, y, out, begin, end, divideFloats);
}

void SelectFloats::run(
    const Image& c, const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const {
  Image images[] = {c, a, b};
  overFloatOperands(
      {{}, {}, {}}, images, out, begin, end,
      [&](const float* const* x, int64_t count, float* to) { selectFloats(x[0], x[1], x[2], count, to); });
}

void CompareFloats::run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const {
  overFloats(a, b, x, y, out, begin, end, [&](const float* l, const float* r, int64_t count, float* to) {
    compareFloats(l, r, count, which, to);
  });
}

void FillFloats::run(const Image& x, const Image& y, const Image& out, int64_t begin, int64_t end) const {
  overFloats(a, b, x, y, out, begin, end, [&](const float* l, const float* r, int64_t count, float* to) {
    fillFloats(l, r, count, number, to);
  });
}

} // namespace jit_passes::x86
