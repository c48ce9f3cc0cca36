// Sums of a tile of the convolution by AMX: up to 32 pixels by 32 output channels in four tile registers.
//
// A tile register has up to 16 rows of 64 bytes. A register of pixels has one row for each pixel, with up to 16
// groups of four neighbouring bytes. A register of weights has one row for each of these groups, with 16 channels,
// as packed for AVX-512 VNNI. tdpbusd adds the product of both to 16 x 16 sums: 16384 products in 16 cycles, where
// vpdpbusd takes 128.
#pragma once

#include <array>

#include "tile.h"
#include "vnni.h"

#if defined(JIT_PASSES_HAS_VNNI) && __GNUC__ >= 11
#define JIT_PASSES_HAS_AMX 1
#endif

namespace jit_passes::x86 {

// Two parts of up to 16 neighbours in a row.
struct TwoSixteens {
  static constexpr int64_t kParts = 2, kPixels = 16, kFewest = 8;
};

// Fewer pixels in a part keep a tile register waiting for its weights.
constexpr int64_t kFewestForAmx = 4;

// A run of groups of four bytes, divided into steps of equal depth. Weights are padded with zeros to whole steps, by
// fewer than 16 groups, so the bytes that are read after a run are within kSlack.
struct RunSteps {
  explicit RunSteps(int64_t quads)
      : count((quads + TwoSixteens::kPixels - 1) / TwoSixteens::kPixels),
        depth((quads + count - 1) / count) {}
  int64_t quads() const { return count * depth; }

  int64_t count, depth;
};

#ifdef JIT_PASSES_HAS_AMX

// Configures the tile registers of the calling thread for the lifetime of the object.
class TileRegisters {
 public:
  struct Shape {
    uint8_t rows = 0, bytes = 0; // bytes of one row
  };

  explicit TileRegisters(const std::array<Shape, 8>& registers) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (size_t i = 0; i < registers.size(); ++i) {
      shapes.rows[i] = registers[i].rows, shapes.bytes[i] = registers[i].bytes;
    }
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  // Releases the registers: the system would save them whenever the thread loses its processor.
  ~TileRegisters() { asm volatile("tilerelease"); }

  template <int kRegister>
  static void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kRegister));
  }
  template <int kRegister>
  static void load(const void* from, int64_t step) {
    asm volatile("tileloadd (%0,%1), %%tmm%c2" ::"r"(from), "r"(step), "i"(kRegister) : "memory");
  }
  template <int kRegister>
  static void store(int32_t* to, int64_t step) {
    asm volatile("tilestored %%tmm%c2, (%0,%1)" ::"r"(to), "r"(step), "i"(kRegister) : "memory");
  }
  template <int kSum, int kPixels, int kWeights>
  static void add() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kPixels), "i"(kWeights));
  }
};

// Registers 0 to 3 are sums, 4 and 5 pixels of the two parts, 6 and 7 weights of the first and the last 16 channels.
class AmxSums : TileRegisters {
 public:
  using Shape = TwoSixteens;

  AmxSums(int64_t pixels, int64_t quads) : AmxSums(pixels, RunSteps(quads)) {}

  // Computes the sums of `parts` parts and `columns` times 16 channels, in the order of `multiplyTile`
  // (convolution_tile.h).
  void operator()(
      const TileOf<Shape>& tile, int64_t parts, int64_t columns, int64_t /*pixels*/, int64_t channel,
      const int8_t* weight, const int8_t* ahead, const int32_t* start, int32_t* sums) const {
    const auto run = parts == 1     ? columns == 1 ? &AmxSums::multiply<1, 1> : &AmxSums::multiply<1, 2>
                     : columns == 1 ? &AmxSums::multiply<2, 1>
                                    : &AmxSums::multiply<2, 2>;
    (this->*run)(tile, channel, weight, ahead, start, sums);
  }

 private:
  static constexpr int64_t kSums = 2 * kBlockChannels * sizeof(int32_t); // bytes from pixel to pixel

  AmxSums(int64_t pixels, const RunSteps& steps)
      : TileRegisters(shapes(pixels, steps.depth)), steps_(steps) {}

  static std::array<TileRegisters::Shape, 8> shapes(int64_t pixels, int64_t depth) {
    const TileRegisters::Shape sums{static_cast<uint8_t>(pixels), 64};
    const TileRegisters::Shape part{sums.rows, static_cast<uint8_t>(4 * depth)};
    const TileRegisters::Shape weights{static_cast<uint8_t>(depth), 64};
    return {sums, sums, sums, sums, part, part, weights, weights};
  }

  template <int kParts, int kColumns>
  void multiply(
      const TileOf<Shape>& tile, int64_t channel, const int8_t* weight, const int8_t* ahead,
      const int32_t* start, int32_t* sums) const {
    constexpr int64_t kRow = 64 * kColumns;
    constexpr bool kTwoParts = kParts > 1, kTwoColumns = kColumns > 1;
    constexpr int64_t kLine = 64;
    const uint8_t *first = tile.part[0] + channel, *second = tile.part[1] + channel;
    load<0>(start, 0);
    if constexpr (kTwoColumns) {
      load<1>(start + 16, 0);
    }
    if constexpr (kTwoParts) {
      load<2>(start, 0);
    }
    if constexpr (kTwoParts && kTwoColumns) {
      load<3>(start + 16, 0);
    }
    for (int64_t run = 0; run < tile.runs; ++run) {
      for (int64_t step = 0; step < steps_.count; ++step) {
        load<4>(first, tile.step);
        load<6>(weight, kRow);
        add<0, 4, 6>();
        if constexpr (kTwoColumns) {
          load<7>(weight + 64, kRow);
          add<1, 4, 7>();
        }
        if constexpr (kTwoParts) {
          load<5>(second, tile.step);
          add<2, 5, 6>();
        }
        if constexpr (kTwoParts && kTwoColumns) {
          add<3, 5, 7>();
        }
        first += 4 * steps_.depth, second += 4 * steps_.depth, weight += steps_.depth * kRow;
        for (int64_t four = 4; four <= steps_.depth; four += 4, ahead += 2 * kLine) {
          __builtin_prefetch(ahead, 0, 2);
          __builtin_prefetch(ahead + kLine, 0, 2);
        }
      }
      first += tile.jumps[run], second += tile.jumps[run];
    }
    store<0>(sums, kSums);
    if constexpr (kTwoColumns) {
      store<1>(sums + 16, kSums);
    }
    if constexpr (kTwoParts) {
      store<2>(sums + 32, kSums);
    }
    if constexpr (kTwoParts && kTwoColumns) {
      store<3>(sums + 48, kSums);
    }
  }

  RunSteps steps_;
};

#endif

} // namespace jit_passes::x86
