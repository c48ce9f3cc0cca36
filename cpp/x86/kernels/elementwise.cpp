// Sums, products and tables of codes.
#include <algorithm>
#include <cstring>

#include "plain.h"

namespace jit_passes::x86 {
namespace {

JIT_PASSES_VECTORIZED void addRun(
    const uint8_t* a, const uint8_t* b, int64_t count, const Add& add, uint8_t* out) {
  const float m = add.a_multiplier, k = add.b_multiplier, offset = add.offset, low = add.low, high = add.high;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = codeOf(__builtin_fmaf(a[i], m, __builtin_fmaf(b[i], k, offset)), low, high);
  }
}

JIT_PASSES_VECTORIZED void multiplyRun(
    const uint8_t* a, const uint8_t* b, int64_t count, const Multiply& multiply, uint8_t* out) {
  const int32_t za = multiply.a_zero_point, zb = multiply.b_zero_point;
  const float m = multiply.multiplier, offset = multiply.offset, low = multiply.low, high = multiply.high;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = codeOf(__builtin_fmaf((a[i] - za) * (b[i] - zb), m, offset), low, high);
  }
}

// Up to `kChunk` codes of an operand: where it has one channel, as many copies of it.
constexpr int64_t kChunk = 256;

const uint8_t* codesAt(
    const Image& operand, const Image& out, const uint8_t* pixel, int64_t first, int64_t count,
    uint8_t* copies) {
  if (operand.channels == out.channels) {
    return pixel + first;
  }
  std::memset(copies, *pixel, count);
  return copies;
}

bool denseRow(const Image& image, const Image& out) {
  return image.channels == out.channels && image.pixel == out.channels;
}

// run(a, b, count, out) for all that lies together, in order.
template <typename Run>
void overOperands(
    const Image& a, const Image& b, const Image& out, const uint8_t* table, int64_t begin, int64_t end,
    const Run& run) {
  uint8_t copies_a[kChunk], copies_b[kChunk];
  const bool dense = denseRow(a, out) && denseRow(b, out) && denseRow(out, out);
  for (int64_t index = begin; index < end; ++index) {
    const uint8_t *row_a = a.rowAt(index), *row_b = b.rowAt(index);
    uint8_t* row = out.rowAt(index);
    const int64_t pixels = dense ? 1 : out.width, channels = dense ? out.width * out.channels : out.channels;
    for (int64_t x = 0; x < pixels; ++x) {
      for (int64_t c = 0; c < channels; c += kChunk) {
        const int64_t count = std::min(kChunk, channels - c);
        uint8_t* to = row + x * out.pixel + c;
        run(codesAt(a, out, row_a + x * a.pixel, c, count, copies_a),
            codesAt(b, out, row_b + x * b.pixel, c, count, copies_b), count, to);
        if (table) {
          lookUpInPlace(to, count, table);
        }
      }
    }
  }
}

// Operands have the rows of the output, whatever their own sizes are: strides of 0 broadcast.
Image likeOutput(Image operand, const Image& out) {
  operand.images = out.images, operand.depth = out.depth, operand.height = out.height;
  return operand;
}

} // namespace

void Add::run(const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const {
  overOperands(
      likeOutput(a, out), likeOutput(b, out), out, table, begin, end,
      [&](const uint8_t* from_a, const uint8_t* from_b, int64_t count, uint8_t* to) {
        addRun(from_a, from_b, count, *this, to);
      });
}

void Multiply::run(const Image& a, const Image& b, const Image& out, int64_t begin, int64_t end) const {
  overOperands(
      likeOutput(a, out), likeOutput(b, out), out, table, begin, end,
      [&](const uint8_t* from_a, const uint8_t* from_b, int64_t count, uint8_t* to) {
        multiplyRun(from_a, from_b, count, *this, to);
      });
}

void LookUp::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const bool dense = in.pixel == out.channels && out.pixel == out.channels;
  for (int64_t index = begin; index < end; ++index) {
    const uint8_t* from = in.rowAt(index);
    uint8_t* to = out.rowAt(index);
    const int64_t pixels = dense ? 1 : out.width, count = dense ? out.width * out.channels : out.channels;
    for (int64_t x = 0; x < pixels; ++x) {
      if (to + x * out.pixel != from + x * in.pixel) {
        std::memcpy(to + x * out.pixel, from + x * in.pixel, count);
      }
      if (table) {
        lookUpInPlace(to + x * out.pixel, count, table);
      }
    }
  }
}

} // namespace jit_passes::x86
