// Programs to and from their state in a file.
#include "program.h"

namespace jit_passes::x86 {
namespace {

// A program without computed numbers has the format 2, which earlier versions can read.
constexpr int64_t kFormat = 3, kWithoutNumbers = 2;

// The weights in all states that are in use. Plans of several methods may have equal weights; as one tensor, a file
// has them once. Tensors of a state must not be written to, since other states may share them. Plans hold copies.
class Held {
 public:
  // A known tensor with the content of `copy`; else `copy` itself, which is known from then on.
  at::Tensor shared(const at::Tensor& copy) {
    const auto bytes = static_cast<size_t>(copy.nbytes());
    if (bytes < kWorthIt) {
      return copy;
    }
    const std::string_view content(static_cast<const char*>(copy.const_data_ptr()), bytes);
    const size_t key = std::hash<std::string_view>()(content);
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    const auto [begin, end] = known_.equal_range(key);
    for (auto entry = begin; entry != end; ++entry) {
      if (const auto found = entry->second.lock()) {
        const at::Tensor other(found);
        if (other.scalar_type() == copy.scalar_type() && other.sizes() == copy.sizes() &&
            std::memcmp(other.const_data_ptr(), copy.const_data_ptr(), bytes) == 0) {
          return other;
        }
      }
    }
    known_.emplace(key, WeakTensor(copy.getIntrusivePtr()));
    return copy;
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
  static constexpr size_t kWorthIt = 256;

  std::mutex mutex_;
  std::unordered_multimap<size_t, WeakTensor> known_;
};

std::vector<at::Tensor> sharedCopiesOf(const std::vector<at::Tensor>& tensors) {
  static Held held;
  auto copies = copiesOf(tensors);
  for (at::Tensor& copy : copies) {
    copy = held.shared(copy);
  }
  return copies;
}

} // namespace

std::vector<at::Tensor> copiesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone(at::MemoryFormat::Contiguous));
  }
  return copies;
}

State stateOf(const Program& program) {
  std::vector<double> scales;
  std::vector<int64_t> codes;
  for (const Grid& grid : program.grids) {
    scales.push_back(grid.scale);
    codes.insert(codes.end(), {grid.zero_point, grid.low, grid.high, int64_t{grid.is_float}});
  }
  const bool computes = !program.numbers.empty();
  std::vector<OperatorState> operators;
  for (const Operator& op : program.operators) {
    std::vector<std::vector<int64_t>> lists{op.inputs, {op.output}, op.attributes};
    if (computes) {
      lists.emplace_back();
    }
    for (const auto& [attribute, number] : op.computed) {
      lists.back().insert(lists.back().end(), {attribute, number});
    }
    operators.emplace_back(
        std::vector<std::string>{nameOf(op.kind), op.name}, std::move(lists), sharedCopiesOf(op.tensors));
  }
  std::vector<std::vector<int64_t>> lists{
      {computes ? kFormat : kWithoutNumbers, program.inputs}, codes, program.outputs};
  if (computes) {
    lists.emplace_back();
  }
  for (const Number& number : program.numbers) {
    lists.back().insert(lists.back().end(), {static_cast<int64_t>(number.how), number.a, number.b});
  }
  return {std::move(lists), scales, operators};
}

Program programOf(const State& state) {
  const auto& [lists, scales, operators] = state;
  TORCH_CHECK(!lists.empty() && lists[0].size() == 2, "not a plan: its state has another form");
  const int64_t format = lists[0][0];
  TORCH_CHECK(
      format == kFormat || format == kWithoutNumbers, "the plan has the format ", format,
      ", and this jit_passes reads ", kWithoutNumbers, " and ", kFormat,
      ": load it with the version that wrote it, or quantize the model anew");
  const size_t more = format == kFormat; // lists for the plan and for each operator
  TORCH_CHECK(
      lists.size() == 3 + more && (more == 0 || lists[3].size() % 3 == 0),
      "not a plan: its state has another form");
  const auto& codes = lists[1];
  TORCH_CHECK(
      codes.size() == 4 * scales.size(), "not a plan: ", scales.size(), " scales, and ", codes.size(),
      " zero points, ends of codes and types");
  Program program;
  program.inputs = lists[0][1];
  for (size_t i = 0; i < scales.size(); ++i) {
    const int64_t* grid = &codes[4 * i];
    TORCH_CHECK(grid[3] == 0 || grid[3] == 1, "not a plan: value ", i, " has the type ", grid[3]);
    program.grids.push_back({scales[i], grid[0], grid[1], grid[2], grid[3] == 1});
  }
  for (const auto& [texts, numbers, tensors] : operators) {
    TORCH_CHECK(
        texts.size() == 2 && numbers.size() == 3 + more && numbers[1].size() == 1 &&
            (more == 0 || numbers[3].size() % 2 == 0),
        "not a plan: the state of an operator has another form");
    program.operators.push_back(
        {kindNamed(texts[0]), texts[1], numbers[0], numbers[1][0], numbers[2], tensors});
    for (size_t i = 0; more && i < numbers[3].size(); i += 2) {
      program.operators.back().computed.emplace_back(numbers[3][i], numbers[3][i + 1]);
    }
  }
  program.outputs = lists[2];
  for (size_t i = 0; more && i < lists[3].size(); i += 3) {
    program.numbers.push_back({Number::How{lists[3][i]}, lists[3][i + 1], lists[3][i + 2]});
  }
  check(program);
  return program;
}

} // namespace jit_passes::x86
