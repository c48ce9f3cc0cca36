#include "plan.h"

#include <torch/custom_class.h>

namespace jit_passes::x86 {
namespace {

// Sizes that a plan stays prepared for, and arenas for each of them: as many threads may call at once without
// preparing anew.
constexpr size_t kSizes = 16, kIdle = 16;

at::Tensor toFloat(const at::Tensor& x, size_t number) {
  TORCH_CHECK(x.defined(), "input ", number, " of the plan is undefined");
  TORCH_CHECK(
      x.device().is_cpu() && x.layout() == at::kStrided, "input ", number,
      " of the plan must be a dense tensor of the CPU, got ", x.toString(), ": call x.cpu() or x.to_dense()");
  TORCH_CHECK(
      x.is_floating_point(), "input ", number, " of the plan must have a floating-point dtype, got ",
      x.scalar_type(), ": call x.float()");
  return x.to(at::kFloat);
}

} // namespace

Plan::Plan(Program program) : program_(std::move(program)), weights_(program_) {}

std::vector<at::Tensor> Plan::run(const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK(
      int64_t(inputs.size()) == program_.inputs, "the plan takes ", program_.inputs, " tensors, got ",
      inputs.size());
  const at::AutoDispatchBelowAutograd no_gradients;
  std::vector<at::Tensor> floats;
  std::vector<Sizes> sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    floats.push_back(toFloat(inputs[i], i));
    sizes.push_back(inputs[i].sizes().vec());
  }
  auto execution = take(sizes);
  auto outputs = execution->run(floats, at::get_num_threads());
  giveBack(sizes, std::move(execution));
  return outputs;
}

std::unique_ptr<Execution> Plan::take(const std::vector<Sizes>& sizes) {
  {
    const std::lock_guard lock(mutex_);
    for (Prepared& prepared : prepared_) {
      if (prepared.sizes == sizes && !prepared.idle.empty()) {
        auto execution = std::move(prepared.idle.back());
        prepared.idle.pop_back();
        return execution;
      }
    }
  }
  return std::make_unique<Execution>(program_, weights_, sizes);
}

void Plan::giveBack(const std::vector<Sizes>& sizes, std::unique_ptr<Execution> execution) {
  std::list<Prepared> evicted; // freed without the lock
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(
      prepared_.begin(), prepared_.end(), [&](const Prepared& prepared) { return prepared.sizes == sizes; });
  if (found == prepared_.end()) {
    found = prepared_.insert(prepared_.begin(), Prepared{sizes, {}});
  }
  if (found->idle.size() < kIdle) {
    found->idle.push_back(std::move(execution));
  }
  prepared_.splice(prepared_.begin(), prepared_, found);
  if (prepared_.size() > kSizes) {
    evicted.splice(evicted.begin(), prepared_, std::prev(prepared_.end()));
  }
}

std::string Plan::toString() const {
  std::ostringstream text;
  for (const Operator& op : program_.operators) {
    const Grid& grid = program_.grids[op.output];
    text << "%" << op.output << " = " << nameOf(op.kind) << "(";
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      text << (i ? ", " : "") << (op.kind == Kind::Quantize ? "input " : "%") << op.inputs[i];
    }
    text << ") # " << op.name << ", scale " << grid.scale << ", zero point " << grid.zero_point << ", ["
         << grid.low << ", " << grid.high << "]";
    if (!op.tensors.empty() && op.tensors[0].dim() > 1) {
      text << ", weights " << op.tensors[0].sizes();
    }
    text << "\n";
  }
  text << "return";
  for (const int64_t output : program_.outputs) {
    text << " %" << output;
  }
  return text.str();
}

namespace {

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.class_<Plan>("Plan")
      .def("run", &Plan::run)
      .def("__str__", &Plan::toString)
      .def_pickle(
          [](const c10::intrusive_ptr<Plan>& plan) { return plan->state(); },
          [](const State& state) { return c10::make_intrusive<Plan>(programOf(state)); });
}

} // namespace

} // namespace jit_passes::x86
