// A program for inputs of given sizes: kernels, the places of their operands, and their order.
#pragma once

#include "execute.h"
#include "x86/lowering/weights.h"

namespace jit_passes::x86 {

// For each input: the sizes, and whether it is known to be contiguous and so can be read in place.
struct Inputs {
  std::vector<Sizes> sizes;
  std::vector<bool> contiguous;
  bool operator==(const Inputs&) const = default;
};

// Steps for inputs of given sizes. Several threads may run them at one time, each with its own memory. All
// intermediate values are in one arena; values that are never needed at one time share their place.
class Prepared {
 public:
  Prepared(const Program& program, Weights& weights, const Inputs& inputs);

  // The size of the arena that `run` needs for so many threads.
  int64_t bytes(int threads) const { return bytes_ + std::max(threads, 1) * scratch_bytes_; }
  // `inputs` are float32 tensors of the prepared sizes, with any strides except where contiguous ones are expected.
  // An input whose sizes alone are read is undefined.
  std::vector<at::Tensor> run(
      const std::vector<at::Tensor>& inputs, uint8_t* arena, int threads,
      std::vector<int64_t>* nanoseconds = nullptr) const;
  const std::vector<Phase>& phases() const { return phases_; }

 private:
  void prepare(const Program& program, Weights& weights, const Inputs& inputs);

  std::vector<std::unique_ptr<const Program>> own_; // forms of the program for these sizes; the last one runs
  std::vector<Phase> phases_;                       // none for an empty batch
  std::vector<at::Tensor> constants_;               // read where they are
  std::vector<Sizes> output_sizes_, output_strides_;
  std::vector<std::optional<at::Tensor>> spread_; // outputs without memory: see numberSpread
  int64_t bytes_ = 0, scratch_bytes_ = 0;         // size of the values, and of each thread's scratch
};

} // namespace jit_passes::x86
