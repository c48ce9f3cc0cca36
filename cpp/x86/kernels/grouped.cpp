// Linear layers with a scale for each group of inputs: packing, the plain form, and the step from sums to results.
#include "grouped.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "grouped_tile.h"
#include "grouped_zero_points.h"
#include "ops/vectorize.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kOutputs = GroupedShape::kOutputs, kInputs = GroupedShape::kInputs;

// The place of the code of an input in a step: the byte, and the shift of its half in bits.
struct Place {
  int64_t byte, shift;
};

Place placeOf(int64_t input, int64_t output, int64_t bits) {
  const int64_t run = 8 * 4 / bits; // inputs in four bytes
  return {(input / run * kOutputs + output) * 4 + input % 4, input % run >= 4 ? 4 : 0};
}

int8_t codeAt(const uint8_t* step, const Place& place, int64_t bits) {
  const auto byte = static_cast<int8_t>(step[place.byte] << (bits == 4 ? 4 - place.shift : 0));
  return static_cast<int8_t>(bits == 4 ? byte >> 4 : byte);
}

void putCode(uint8_t* step, const Place& place, int64_t bits, int8_t code) {
  const auto kept = static_cast<uint8_t>(bits == 4 ? code & 15 : code);
  step[place.byte] |= static_cast<uint8_t>(kept << place.shift);
}

// The codes of an input of a step, for 16 outputs.
void codesAt(const uint8_t* step, int64_t input, int64_t bits, int32_t* codes) {
  for (int64_t c = 0; c < kOutputs; ++c) {
    codes[c] = codeAt(step, placeOf(input, c, bits), bits);
  }
}

void codesTilePlain(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<uint8_t>& rows, float* a,
    RowsDone done) {
  for (int64_t r = 0; r < rows.count; ++r, a += kOutputs) {
    std::fill_n(a, kOutputs, 0.0F);
    const uint8_t* at = block + kGroupedHeader;
    for (int64_t first = 0; first < shape.inputs; first += shape.group) {
      const auto* scales = reinterpret_cast<const float*>(at);
      at += kOutputs * sizeof(float);
      int32_t sums[kOutputs] = {};
      for (int64_t i = 0; i < shape.group; ++i) {
        int32_t codes[kOutputs];
        codesAt(at + i / kInputs * shape.stepBytes(), i % kInputs, shape.bits, codes);
        for (int64_t c = 0; c < kOutputs; ++c) {
          sums[c] += rows.row[r][first + i] * codes[c];
        }
      }
      at += shape.steps() * shape.stepBytes();
      for (int64_t c = 0; c < kOutputs; ++c) {
        a[c] = __builtin_fmaf(static_cast<float>(sums[c]), scales[c], a[c]);
      }
    }
    done(r, 1);
  }
}

void floatsTilePlain(
    const GroupedShape& shape, const uint8_t* block, const GroupedRows<float>& rows, float* a,
    RowsDone done) {
  for (int64_t r = 0; r < rows.count; ++r, a += kOutputs) {
    std::fill_n(a, kOutputs, 0.0F);
    const uint8_t* at = block + kGroupedHeader;
    for (int64_t first = 0; first < shape.inputs; first += shape.group) {
      const auto* scales = reinterpret_cast<const float*>(at);
      at += kOutputs * sizeof(float);
      float parts[4][kOutputs] = {};
      for (int64_t i = 0; i < shape.group; ++i) {
        int32_t codes[kOutputs];
        codesAt(at + i / kInputs * shape.stepBytes(), i % kInputs, shape.bits, codes);
        float* part = parts[i % kInputs / 8];
        for (int64_t c = 0; c < kOutputs; ++c) {
          part[c] = __builtin_fmaf(static_cast<float>(codes[c]), rows.row[r][first + i], part[c]);
        }
      }
      at += shape.steps() * shape.stepBytes();
      for (int64_t c = 0; c < kOutputs; ++c) {
        const float sum = (parts[0][c] + parts[1][c]) + (parts[2][c] + parts[3][c]);
        a[c] = __builtin_fmaf(sum, scales[c], a[c]);
      }
    }
    done(r, 1);
  }
}

// The place of 16 results of each row, from the output `first` on, and addends of these, or null.
struct Results {
  float* const* rows;
  const float* const* addends;
  int64_t first;

  [[gnu::always_inline]] void write(int64_t row, float* values) const {
    if (addends != nullptr) {
      for (int64_t c = 0; c < kOutputs; ++c) {
        values[c] += addends[row][first + c];
      }
    }
    for (int64_t c = 0; c < kOutputs; ++c) {
      rows[row][first + c] = values[c];
    }
  }
};

// From sums, [rows][16], to results. The grid of a row is `apart` grids behind that of the row before.
JIT_PASSES_VECTORIZED void onGrids(
    const RowGrid* grids, int64_t apart, int64_t rows, const float* __restrict header, const float* a,
    const Results& to) {
  for (int64_t r = 0; r < rows; ++r, grids += apart, a += kOutputs) {
    const float zero_point = static_cast<float>(-grids->zero_point), scale = grids->scale;
    float values[kOutputs];
    for (int64_t c = 0; c < kOutputs; ++c) {
      values[c] = __builtin_fmaf(__builtin_fmaf(zero_point, header[c], a[c]), scale, header[kOutputs + c]);
    }
    to.write(r, values);
  }
}

JIT_PASSES_VECTORIZED void withBias(
    int64_t rows, const float* __restrict header, const float* a, const Results& to) {
  for (int64_t r = 0; r < rows; ++r, a += kOutputs) {
    float values[kOutputs];
    for (int64_t c = 0; c < kOutputs; ++c) {
      values[c] = a[c] + header[kOutputs + c];
    }
    to.write(r, values);
  }
}

float* floatsAt(const Image& image, int64_t row) {
  return reinterpret_cast<float*>(image.rowAt(row / image.width) + row % image.width * image.pixel);
}

// Writes some of 16 results, plus `other`, if not null.
void writeSum(const float* a, const float* other, int64_t count, float* y) {
  for (int64_t c = 0; c < count; ++c) {
    y[c] = other != nullptr ? a[c] + other[c] : a[c];
  }
}

bool manyRows(const Image& out) { return out.rows() * out.width >= kFewToDecode512; }

// `rowAt(row)` returns the beginning of a row. `finish(row, count, header, a, to)` writes results from the sums of
// `count` rows. `pair`, if not null, computes two blocks at one time.
template <typename T, typename RowAt, typename Finish>
void runBlocks(
    const GroupedLinear& linear, GroupedTile<T> tile, GroupedTile<T> pair, const RowAt& rowAt,
    const Finish& finish, const Image& out, int64_t begin, int64_t end) {
  constexpr int64_t kMost = kGroupedRows<T>;
  constexpr int64_t kMostSums = 8192; // a row of kMostProducts inputs has fewer groups
  const GroupedShape& shape = linear.shape;
  const int64_t rows = out.rows() * out.width, groups = shape.groups();
  const int64_t together = linear.zero_points ? std::clamp<int64_t>(kMostSums / groups, 1, kMost) : kMost;
  const bool is_plain = linear.function.which == FloatFunction::None;
  const int64_t rows_together = is_plain ? 1 : 32; // since a call of a function costs time
  alignas(64) float sums[2 * kMost * kOutputs];
  float group_sums[kMostSums];
  for (int64_t row = 0; row < rows; row += together) { // whose inputs stay in the second cache for all blocks
    GroupedRows<T> some{{}, std::min(together, rows - row)};
    float *y[kMost], *own[kMost];
    const float* addend[kMost];
    for (int64_t r = 0; r < some.count; ++r) {
      some.row[r] = rowAt(row + r), y[r] = floatsAt(out, row + r), own[r] = sums + r * kOutputs;
      addend[r] = linear.residual ? floatsAt(*linear.residual, row + r) : nullptr;
      if (linear.zero_points) {
        sumGroups(shape, some.row[r], group_sums + r * groups);
      }
    }
    // Writes results of a block from some of its sums.
    const auto finishBlock = [&](int64_t item, float* of_block, int64_t from, int64_t some_count) {
      const uint8_t* block = linear.packed + item * shape.blockBytes();
      const int64_t first = item * kOutputs, count = std::min(kOutputs, shape.outputs - first);
      float* a = of_block + from * kOutputs;
      if (linear.zero_points) {
        const int8_t* zero_points = linear.zero_points + item * groups * kOutputs;
        addZeroPoints(shape, block, zero_points, group_sums + from * groups, some_count, a, linear.form);
      }
      const auto* header = reinterpret_cast<const float*>(block);
      if (is_plain && count == kOutputs) {
        finish(
            row + from, some_count, header, a, {y + from, linear.residual ? addend + from : nullptr, first});
        return;
      }
      finish(row + from, some_count, header, a, {own + from, nullptr, of_block - sums});
      linear.function.run(a, a, some_count * kOutputs);
      for (int64_t r = from; r < from + some_count; ++r, a += kOutputs) {
        writeSum(a, addend[r] ? addend[r] + first : nullptr, count, y[r] + first);
      }
    };
    for (int64_t item = begin, blocks = 0; item < end; item += blocks) {
      blocks = pair ? std::min<int64_t>(end - item, 2) : 1;
      int64_t finished = 0;
      const auto done = [&](int64_t from, int64_t count) {
        const int64_t ready = from + count - finished;
        if (ready < rows_together && from + count < some.count) {
          return;
        }
        for (int64_t i = 0; i < blocks; ++i) {
          finishBlock(item + i, sums + i * some.count * kOutputs, finished, ready);
        }
        finished = from + count;
      };
      (blocks == 2 ? pair : tile)(shape, linear.packed + item * shape.blockBytes(), some, sums, done);
    }
  }
}

} // namespace

void packGrouped(
    const GroupedShape& shape, const int8_t* codes, const float* scales, const int8_t* zero_points,
    const float* bias, uint8_t* packed) {
  std::memset(packed, 0, shape.bytes());
  const int64_t groups = shape.groups();
  for (int64_t output = 0; output < shape.outputs; ++output) {
    uint8_t* block = packed + output / kOutputs * shape.blockBytes();
    const int64_t c = output % kOutputs;
    auto* header = reinterpret_cast<float*>(block);
    double total = 0;
    for (int64_t g = 0; g < groups; ++g) {
      uint8_t* at = block + kGroupedHeader + g * shape.groupBytes();
      const float scale = scales[output * groups + g];
      reinterpret_cast<float*>(at)[c] = scale;
      at += kOutputs * sizeof(float);
      int64_t sum =
          zero_points ? -shape.group * zero_points[(output / kOutputs * groups + g) * kOutputs + c] : 0;
      for (int64_t i = 0; i < shape.group; ++i) {
        const int8_t code = codes[output * shape.inputs + g * shape.group + i];
        putCode(at + i / kInputs * shape.stepBytes(), placeOf(i % kInputs, c, shape.bits), shape.bits, code);
        sum += code;
      }
      total += static_cast<double>(scale) * static_cast<double>(sum);
    }
    header[c] = static_cast<float>(total), header[kOutputs + c] = bias[output];
  }
}

void GroupedLinear::run(
    const uint8_t* codes, const RowGrid* grids, bool per_row, const Image& out, int64_t begin,
    int64_t end) const {
  const GroupedTile<uint8_t> tile = form == Form::Amx      ? groupedCodesAmx
                                    : form == Form::Avx512 ? groupedCodesVnni
                                    : form >= Form::Avx2   ? groupedCodesAvx2
                                                           : codesTilePlain;
  const bool decodes = form == Form::Avx512 && sharesDecoded512(shape) && manyRows(out);
  runBlocks<uint8_t>(
      *this, tile, decodes ? groupedPairOfCodesVnni : nullptr,
      [&](int64_t row) { return codes + row * shape.inputs; },
      [&](int64_t row, int64_t count, const float* header, const float* a, const Results& to) {
        onGrids(grids + (per_row ? row : 0), per_row, count, header, a, to);
      },
      out, begin, end);
}

void GroupedLinear::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const GroupedTile<float> tile = form >= Form::Avx512 ? groupedFloatsVnni
                                  : form >= Form::Avx2 ? groupedFloatsAvx2
                                                       : floatsTilePlain;
  const bool decodes = form >= Form::Avx512 && manyRows(out);
  runBlocks<float>(
      *this, tile, decodes ? groupedPairOfFloatsVnni : nullptr,
      [&](int64_t row) { return floatsAt(in, row); },
      [&](int64_t, int64_t count, const float* header, const float* a, const Results& to) {
        withBias(count, header, a, to);
      },
      out, begin, end);
}

} // namespace jit_passes::x86
