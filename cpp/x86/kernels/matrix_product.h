// Functions for all forms of products of two activations.
//
// Codes of the right operand minus 128 are int8. These codes are packed in blocks of 32 columns, each after the 32
// numbers with which its sums begin. Vector forms have the order of a convolution's weights
// (convolution_packing.cpp), padded with zeros; the plain form goes row by row. With b' = b - 128 and z' = z_b -
// 128,
//
//   sum of (a - z_a) (b - z_b) = sum of a b' + (K z_a z' - z_a sum of b') - z' sum of a
//
// where the bracket depends on the column only, and the last term on the row only.
#pragma once

#include <algorithm>

#include "amx.h"
#include "attention.h"

namespace jit_passes::x86 {

constexpr int64_t kGroup = 16; // columns

// The packed form of one matrix.
struct PackedMatrix {
  PackedMatrix(const MatrixProduct& product, const Image& b)
      : products(product.products(b)),
        columns(product.columns(b)),
        quads(quadsOf(products, product.form)),
        blocks((columns + kBlockChannels - 1) / kBlockChannels),
        block_bytes(4 * kBlockChannels * (quads + 1)) {}

  // The number of columns of a block that exist, and of groups of 16 that hold them.
  int64_t count(int64_t block) const { return std::min(kBlockChannels, columns - block * kBlockChannels); }
  int64_t groups(int64_t block) const { return count(block) > kGroup ? 2 : 1; }

  static int64_t quadsOf(int64_t products, Form form) {
    const int64_t quads = (products + 3) / 4;
    return form == Form::Amx && quads > 0 ? RunSteps(quads).quads() : quads;
  }

  int64_t products, columns, quads, blocks, block_bytes;
};

// The codes of a block's columns, with `step` bytes from one to the next, and `stride` from row to row of the
// matrix.
struct Columns {
  const uint8_t* data;
  int64_t step, stride;
};

// Neighbouring rows of a tile, and their place in the result. The first `skip` rows belong to the part before.
struct RowPart {
  const uint8_t* in;
  uint8_t* out;
  int64_t skip;
};

template <typename Shape>
struct RowTile {
  RowPart parts[Shape::kParts];
  int64_t count, rows, in_step, out_step; // parts that exist, and the rows of each
};

// The vector forms. A call packs one block; `packed` is the memory of all blocks of a matrix.
void packVnni(
    const MatrixProduct& product, const PackedMatrix& form, int64_t block, const Columns& from, uint8_t* to);
void packAvx2(
    const MatrixProduct& product, const PackedMatrix& form, int64_t block, const Columns& from, uint8_t* to);
void multiplyVnni(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<TwoHalves>& tile);
#ifdef JIT_PASSES_HAS_AMX
void multiplyAmx(
    const AmxSums& sums, const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<TwoSixteens>& tile);
#endif
void multiplyAvx2(
    const MatrixProduct& product, const PackedMatrix& form, const uint8_t* packed,
    const RowTile<SixPixels>& tile);

} // namespace jit_passes::x86
