// The packed weights of a program.
#pragma once

#include "x86/kernels/recurrent.h"
#include "x86/program/shapes.h"

namespace jit_passes::x86 {

// The codes of the grid, of numbers to which `offsetOf` it was added.
inline CodeRange codeRangeOf(const Grid& grid) {
  return {
      static_cast<int32_t>(grid.low), static_cast<int32_t>(grid.high),
      static_cast<int32_t>(grid.zero_point - offsetOf(grid))};
}

// Weights that are ready to run, for images of any size. A transposed one has a kernel for each of `residuesOf`,
// others have one. A recurrent
// layer has a kernel of its own instead.
struct Packed {
  std::shared_ptr<const std::vector<Convolution>> kernels;
  std::vector<float> multiplier, offset;
  float residual_multiplier;
  // Of the weights for each result, of one kernel after the other, where the result is float32.
  std::vector<int32_t> sums;

  std::shared_ptr<const RecurrentLayer> recurrent = nullptr;

  const Convolution& kernel(size_t number = 0) const { return (*kernels)[number]; }
};

// The packed weights of a program, made once, when they are needed first. Any thread may ask.
//
// Packed weights are released: the tensor of the program keeps its sizes, and has no memory. So weights are held
// once. `Whole` has them all back for as long as it lives.
class Weights {
 public:
  // Of an operator of the program, or of the form of it that adds nothing (sums.h), which has the same tensor.
  // `dense`: its input has no other channels in between.
  // `widths`: of Affine, how many channels each of the values has that it reads.
  std::shared_ptr<const Packed> packed(
      const Program& program, const Operator& op, bool dense, const std::vector<int64_t>& widths = {});

  // Gives what was released since the last time back to the system. The allocator would keep it, in many pieces
  // between what was packed meanwhile.
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
  // By the tensor of the weights, which the program holds; the first bool says whether a sum is added.
  std::map<std::tuple<const void*, bool, bool, std::vector<int64_t>>, std::shared_ptr<const Packed>> packed_;
  std::map<const void*, Released> released_;
};

} // namespace jit_passes::x86
