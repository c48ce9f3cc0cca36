// A program for inputs of given sizes: kernels, where their operands lie, and in which order they run.
#pragma once

#include "execute.h"
#include "x86/lowering/weights.h"

namespace jit_passes::x86 {

// Of each input: the sizes, and whether it is known to be contiguous, and can be read where it is.
struct Inputs {
  std::vector<Sizes> sizes;
  std::vector<bool> contiguous;
  bool operator==(const Inputs&) const = default;
};

// Steps for inputs of given sizes, which any threads may run at once, each with memory of its own. All intermediate
// values lie in one block: those that are never needed at the same time share their place.
class Prepared {
 public:
  Prepared(const Program& program, Weights& weights, const Inputs& inputs);

  // Of the arena that `run` needs for so many threads.
  int64_t bytes(int threads) const { return bytes_ + std::max(threads, 1) * scratch_bytes_; }
  // Float32 tensors of the sizes that it is prepared for, with any strides but for those that have to be contiguous;
  // undefined where only the sizes are read.
  std::vector<at::Tensor> run(
      const std::vector<at::Tensor>& inputs, uint8_t* arena, int threads,
      std::vector<int64_t>* nanoseconds = nullptr) const;
  const std::vector<Phase>& phases() const { return phases_; }

 private:
  void prepare(const Program& program, Weights& weights, const Inputs& inputs);

  std::vector<std::unique_ptr<const Program>> own_; // for these sizes; the last one is what runs
  std::vector<Phase> phases_;                       // none for a batch of none
  std::vector<Sizes> output_sizes_, output_strides_;
  std::vector<std::optional<at::Tensor>> spread_; // outputs of which only the shape counts: see numberSpread
  int64_t bytes_ = 0, scratch_bytes_ = 0;         // for values, and for each thread
};

} // namespace jit_passes::x86
