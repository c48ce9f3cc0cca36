// A program for inputs of given sizes: kernels, where their operands lie, and in which order they run.
#pragma once

#include "execute.h"
#include "kernels.h"
#include "shapes.h"

namespace jit_passes::x86 {

// A convolution that is ready to run, for images of any size.
struct Packed {
  Convolution kernel;
  std::vector<float> multiplier, offset;
};

// The packed weights of a program, made once, when they are needed first. Any thread may ask.
class Weights {
 public:
  explicit Weights(const Program& program) : program_(program) {}

  // `dense`: its input has no other channels in between. `zero_point` is that of the input.
  std::shared_ptr<const Packed> packed(size_t index, bool dense);

 private:
  const Program& program_;
  std::mutex mutex_;
  std::map<std::pair<size_t, bool>, std::shared_ptr<const Packed>> packed_;
};

// Memory and steps for one call at a time. All intermediate values lie in one block: those that are never
// needed at the same time share their place.
class Execution {
 public:
  Execution(const Program& program, Weights& weights, const std::vector<Sizes>& inputs);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Float32 tensors of the sizes that it is prepared for, with any strides.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, int threads);

  int64_t arenaBytes() const { return arena_.numel(); }

 private:
  friend class Preparation;

  struct Source {
    const float* data = nullptr;
    std::vector<int64_t> strides;
  };

  at::Tensor arena_;
  std::vector<Phase> phases_;
  std::vector<Sizes> output_sizes_;
  bool empty_ = false; // a batch of none
  // Of the call that runs: steps read them.
  std::vector<Source> sources_;
  std::vector<float*> results_;
};

} // namespace jit_passes::x86
