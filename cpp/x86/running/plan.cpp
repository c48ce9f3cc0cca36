#include "plan.h"

#include "x86/program/types.h"

#include <torch/custom_class.h>

namespace jit_passes::x86 {
namespace {

// The number of sizes of inputs that a plan stays prepared for, and of arenas that it keeps. So many calls can run
// at one time without allocating memory.
constexpr size_t kSizes = 32, kArenas = 16;

// Together with float32, integers and bools, such as masks, become float32, as in PyTorch.
at::Tensor toFloat(const at::Tensor& x, size_t number, bool is_beside_floats) {
  TORCH_CHECK(
      x.device().is_cpu() && x.layout() == at::kStrided, "input ", number,
      " of the plan must be a dense tensor of the CPU, got ", x.toString(), ": call x.cpu() or x.to_dense()");
  TORCH_CHECK(
      x.is_floating_point() || (is_beside_floats && !x.is_complex() && !x.is_quantized()), "input ", number,
      " of the plan must have a floating-point dtype, got ", x.scalar_type(), ": call x.float()");
  return x.to(at::kFloat).resolve_neg();
}

// An arena aligned to a huge page, in huge pages if it fills one.
at::Tensor newArena(int64_t bytes) {
  const int64_t page = kLargePage;
  if (bytes < page) {
    return at::empty({bytes}, at::kByte);
  }
  const int64_t whole = (bytes + page - 1) / page * page;
  const at::Tensor block = at::empty({whole + page}, at::kByte);
  const int64_t start = -reinterpret_cast<int64_t>(block.const_data_ptr()) & (page - 1);
  at::Tensor arena = block.narrow(0, start, whole);
  adviseLargePages(arena.mutable_data_ptr(), whole);
  return arena;
}

} // namespace

// Copies tensors: the caller may change them after the checks, or need the memory that the plan releases.
Plan::Plan(Program program) : program_(std::move(program)) {
  for (Operator& op : program_.operators) {
    op.tensors = copiesOf(op.tensors);
  }
  taken_.resize(program_.inputs), read_.resize(program_.inputs), beside_floats_.resize(program_.inputs, true);
  std::vector<int64_t> sources(program_.grids.size(), -1); // the input that a value is
  std::vector<int64_t> moved(program_.grids.size(), -1);   // the input whose elements each value has
  std::vector<bool> certain(program_.grids.size(), true);  // whether it is float32 for any inputs
  for (const Operator& op : program_.operators) {
    if (op.kind == Kind::Input) {
      sources[op.output] = moved[op.output] = op.attributes[0];
    }
    const Declaration& declaration = declarationOf(op.kind);
    const bool mixes = declaration.types == Types::Mixed, picks = declaration.any_dtype != SIZE_MAX;
    auto numbers = op.inputs;
    if (picks) {
      numbers.erase(numbers.begin() + declaration.any_dtype);
    }
    const auto isCertain = [&](int64_t value) { return bool(certain[value]); };
    if (op.inputs.empty()) {
      certain[op.output] = op.kind == Kind::Constant && op.tensors[0].dim() > 0;
    } else if (mixes || picks || declaration.moves) {
      certain[op.output] = std::ranges::any_of(numbers, isCertain);
    }
    for (const int64_t value : numbers) {
      if (moved[value] >= 0 && declaration.moves) {
        moved[op.output] = moved[value];
      } else if (moved[value] >= 0 && !(mixes && certain[op.output])) {
        beside_floats_[moved[value]] = false;
      }
    }
    for (const int64_t value : op.inputs) {
      if (sources[value] >= 0) {
        taken_[sources[value]] = true;
        read_[sources[value]] = read_[sources[value]] || op.kind != Kind::Quantize;
      }
    }
  }
  for (const int64_t value : program_.outputs) {
    if (sources[value] >= 0) {
      taken_[sources[value]] = true;
    }
    if (moved[value] >= 0) {
      beside_floats_[moved[value]] = false;
    }
  }
}

std::vector<at::Tensor> Plan::run(const std::vector<at::Tensor>& inputs) {
  std::shared_ptr<const Prepared> ready;
  return run(inputs, ready, nullptr);
}

State Plan::state() {
  const Weights::Whole whole(weights_);
  return stateOf(program_);
}

Plan::Profile Plan::profile(const std::vector<at::Tensor>& inputs) {
  std::shared_ptr<const Prepared> ready;
  std::vector<int64_t> nanoseconds;
  run(inputs, ready, &nanoseconds);
  Profile profile;
  for (size_t i = 0; i < nanoseconds.size(); ++i) {
    const Phase& phase = ready->phases()[i];
    if (phase.goes_on) {
      std::get<3>(profile.back()) += phase.products, std::get<4>(profile.back()) += nanoseconds[i];
      continue;
    }
    profile.emplace_back(phase.name, phase.kernel, phase.sizes, phase.products, nanoseconds[i]);
  }
  return profile;
}

std::vector<at::Tensor> Plan::run(
    const std::vector<at::Tensor>& inputs, std::shared_ptr<const Prepared>& ready,
    std::vector<int64_t>* nanoseconds) {
  TORCH_CHECK(
      int64_t(inputs.size()) == program_.inputs, "the plan takes ", program_.inputs, " tensors, got ",
      inputs.size());
  const at::AutoDispatchBelowAutograd no_gradients;
  std::vector<at::Tensor> floats;
  Inputs given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].defined(), "input ", i, " of the plan is undefined");
    floats.push_back(taken_[i] ? toFloat(inputs[i], i, beside_floats_[i]) : at::Tensor());
    // With so many axes, some count as one, with the stride of the inner axis. A contiguous tensor may have any
    // stride along an axis of size 1, so the tensor is viewed as one row, and then with the strides of its sizes.
    if (taken_[i] && floats.back().dim() > kMostPlanAxes) {
      floats.back() = floats.back().contiguous().flatten().view(inputs[i].sizes());
    }
    given.sizes.push_back(inputs[i].sizes().vec());
    given.contiguous.push_back(read_[i] && floats.back().is_contiguous());
  }
  ready = prepared(given);
  const int threads = at::get_num_threads();
  at::Tensor arena = takeArena(ready->bytes(threads));
  auto outputs = ready->run(floats, arena.mutable_data_ptr<uint8_t>(), threads, nanoseconds);
  giveBack(std::move(arena));
  return outputs;
}

std::shared_ptr<const Prepared> Plan::prepared(const Inputs& inputs) {
  const auto find = [&] {
    const auto found = std::find_if(
        prepared_.begin(), prepared_.end(), [&](const auto& entry) { return entry.first == inputs; });
    if (found != prepared_.end()) {
      prepared_.splice(prepared_.begin(), prepared_, found);
    }
    return found != prepared_.end();
  };
  {
    const std::lock_guard lock(mutex_);
    if (find()) {
      return prepared_.front().second;
    }
  }
  auto made = std::make_shared<const Prepared>(program_, weights_, inputs);
  weights_.trim();
  const std::lock_guard lock(mutex_);
  if (!find()) { // another thread may have prepared it
    prepared_.emplace_front(inputs, std::move(made));
    prepared_.resize(std::min(prepared_.size(), kSizes));
  }
  return prepared_.front().second;
}

at::Tensor Plan::takeArena(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    while (!arenas_.empty()) {
      at::Tensor arena = std::move(arenas_.back());
      arenas_.pop_back();
      if (arena.numel() >= bytes) {
        return arena;
      }
    }
  }
  return newArena(bytes);
}

void Plan::giveBack(at::Tensor arena) {
  const std::lock_guard lock(mutex_);
  if (arenas_.size() < kArenas) {
    arenas_.push_back(std::move(arena));
  }
}

std::string Plan::toString() const {
  std::ostringstream text;
  for (const Operator& op : program_.operators) {
    const Grid& grid = program_.grids[op.output];
    text << "%" << op.output << " = " << nameOf(op.kind) << "(";
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      text << (i ? ", %" : "%") << op.inputs[i];
    }
    text << (op.kind == Kind::Input ? std::to_string(op.attributes[0]) : "") << ") # " << op.name;
    if (grid.is_float) {
      text << ", float32";
    } else {
      text << ", scale " << grid.scale << ", zero point " << grid.zero_point << ", [" << grid.low << ", "
           << grid.high << "]";
    }
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
      .def(
          "run", [](const c10::intrusive_ptr<Plan>& plan,
                    const std::vector<at::Tensor>& inputs) { return plan->run(inputs); })
      .def("profile", &Plan::profile)
      .def("__str__", &Plan::toString)
      .def_pickle(
          [](const c10::intrusive_ptr<Plan>& plan) { return plan->state(); },
          [](const State& state) { return c10::make_intrusive<Plan>(programOf(state)); });
}

} // namespace

} // namespace jit_passes::x86
