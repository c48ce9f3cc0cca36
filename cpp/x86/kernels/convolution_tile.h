// The inner loop of the convolution for AVX-512 VNNI: one tile of 14 pixels by 32 output channels.
//
// 28 registers of sums, two of weights, two of input. Four neighbouring bytes of a pixel are broadcast and
// multiplied by the weights of these four for 16 channels each (vpdpbusd). Per four bytes that is 28
// multiplications, 14 broadcasts, which are loads, and 2 loads.
//
// With intrinsics, g++ 12 keeps the sums in memory, so the loop is assembly, with registers by number. The assembly
// also turns sums into codes, which saves 28 stores and loads of sums.
#pragma once

#include "tile.h"
#include "vnni.h"

#ifdef JIT_PASSES_HAS_VNNI

namespace jit_passes::x86 {

constexpr int64_t kHalf = TwoHalves::kPixels, kLanes = 16;

// A residual: its first pixel for each half, the bytes from pixel to pixel, and its scale.
struct TileResidual {
  const uint8_t* half[2];
  int64_t step;
  float multiplier;
};

// The places of the codes of each half, and the bytes from one pixel to the next.
struct TileCodes {
  uint8_t* half[2];
  int64_t step;
};

// The scales of the channels, the limits in floats and in codes, and the order that undoes packing.
struct alignas(64) TileResult {
  int32_t order[kLanes];
  uint8_t low[4 * kLanes], high[4 * kLanes];
  const float *multiplier, *offset; // of 32 channels
  float most;
  TileResidual residual;
  TileCodes codes;
  int16_t zero_point[2 * kLanes];
  float copies[2][2 * kLanes];
};

static_assert(offsetof(TileResidual, step) == 16 && offsetof(TileResidual, multiplier) == 24);
static_assert(offsetof(TileCodes, step) == 16);
static_assert(offsetof(TileResult, low) == offsetof(TileResult, order) + 64);
static_assert(offsetof(TileResult, high) == offsetof(TileResult, order) + 128);
static_assert(offsetof(TileResult, offset) == offsetof(TileResult, multiplier) + 8);

// clang-format off

// Multiplies pixel `p` of both halves, or of the only one, by group number `\u` of four weights, if there are so
// many pixels. `at` is the pixel's distance from the first pixel of a half; the other arguments are numbers of
// registers.
#define JIT_PASSES_PIXEL(p, at, a0, a1, b0, b1)     \
  ".if %c[half] > " #p "\n"                         \
  "vpbroadcastd 4*\\u(%[first]" at "), %%zmm30\n"   \
  "vpdpbusd %%zmm28, %%zmm30, %%zmm" #a0 "\n"       \
  ".if %c[columns] > 1\n"                           \
  "vpdpbusd %%zmm29, %%zmm30, %%zmm" #a1 "\n"       \
  ".endif\n"                                        \
  ".if %c[halves] > 1\n"                            \
  "vpbroadcastd 4*\\u(%[second]" at "), %%zmm31\n"  \
  "vpdpbusd %%zmm28, %%zmm31, %%zmm" #b0 "\n"       \
  ".if %c[columns] > 1\n"                           \
  "vpdpbusd %%zmm29, %%zmm31, %%zmm" #b1 "\n"       \
  ".endif\n.endif\n.endif\n"

#define JIT_PASSES_EACH_PIXEL(do)    \
  do(0, "", 0, 1, 14, 15)            \
  do(1, ",%[step]", 2, 3, 16, 17)    \
  do(2, ",%[step],2", 4, 5, 18, 19)  \
  do(3, ",%[step3]", 6, 7, 20, 21)   \
  do(4, ",%[step],4", 8, 9, 22, 23)  \
  do(5, ",%[step5]", 10, 11, 24, 25) \
  do(6, ",%[step3],2", 12, 13, 26, 27)

// Multiplies all pixels by the groups of four bytes that `numbers` lists.
#define JIT_PASSES_QUADS(numbers, count)                 \
  ".irp u," numbers "\n"                                 \
  "vmovdqa32 64*%c[columns]*\\u(%[weight]), %%zmm28\n"   \
  ".if %c[columns] > 1\n"                                \
  "vmovdqa32 128*\\u+64(%[weight]), %%zmm29\n"           \
  ".endif\n"                                             \
  JIT_PASSES_EACH_PIXEL(JIT_PASSES_PIXEL)                \
  ".endr\n"                                              \
  "add $64*%c[columns]*" #count ", %[weight]\n"          \
  "add $4*" #count ", %[first]\n"                        \
  "add $4*" #count ", %[second]\n"

// Sums begin as moves between registers, which cost nothing; a load costs one cycle.
#define JIT_PASSES_BEGIN(p, at, a0, a1, b0, b1)   \
  ".if %c[half] > " #p "\n"                       \
  "vmovdqa32 %%zmm28, %%zmm" #a0 "\n"             \
  "vmovdqa32 %%zmm28, %%zmm" #b0 "\n"             \
  ".if %c[columns] > 1\n"                         \
  "vmovdqa32 %%zmm29, %%zmm" #a1 "\n"             \
  "vmovdqa32 %%zmm29, %%zmm" #b1 "\n"             \
  ".endif\n.endif\n"

#define JIT_PASSES_SUMS(p, at, a0, a1, b0, b1)          \
  ".if %c[half] > " #p "\n"                             \
  "vmovdqa32 %%zmm" #a0 ", 256*" #p "(%[result])\n"     \
  ".if %c[columns] > 1\n"                               \
  "vmovdqa32 %%zmm" #a1 ", 256*" #p "+64(%[result])\n"  \
  ".endif\n"                                            \
  ".if %c[halves] > 1\n"                                \
  "vmovdqa32 %%zmm" #b0 ", 256*" #p "+128(%[result])\n" \
  ".if %c[columns] > 1\n"                               \
  "vmovdqa32 %%zmm" #b1 ", 256*" #p "+192(%[result])\n" \
  ".endif\n.endif\n.endif\n"

// Turns sums into codes, pixel `p` of both halves in one register. Here the operands `first` and `second` are pixels
// of a residual, `jumps` and `runs` pixels of the result, and `weight` and `ahead` the steps between pixels. Once
// the first sums are packed, register 14 has the order.
#define JIT_PASSES_CODES(p, at, a0, a1, b0, b1)                       \
  ".if %c[half] > " #p "\n"                                         \
  JIT_PASSES_PACK(a0, a1, "first")                                  \
  ".if %c[halves] > 1\n"                                            \
  JIT_PASSES_PACK(b0, b1, "second")                                 \
  ".endif\n"                                                        \
  "vpackuswb %%zmm" #b0 ", %%zmm" #a0 ", %%zmm" #a0 "\n"            \
  ".if " #p " == 0\n"                                               \
  "vmovdqa32 %c[order](%[result]), %%zmm14\n"                       \
  ".endif\n"                                                        \
  "vpermd %%zmm" #a0 ", %%zmm14, %%zmm" #a0 "\n"                    \
  ".if (%c[gives] & 1) == 0\n"                                      \
  "vpminub %c[order]+128(%[result]), %%zmm" #a0 ", %%zmm" #a0 "\n"  \
  "vpmaxub %c[order]+64(%[result]), %%zmm" #a0 ", %%zmm" #a0 "\n"   \
  ".endif\n"                                                        \
  ".if %c[columns] > 1\n"                                           \
  "vmovdqu64 %%ymm" #a0 ", (%[jumps])\n"                            \
  ".else\n"                                                         \
  "vmovdqu64 %%xmm" #a0 ", (%[jumps])\n"                            \
  ".endif\n"                                                        \
  "add %[ahead], %[jumps]\n"                                        \
  ".if %c[halves] > 1\n"                                            \
  ".if %c[columns] > 1\n"                                           \
  "vextracti64x4 $1, %%zmm" #a0 ", (%[runs])\n"                     \
  ".else\n"                                                         \
  "vextracti32x4 $2, %%zmm" #a0 ", (%[runs])\n"                     \
  ".endif\n"                                                        \
  "add %[ahead], %[runs]\n"                                         \
  ".endif\n"                                                        \
  ".if %c[gives] & 2\n"                                             \
  "add %[weight], %[first]\n"                                       \
  "add %[weight], %[second]\n"                                      \
  ".endif\n.endif\n"

// Packs one pixel to int16, not clipped yet: four numbers of each register in each lane.
#define JIT_PASSES_PACK(sum0, sum1, pixel)                                \
  JIT_PASSES_ROUND(sum0, pixel, "0", "28", "30")                        \
  ".if %c[columns] > 1\n"                                               \
  JIT_PASSES_ROUND(sum1, pixel, "16", "29", "31")                       \
  "vpackssdw %%zmm" #sum1 ", %%zmm" #sum0 ", %%zmm" #sum0 "\n"          \
  ".else\n"                                                             \
  "vpackssdw %%zmm" #sum0 ", %%zmm" #sum0 ", %%zmm" #sum0 "\n"          \
  ".endif\n"                                                            \
  ".if (%c[gives] & 1) == 0\n"                                          \
  "vpaddsw %c[zero](%[result]), %%zmm" #sum0 ", %%zmm" #sum0 "\n"       \
  ".endif\n"

// Rounds 16 channels from `channel` on. With a residual, its pixels are at `first` and `second`, its scale is in
// register 31, and `left` points to the offsets. Without one, the offsets are in a register.
#define JIT_PASSES_ROUND(sum, pixel, channel, multiplier, offset)             \
  "vcvtdq2ps %%zmm" #sum ", %%zmm" #sum "\n"                                  \
  ".if %c[gives] & 2\n"                                                            \
  "vpmovzxbd " channel "(%[" pixel "]), %%zmm30\n"                            \
  "vcvtdq2ps %%zmm30, %%zmm30\n"                                              \
  "vfmadd213ps 4*" channel "(%[left]), %%zmm31, %%zmm30\n"                    \
  "vfmadd213ps %%zmm30, %%zmm" multiplier ", %%zmm" #sum "\n"                 \
  ".else\n"                                                                   \
  "vfmadd213ps %%zmm" offset ", %%zmm" multiplier ", %%zmm" #sum "\n"         \
  ".endif\n"                                                                  \
  ".if (%c[gives] & 1) == 0\n"                                                     \
  "vminps %c[most](%[result])%{1to16%}, %%zmm" #sum ", %%zmm" #sum "\n"         \
  ".endif\n"                                                                  \
  "vcvtps2dq %%zmm" #sum ", %%zmm" #sum "\n"

// The form of a tile's results. The assembly tests bits: direct is 1, added 2 and sums 4. Sums are [pixel of a
// half][half][channel]. Codes are 16 or 32 for each pixel, at the places of a TileResult. Direct: see Rounding; the
// saturation of packing also clips. Added: a residual is added before rounding.
enum class Gives { Codes, DirectCodes, AddedCodes, DirectAddedCodes, Sums };

// Multiplies a tile, or only its first half. `result` is int32 sums, or a TileResult. With each 16 bytes of input,
// two cache lines from `ahead` on are prefetched.
template <int kHalves, int kPixels, int kColumns, Gives kGives>
JIT_PASSES_VNNI void multiplyTile(
    const TileOf<TwoHalves>& tile, int64_t channel, const int8_t* weight, const int8_t* ahead, const int32_t* start,
    void* result) {
  const uint8_t *first = tile.part[0] + channel, *second = tile.part[1] + channel;
  const int64_t* jumps = tile.jumps;
  int64_t runs = tile.runs, left;
  asm volatile(
      "vmovdqa32 (%[start]), %%zmm28\n"
      ".if %c[columns] > 1\n"
      "vmovdqa32 64(%[start]), %%zmm29\n"
      ".endif\n"
      JIT_PASSES_EACH_PIXEL(JIT_PASSES_BEGIN)
      "1: mov %[quads], %[left]\n"
      "sub $4, %[left]\n"
      "js 3f\n"
      ".p2align 4\n"
      "2:\n"
      "prefetcht1 (%[ahead])\n"
      "prefetcht1 64(%[ahead])\n"
      "sub $-128, %[ahead]\n"
      JIT_PASSES_QUADS("0,1,2,3", 4)
      "sub $4, %[left]\n"
      "jns 2b\n"
      "3: add $4, %[left]\n"
      "jz 5f\n"
      "4:\n"
      JIT_PASSES_QUADS("0", 1)
      "dec %[left]\n"
      "jnz 4b\n"
      "5: mov (%[jumps]), %[left]\n"
      "add %[left], %[first]\n"
      "add %[left], %[second]\n"
      "add $8, %[jumps]\n"
      "dec %[runs]\n"
      "jnz 1b\n"
      ".if %c[gives] & 4\n"
      JIT_PASSES_EACH_PIXEL(JIT_PASSES_SUMS)
      ".else\n"
      "mov %c[multiplier](%[result]), %[left]\n"
      "vmovups (%[left]), %%zmm28\n"
      "vmovups 64(%[left]), %%zmm29\n"
      "mov %c[multiplier]+8(%[result]), %[left]\n"
      ".if %c[gives] & 2\n"
      "vbroadcastss %c[residual]+24(%[result]), %%zmm31\n"
      "mov %c[residual](%[result]), %[first]\n"
      "mov %c[residual]+8(%[result]), %[second]\n"
      "mov %c[residual]+16(%[result]), %[weight]\n"
      ".else\n"
      "vmovups (%[left]), %%zmm30\n"
      "vmovups 64(%[left]), %%zmm31\n"
      ".endif\n"
      "mov %c[codes](%[result]), %[jumps]\n"
      "mov %c[codes]+8(%[result]), %[runs]\n"
      "mov %c[codes]+16(%[result]), %[ahead]\n"
      JIT_PASSES_EACH_PIXEL(JIT_PASSES_CODES)
      ".endif\n"
      : [first] "+r"(first), [second] "+r"(second), [weight] "+r"(weight), [jumps] "+r"(jumps),
        [runs] "+r"(runs), [ahead] "+r"(ahead), [left] "=&r"(left)
      : [start] "r"(start), [result] "r"(result), [quads] "rm"(tile.quads), [step] "r"(tile.step),
        [step3] "r"(3 * tile.step), [step5] "r"(5 * tile.step), [half] "i"(kPixels), [columns] "i"(kColumns),
        [gives] "i"(kGives), [halves] "i"(kHalves),
        [residual] "i"(offsetof(TileResult, residual)), [multiplier] "i"(offsetof(TileResult, multiplier)),
        [order] "i"(offsetof(TileResult, order)),
        [zero] "i"(offsetof(TileResult, zero_point)), [codes] "i"(offsetof(TileResult, codes)), [most] "i"(offsetof(TileResult, most))
      : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",
        "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
}

// clang-format on

using MultiplyTile =
    void (*)(const TileOf<TwoHalves>&, int64_t, const int8_t*, const int8_t*, const int32_t*, void*);
template <int kHalves, int kColumns, Gives kGives>
constexpr MultiplyTile kOfPixels[kHalf] = {
    multiplyTile<kHalves, 1, kColumns, kGives>, multiplyTile<kHalves, 2, kColumns, kGives>,
    multiplyTile<kHalves, 3, kColumns, kGives>, multiplyTile<kHalves, 4, kColumns, kGives>,
    multiplyTile<kHalves, 5, kColumns, kGives>, multiplyTile<kHalves, 6, kColumns, kGives>,
    multiplyTile<kHalves, 7, kColumns, kGives>};
template <Gives kGives>
constexpr const MultiplyTile* kOfHalves[2][2] = {
    {kOfPixels<1, 1, kGives>, kOfPixels<1, 2, kGives>}, {kOfPixels<2, 1, kGives>, kOfPixels<2, 2, kGives>}};

inline MultiplyTile multiplyTileFor(Gives gives, int64_t halves, int64_t columns, int64_t pixels) {
  const auto of = [=](const auto& all) { return all[halves - 1][columns - 1][pixels - 1]; };
  switch (gives) {
    case Gives::Codes: return of(kOfHalves<Gives::Codes>);
    case Gives::DirectCodes: return of(kOfHalves<Gives::DirectCodes>);
    case Gives::AddedCodes: return of(kOfHalves<Gives::AddedCodes>);
    case Gives::DirectAddedCodes: return of(kOfHalves<Gives::DirectAddedCodes>);
    default: return of(kOfHalves<Gives::Sums>);
  }
}

// Computes the sums of a tile, [pixel][half][32 channels]. Kernels that finish sums use this or AmxSums (amx.h).
struct VnniSums {
  using Shape = TwoHalves;

  void operator()(
      const TileOf<Shape>& tile, int64_t halves, int64_t columns, int64_t pixels, int64_t channel,
      const int8_t* weight, const int8_t* ahead, const int32_t* start, int32_t* sums) const {
    multiplyTileFor(Gives::Sums, halves, columns, pixels)(tile, channel, weight, ahead, start, sums);
  }
};

} // namespace jit_passes::x86

#endif
