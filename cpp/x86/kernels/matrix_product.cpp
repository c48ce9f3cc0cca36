// Products of two activations: the plain form, and the division into tiles.
#include "matrix_product.h"

#include <cstring>

#include "plain.h"

namespace jit_passes::x86 {
namespace {

void packPlain(
    const MatrixProduct& product, const PackedMatrix& form, int64_t block, const Columns& from, uint8_t* to) {
  const int64_t count = form.count(block), columns = form.groups(block) * kGroup;
  auto* start = reinterpret_cast<int32_t*>(to);
  auto* weights = reinterpret_cast<int8_t*>(to + 4 * kBlockChannels);
  const int32_t z = product.b_zero_point - 128;
  for (int64_t n = 0; n < columns; ++n) {
    int32_t sum = 0;
    for (int64_t k = 0; k < form.products; ++k) {
      const uint8_t code_of_b = n < count ? from.data[n * from.step + k * from.stride] : 128;
      const auto code = static_cast<int8_t>(code_of_b ^ 0x80);
      weights[k * columns + n] = code;
      sum += code;
    }
    start[n] = product.a_zero_point * (static_cast<int32_t>(form.products) * z - sum);
  }
}

JIT_PASSES_VECTORIZED void multiplyRow(
    const uint8_t* row, const int8_t* weights, int64_t products, int64_t columns, int32_t* sums) {
  for (int64_t k = 0; k < products; ++k, weights += columns) {
    const int16_t code = row[k];
    for (int64_t n = 0; n < columns; ++n) {
      sums[n] += code * weights[n];
    }
  }
}

JIT_PASSES_VECTORIZED void storeRow(
    const int32_t* sums, int32_t of_row, int64_t count, const MatrixProduct& product, uint8_t* out) {
  const float multiplier = product.multiplier, offset = product.offset;
  const ToCode code(product.range);
  for (int64_t n = 0; n < count; ++n) {
    out[n] = code(__builtin_fmaf(sums[n] + of_row, multiplier, offset));
  }
  lookUpInPlace(out, count, product.table);
}

void multiplyPlain(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<TwoHalves>& tile) {
  const int32_t z = product.b_zero_point - 128;
  for (const RowPart& half : tile.parts) {
    for (int64_t row = half.skip; row < tile.rows; ++row) {
      const uint8_t* in = half.in + row * tile.in_step;
      int32_t sum = 0;
      for (int64_t k = 0; k < form.products; ++k) {
        sum += in[k];
      }
      for (int64_t block = 0; block < form.blocks; ++block) {
        const uint8_t* of_block = packed + block * form.block_bytes;
        int32_t sums[kBlockChannels];
        std::memcpy(sums, of_block, sizeof(sums));
        multiplyRow(
            in, reinterpret_cast<const int8_t*>(of_block + 4 * kBlockChannels), form.products,
            form.groups(block) * kGroup, sums);
        storeRow(
            sums, -z * sum, form.count(block), product,
            half.out + row * tile.out_step + block * kBlockChannels);
      }
    }
  }
}

// The number of the matrix in a batch. A single image may serve for all.
int64_t matrixOf(const Image& image, int64_t n, int64_t z, int64_t y) {
  const int64_t of_n = image.images == 1 ? 0 : n, of_z = image.depth == 1 ? 0 : z;
  return (of_n * image.depth + of_z) * image.height + (image.height == 1 ? 0 : y);
}

// Calls `multiply` with a packed matrix and a tile.
template <typename Shape, typename Multiply>
void runRows(
    const PackedMatrix& matrix, const Multiply& multiply, const Image& a, const Image& b,
    const uint8_t* packed, const Image& out, int64_t begin, int64_t end) {
  const Division<Shape> rows(out.width);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t index = item / rows.tiles, first = item % rows.tiles * Shape::kParts;
    const int64_t y = index % out.height, z = index / out.height % out.depth;
    const int64_t n = index / out.height / out.depth;
    const uint8_t* from = a.rowAt(matrixOf(a, n, z, y));
    const int64_t count = std::min(Shape::kParts, rows.parts - first);
    RowTile<Shape> tile{{}, count, rows.pixels, a.pixel, out.pixel};
    for (int64_t i = 0; i < Shape::kParts; ++i) {
      // A part that does not exist repeats the first part, and is not stored.
      const int64_t part = i < count ? first + i : first;
      const int64_t row = std::min(part * rows.pixels, out.width - rows.pixels);
      tile.parts[i] = {
          from + row * a.pixel, out.at(n, z, y, row), i < count ? part * rows.pixels - row : rows.pixels};
    }
    multiply(packed + matrixOf(b, n, z, y) * matrix.blocks * matrix.block_bytes, tile);
  }
}

bool takesSix(Form form) { return form == Form::Avx2 || form == Form::AvxVnni; }

bool takesSixteens(const MatrixProduct& product, const Image& out) {
  return product.form == Form::Amx && Division<TwoSixteens>(out.width).pixels >= kFewestForAmx;
}

} // namespace

int64_t MatrixProduct::packedBytes(const Image& b) const {
  const PackedMatrix form(*this, b);
  return b.rows() * form.blocks * form.block_bytes;
}

int64_t MatrixProduct::packItems(const Image& b) const { return b.rows() * PackedMatrix(*this, b).blocks; }

void MatrixProduct::pack(const Image& b, uint8_t* packed, int64_t begin, int64_t end) const {
  const PackedMatrix matrix(*this, b);
  const auto run = form == Form::Plain ? packPlain : form >= Form::Avx512 ? packVnni : packAvx2;
  const int64_t step = transposed ? b.pixel : 1, stride = transposed ? 1 : b.pixel;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % matrix.blocks;
    run(*this, matrix, block, {b.rowAt(item / matrix.blocks) + block * kBlockChannels * step, step, stride},
        packed + item * matrix.block_bytes);
  }
}

int64_t MatrixProduct::items(const Image& out) const {
  const int64_t tiles = takesSixteens(*this, out) ? Division<TwoSixteens>(out.width).tiles
                        : takesSix(form)          ? Division<SixPixels>(out.width).tiles
                                                  : Division<TwoHalves>(out.width).tiles;
  return out.rows() * tiles;
}

void MatrixProduct::run(
    const Image& a, const Image& b, const uint8_t* packed, const Image& out, int64_t begin,
    int64_t end) const {
  const PackedMatrix matrix(*this, b);
  const auto each = [&](auto multiply) {
    return [&, multiply](const uint8_t* of, const auto& tile) { multiply(*this, matrix, of, tile); };
  };
  const auto run = [&]<typename Shape>(Shape, const auto& multiply) {
    runRows<Shape>(matrix, multiply, a, b, packed, out, begin, end);
  };
#ifdef JIT_PASSES_HAS_AMX
  if (takesSixteens(*this, out)) {
    const AmxSums sums(Division<TwoSixteens>(out.width).pixels, matrix.quads);
    return run(TwoSixteens(), [&](const uint8_t* of, const auto& tile) {
      multiplyAmx(sums, *this, matrix, of, tile);
    });
  }
#endif
  if (takesSix(form)) {
    run(SixPixels(), each(multiplyAvx2));
  } else {
    run(TwoHalves(), each(form >= Form::Avx512 ? multiplyVnni : multiplyPlain));
  }
}

} // namespace jit_passes::x86
