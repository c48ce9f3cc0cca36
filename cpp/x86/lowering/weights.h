// The packed weights of a program.
#pragma once

#include "x86/kernels/recurrent.h"
#include "x86/program/shapes.h"

namespace jit_passes::x86 {

// The range of the grid's codes, for numbers with offsetOf(grid) added.
inline CodeRange codeRangeOf(const Grid& grid) {
  return {
      static_cast<int32_t>(grid.low), static_cast<int32_t>(grid.high),
      static_cast<int32_t>(grid.zero_point - offsetOf(grid))};
}

// Packed weights of a layer, for images of any size. A transposed convolution has a kernel for each of `residuesOf`,
// other convolutions have one. A recurrent layer has its own kernel instead.
struct Packed {
  std::shared_ptr<const std::vector<Convolution>> kernels;
  std::vector<float> multiplier, offset;
  float residual_multiplier;
  // The sum of the weights of each result, for one kernel after the other, if the result is float32.
  std::vector<int32_t> sums;

  std::shared_ptr<const RecurrentLayer> recurrent = nullptr;

  const Convolution& kernel(size_t number = 0) const { return (*kernels)[number]; }
};

// The packed weights of a program, made once, on first use. Any thread may ask.
//
// After packing, the tensor of the program keeps its sizes and loses its memory, so weights are held once. A `Whole`
// gives all tensors their content back for its lifetime.
class Weights {
 public:
  // The packed weights of an operator of the program, or of its form without the sum (sums.h), which has the same
  // tensor. `dense`: the pixels of its input have no other channels in between. `widths`: for Affine, the number of
  // channels of each value that it reads.
  std::shared_ptr<const Packed> packed(
      const Program& program, const Operator& op, bool dense, const std::vector<int64_t>& widths = {});

  // Returns memory that was released since the last call to the system. The allocator would keep it, in many pieces
  // between packed weights.
  void trim();

  class Whole {
   public:
    explicit Whole(Weights& weights);
    ~Whole();

   private:
    Weights& weights_;
    std::lock_guard<std::mutex> lock_;
  };

 private:
  struct Released {
    Operator op;
    std::shared_ptr<const Packed> packed;
  };

  void releaseAll();

  std::mutex mutex_;
  int64_t untrimmed_ = 0; // bytes
  // By the program's tensor of weights; whether a sum is added; `dense`; and `widths`.
  std::map<std::tuple<const void*, bool, bool, std::vector<int64_t>>, std::shared_ptr<const Packed>> packed_;
  std::map<const void*, Released> released_;
};

} // namespace jit_passes::x86
