// The inner loop of the convolution for registers of 256 bits: one tile of 6 pixels by 16 output channels.
//
// 12 of the 16 registers hold sums, two weights, one input. The pixels are any six of the output, with one pointer
// each; one number, added to all pointers, moves them on together. With AVX-VNNI, four neighbouring bytes of a pixel
// are broadcast and multiplied by the weights of these four for 8 channels each (vpdpbusd): per four bytes this
// takes 12 multiplications, 6 broadcasts, which are loads, and 2 loads.
//
// AVX2 alone multiplies pairs of int16 (vpmaddwd), which is exact, and adds them in a separate instruction.
// vpmaddubsw multiplies bytes, but its sum of two products saturates. Codes are widened ahead, once for all
// channels, and weights when they are loaded. Per two codes that is 12 multiplications, 12 additions, 6 broadcasts
// and 2 loads.
//
// With intrinsics, g++ 12 keeps the sums in memory, so the loop is assembly, with registers by number.
#pragma once

#include "avx2.h"
#include "tile.h"

#ifdef JIT_PASSES_HAS_AVX2
#include <algorithm>
#include <type_traits>

namespace jit_passes::x86 {

// clang-format off

// Multiplies pixel `p`, if there are so many, by step number `\u` of weights, which is four bytes of the pixel. All
// further arguments are numbers of registers.
#define JIT_PASSES_SIX_PIXEL(p, a0, a1)                           \
  ".if %c[pixels] > " #p "\n"                                     \
  "vpbroadcastd 4*\\u(%[pixel" #p "],%[at]), %%ymm14\n"           \
  ".if %c[vnni]\n"                                                \
  "%{vex%} vpdpbusd %%ymm12, %%ymm14, %%ymm" #a0 "\n"             \
  ".if %c[columns] > 1\n"                                         \
  "%{vex%} vpdpbusd %%ymm13, %%ymm14, %%ymm" #a1 "\n"             \
  ".endif\n"                                                      \
  ".else\n"                                                       \
  "vpmaddwd %%ymm12, %%ymm14, %%ymm15\n"                          \
  "vpaddd %%ymm15, %%ymm" #a0 ", %%ymm" #a0 "\n"                  \
  ".if %c[columns] > 1\n"                                         \
  "vpmaddwd %%ymm13, %%ymm14, %%ymm15\n"                          \
  "vpaddd %%ymm15, %%ymm" #a1 ", %%ymm" #a1 "\n"                  \
  ".endif\n.endif\n.endif\n"

#define JIT_PASSES_EACH_OF_SIX(do)                                        \
  do(0, 0, 1) do(1, 2, 3) do(2, 4, 5) do(3, 6, 7) do(4, 8, 9) do(5, 10, 11)

// Multiplies all pixels by the steps that `numbers` lists.
#define JIT_PASSES_SIX_STEPS(numbers, count)                              \
  ".irp u," numbers "\n"                                                  \
  ".if %c[vnni]\n"                                                        \
  "vmovdqa 32*%c[columns]*\\u(%[weight]), %%ymm12\n"                      \
  ".if %c[columns] > 1\n"                                                 \
  "vmovdqa 64*\\u+32(%[weight]), %%ymm13\n"                               \
  ".endif\n"                                                              \
  ".else\n"                                                               \
  "vpmovsxbw 16*%c[columns]*\\u(%[weight]), %%ymm12\n"                    \
  ".if %c[columns] > 1\n"                                                 \
  "vpmovsxbw 32*\\u+16(%[weight]), %%ymm13\n"                             \
  ".endif\n.endif\n"                                                      \
  JIT_PASSES_EACH_OF_SIX(JIT_PASSES_SIX_PIXEL)                            \
  ".endr\n"                                                               \
  "add $16*(1+%c[vnni])*%c[columns]*" #count ", %[weight]\n"              \
  "add $4*" #count ", %[at]\n"

#define JIT_PASSES_SIX_BEGIN(p, a0, a1)                                   \
  ".if %c[pixels] > " #p "\n"                                             \
  "vmovdqa (%[left]), %%ymm" #a0 "\n"                                     \
  ".if %c[columns] > 1\n"                                                 \
  "vmovdqa 32(%[left]), %%ymm" #a1 "\n"                                   \
  ".endif\n.endif\n"

#define JIT_PASSES_SIX_SUMS(p, a0, a1)                                    \
  ".if %c[pixels] > " #p "\n"                                             \
  "vmovdqa %%ymm" #a0 ", 128*" #p "(%[left])\n"                           \
  ".if %c[columns] > 1\n"                                                 \
  "vmovdqa %%ymm" #a1 ", 128*" #p "+32(%[left])\n"                        \
  ".endif\n.endif\n"

// Multiplies some pixels by 8 or 16 channels, the first ones of the sums [pixel][32]. `quads` of `tile` counts
// groups of four bytes: four codes, or, for AVX2, two codes of 16 bits. With each four groups, a cache line from
// `ahead` on is prefetched.
template <int kPixels, int kColumns, bool kVnni>
JIT_PASSES_AVX2 void multiplySixPixels(
    const TileOf<SixPixels>& tile, int64_t channel, const int8_t* weight, const int8_t* ahead, const int32_t* start,
    int32_t* sums) {
  const int64_t* jumps = tile.jumps;
  int64_t runs = tile.runs, at = channel, left;
  asm volatile(
      "mov %[start], %[left]\n"
      JIT_PASSES_EACH_OF_SIX(JIT_PASSES_SIX_BEGIN)
      "1: mov %[quads], %[left]\n"
      "sub $4, %[left]\n"
      "js 3f\n"
      ".p2align 4\n"
      "2:\n"
      "prefetcht1 (%[ahead])\n"
      "add $64, %[ahead]\n"
      JIT_PASSES_SIX_STEPS("0,1,2,3", 4)
      "sub $4, %[left]\n"
      "jns 2b\n"
      "3: add $4, %[left]\n"
      "jz 5f\n"
      "4:\n"
      JIT_PASSES_SIX_STEPS("0", 1)
      "dec %[left]\n"
      "jnz 4b\n"
      "5: add (%[jumps]), %[at]\n"
      "add $8, %[jumps]\n"
      "dec %[runs]\n"
      "jnz 1b\n"
      "mov %[sums], %[left]\n"
      JIT_PASSES_EACH_OF_SIX(JIT_PASSES_SIX_SUMS)
      "vzeroupper\n"
      : [at] "+r"(at), [weight] "+r"(weight), [jumps] "+r"(jumps), [runs] "+r"(runs), [ahead] "+r"(ahead),
        [left] "=&r"(left)
      : [pixel0] "r"(tile.part[0]), [pixel1] "r"(tile.part[1]), [pixel2] "r"(tile.part[2]),
        [pixel3] "r"(tile.part[3]), [pixel4] "r"(tile.part[4]), [pixel5] "r"(tile.part[5]), [quads] "m"(tile.quads),
        [start] "m"(start), [sums] "m"(sums), [pixels] "i"(kPixels), [columns] "i"(kColumns), [vnni] "i"(int(kVnni))
      : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

// clang-format on

using MultiplySixPixels =
    void (*)(const TileOf<SixPixels>&, int64_t, const int8_t*, const int8_t*, const int32_t*, int32_t*);
template <int kColumns, bool kVnni>
constexpr MultiplySixPixels kMultiplySix[SixPixels::kParts] = {
    multiplySixPixels<1, kColumns, kVnni>, multiplySixPixels<2, kColumns, kVnni>,
    multiplySixPixels<3, kColumns, kVnni>, multiplySixPixels<4, kColumns, kVnni>,
    multiplySixPixels<5, kColumns, kVnni>, multiplySixPixels<6, kColumns, kVnni>};

// Computes the sums of a block with 1 to 4 columns of 8 channels, for the first `pixels` of a tile: [pixel][32].
inline void multiplySix(
    bool vnni, const TileOf<SixPixels>& tile, int64_t pixels, int64_t channel, int64_t columns,
    const int8_t* weight, const int8_t* ahead, const int32_t* start, int32_t* sums) {
  constexpr const MultiplySixPixels* kAll[2][2] = {
      {kMultiplySix<1, false>, kMultiplySix<2, false>}, {kMultiplySix<1, true>, kMultiplySix<2, true>}};
  const int64_t steps = tile.runs * tile.quads, bytes = steps * kSixChannels * (vnni ? 4 : 2);
  for (int64_t first = 0; first < columns; first += 2) {
    kAll[vnni][std::min<int64_t>(2, columns - first) - 1][pixels - 1](
        tile, channel, weight, ahead, start, sums);
    weight += bytes, ahead += tile.runs * (tile.quads / 4) * 64, start += kSixChannels, sums += kSixChannels;
  }
}

// The pixels of a tile widened to 16 bits, one after the other, with runs without gaps.
class WidenedTile {
 public:
  JIT_PASSES_AVX2 const TileOf<SixPixels>& widen(
      const TileOf<SixPixels>& from, int64_t pixels, int64_t channel) {
    const int64_t codes = 4 * from.runs * from.quads, stride = (codes + 31) / 16 * 16;
    for (int64_t p = 0; p < pixels; ++p) {
      int16_t* to = codes_ + p * stride;
      tile_.part[p] = reinterpret_cast<const uint8_t*>(to);
      const uint8_t* in = from.part[p] + channel;
      for (int64_t run = 0; run < from.runs; ++run) {
        // Bytes that are written beyond a run are overwritten by the next run.
        for (int64_t i = 0; i < 4 * from.quads; i += 16) {
          const __m128i some = load128(in + i);
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_cvtepu8_epi16(some));
        }
        to += 4 * from.quads, in += 4 * from.quads + from.jumps[run];
      }
    }
    tile_.runs = 1, tile_.quads = codes / 2, tile_.jumps = &kNoJump;
    return tile_;
  }

 private:
  static constexpr int64_t kNoJump = 0;
  TileOf<SixPixels> tile_{};
  alignas(64) int16_t codes_[SixPixels::kParts * (kMostWidened + 32)];
};

// Computes the products of tiles, one tile after the other.
template <bool kVnni>
class SixProducts {
 public:
  // Begins another tile.
  void place() { channel_ = -1; }

  void multiply(
      const TileOf<SixPixels>& tile, int64_t pixels, int64_t channel, int64_t columns, const int8_t* weight,
      const int8_t* ahead, const int32_t* start, int32_t* sums) {
    if constexpr (kVnni) {
      multiplySix(true, tile, pixels, channel, columns, weight, ahead, start, sums);
    } else {
      if (channel_ != channel) {
        tile_ = &widened_.widen(tile, pixels, channel);
        channel_ = channel;
      }
      multiplySix(false, *tile_, pixels, 0, columns, weight, ahead, start, sums);
    }
  }

 private:
  struct Nothing {};
  int64_t channel_ = -1;
  const TileOf<SixPixels>* tile_ = nullptr;
  std::conditional_t<kVnni, Nothing, WidenedTile> widened_;
};

} // namespace jit_passes::x86
#endif
