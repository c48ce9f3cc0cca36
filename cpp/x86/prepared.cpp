#include "lower.h"
#include "sums.h"

namespace jit_passes::x86 {

Prepared::Prepared(const Program& program, Weights& weights, const std::vector<Sizes>& inputs) {
  auto apart = sumsApart(program, inputs);
  if (!apart) {
    prepare(program, weights, inputs);
    return;
  }
  apart_ = std::make_unique<const Program>(std::move(*apart));
  Weights own(*apart_);
  prepare(*apart_, own, inputs);
}

void Prepared::prepare(const Program& program, Weights& weights, const std::vector<Sizes>& inputs) {
  const auto sizes = inferSizes(program, inputs);
  bool empty = true;
  for (const int64_t output : program.outputs) {
    output_sizes_.push_back(sizes[output]);
    empty = empty && countOf(sizes[output]) == 0;
  }
  if (!empty) {
    auto lowered = lower(program, sizes, weights);
    bytes_ = lowered.bytes + kSlack; // kernels may read a little further than the last value
    phases_ = phasesOf(program, weights, std::move(lowered), scratch_bytes_);
  }
}

std::vector<at::Tensor> Prepared::run(
    const std::vector<at::Tensor>& inputs, uint8_t* arena, int threads,
    std::vector<int64_t>* nanoseconds) const {
  c10::SmallVector<Call::Source, 4> sources;
  c10::SmallVector<float*, 4> results;
  std::vector<at::Tensor> outputs;
  for (const Sizes& sizes : output_sizes_) {
    outputs.push_back(at::empty(sizes, at::kFloat));
    results.push_back(outputs.back().mutable_data_ptr<float>());
  }
  for (const at::Tensor& input : inputs) {
    sources.push_back({input.const_data_ptr<float>(), input.strides()});
  }
  execute(phases_, {arena, arena + bytes_, scratch_bytes_, sources, results}, threads, nanoseconds);
  return outputs;
}

} // namespace jit_passes::x86
