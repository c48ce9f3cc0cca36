// Convolution as an implicit matrix product, for AVX-VNNI and for AVX2 alone. Both differ only in the inner loop
// (convolution_tile_avx2.h) and in the order of weights (convolution_packing.cpp).
//
// A tile is any six pixels of the output by 32 channels, across the ends of rows. Sums pass through memory in the
// first cache, and become codes here.
#include "convolution_tile_avx2.h"
#include "convolution_tiles.h"
#include "plain.h"

#ifdef JIT_PASSES_HAS_AVX2

namespace jit_passes::x86 {
namespace {

// See runTiles.
template <bool kVnni>
class SixToCodes {
 public:
  using Shape = SixPixels;

  JIT_PASSES_AVX2 explicit SixToCodes(const Requantize& how) : how_(how), rounding_(how.range) {}

  void place() { products_.place(); }

  void enter(int64_t first, int64_t count) {
    multiplier_ = how_.multiplier + first, offset_ = how_.offset + first;
    if (count < kBlockChannels) {
      std::copy_n(multiplier_, count, copies_[0]);
      std::copy_n(offset_, count, copies_[1]);
      multiplier_ = copies_[0], offset_ = copies_[1];
    }
  }

  void run(const TileWork<Shape>& work, const TargetOf<Shape>& target) {
    products_.multiply(
        work.tile, target.count, work.channel, work.columns, work.weight, work.ahead, work.start, sums_);
    how_.residual ? store<true>(work, target) : store<false>(work, target);
  }

 private:
  // Operands of the loop are copied first: stores of bytes may change any object for the compiler, which would read
  // them again.
  template <bool kAdds>
  JIT_PASSES_AVX2 void store(const TileWork<Shape>& work, const TargetOf<Shape>& target) const {
    const Rounding256 rounding = rounding_;
    const __m256 residual_multiplier = _mm256_set1_ps(how_.residual_multiplier);
    const float *const multiplier = multiplier_, *const offset = offset_;
    const uint8_t* const table = how_.table;
    const int64_t pixels = target.count, first = work.first, count = work.count;
    for (int64_t p = 0; p < pixels; ++p) {
      const int32_t* sums = sums_ + p * kBlockChannels;
      const uint8_t* residual = kAdds ? target.residual[p] + first : nullptr;
      __m256 v[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        __m256 with = _mm256_loadu_ps(offset + 8 * i);
        if constexpr (kAdds) {
          with = _mm256_fmadd_ps(eightFloatsOf(residual + 8 * i), residual_multiplier, with);
        }
        v[i] = _mm256_fmadd_ps(floatsOfSums(sums + 8 * i), _mm256_loadu_ps(multiplier + 8 * i), with);
      }
      putCodes(target.out[p] + first, v, rounding, count, table);
    }
  }

  const Requantize& how_;
  Rounding256 rounding_;
  const float *multiplier_ = nullptr, *offset_ = nullptr;
  float copies_[2][kBlockChannels] = {};
  SixProducts<kVnni> products_;
  alignas(64) int32_t sums_[SixPixels::kParts * kBlockChannels] = {};
};

template <bool kVnni>
class SixToFloats {
 public:
  using Shape = SixPixels;

  explicit SixToFloats(const SumsToFloats& how) : how_(how) {}

  void place() { products_.place(); }
  void enter(int64_t /*first*/, int64_t /*count*/) {}

  void run(const TileWork<Shape>& work, const TargetOf<Shape>& target) {
    products_.multiply(
        work.tile, target.count, work.channel, work.columns, work.weight, work.ahead, work.start, sums_);
    for (int64_t p = 0; p < target.count; ++p) {
      storeFloats(
          sums_ + p * kBlockChannels, work.count, work.first, target.number[p],
          how_.residual ? target.residual[p] : nullptr, target.out[p], how_);
    }
  }

 private:
  const SumsToFloats& how_;
  SixProducts<kVnni> products_;
  alignas(64) int32_t sums_[SixPixels::kParts * kBlockChannels] = {};
};

} // namespace

int64_t Convolution::itemsAvx2(const Image& in, const Image& out, const Image* residual) const {
  return TileParts<SixPixels>(window_, in, out, residual).tiles * static_cast<int64_t>(blocks_.size());
}

template <typename How>
void Convolution::runAvx2(
    const Image& in, const Image& out, const How& how, int64_t begin, int64_t end) const {
  constexpr bool kFloats = std::is_same_v<How, SumsToFloats>;
  const auto runAs = [&]<bool kVnni>(std::bool_constant<kVnni>) {
    std::conditional_t<kFloats, SixToFloats<kVnni>, SixToCodes<kVnni>> finish(how);
    runTiles(in, out, how.residual, finish, begin, end);
  };
  form_ == Form::AvxVnni ? runAs(std::true_type()) : runAs(std::false_type());
}

} // namespace jit_passes::x86

#else

namespace jit_passes::x86 {

int64_t Convolution::itemsAvx2(const Image&, const Image&, const Image*) const { return 0; }
template <typename How>
void Convolution::runAvx2(const Image&, const Image&, const How&, int64_t, int64_t) const {}

} // namespace jit_passes::x86

#endif

namespace jit_passes::x86 {

template void Convolution::runAvx2(
    const Image& in, const Image& out, const Requantize& how, int64_t begin, int64_t end) const;
template void Convolution::runAvx2(
    const Image& in, const Image& out, const SumsToFloats& how, int64_t begin, int64_t end) const;

} // namespace jit_passes::x86
