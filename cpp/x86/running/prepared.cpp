#include "phases.h"
#include "x86/lowering/joins.h"
#include "x86/lowering/lower.h"
#include "x86/program/numbers.h"
#include "x86/program/orders.h"
#include "x86/program/sums.h"

namespace jit_passes::x86 {

Prepared::Prepared(const Program& program, Weights& weights, const Inputs& inputs) {
  const Program* whole = &program;
  for (const auto& form : {withNumbers, withoutEmptyParts, sumsApart}) {
    if (auto other = form(*whole, inputs.sizes)) {
      own_.push_back(std::make_unique<const Program>(std::move(*other)));
      whole = own_.back().get();
    }
  }
  prepare(*whole, weights, inputs);
}

void Prepared::prepare(const Program& program, Weights& weights, const Inputs& inputs) {
  const auto sizes = inferSizes(program, inputs.sizes);
  const auto orders = outputOrders(program, sizes);
  bool empty = true;
  for (size_t i = 0; i < orders.size(); ++i) {
    const int64_t output = program.outputs[i];
    output_sizes_.push_back(sizes[output]);
    spread_.push_back(numberSpread(program, output));
    output_strides_.push_back(stridesOf(sizes[output], orders[i]));
    empty = empty && countOf(sizes[output]) == 0;
  }
  if (!empty) {
    auto lowered = lower(program, sizes, inputs.contiguous, orders, weights);
    bytes_ = lowered.bytes + kSlack; // kernels may read a little beyond the last value
    constants_ = lowered.constants;
    phases_ = phasesOf(program, std::move(lowered), scratch_bytes_);
  }
}

std::vector<at::Tensor> Prepared::run(
    const std::vector<at::Tensor>& inputs, uint8_t* arena, int threads,
    std::vector<int64_t>* nanoseconds) const {
  c10::SmallVector<Call::Source, 4> sources;
  c10::SmallVector<uint8_t*, 8> homes{arena};
  for (const at::Tensor& input : inputs) {
    const auto* data = input.defined() ? input.const_data_ptr<float>() : nullptr; // never written to
    sources.push_back({data, input.defined() ? input.strides() : at::IntArrayRef()});
    homes.push_back(reinterpret_cast<uint8_t*>(const_cast<float*>(data)));
  }
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < output_sizes_.size(); ++i) {
    if (spread_[i]) {
      outputs.push_back(spread_[i]->clone().expand(output_sizes_[i])); // the caller may write to it
      homes.push_back(nullptr);
      continue;
    }
    outputs.push_back(at::empty_strided(output_sizes_[i], output_strides_[i], at::kFloat));
    homes.push_back(static_cast<uint8_t*>(outputs.back().mutable_data_ptr()));
  }
  for (const at::Tensor& constant : constants_) {
    homes.push_back(static_cast<uint8_t*>(const_cast<void*>(constant.const_data_ptr()))); // only read
  }
  execute(phases_, {homes, arena + bytes_, scratch_bytes_, sources}, threads, nanoseconds);
  return outputs;
}

} // namespace jit_passes::x86
