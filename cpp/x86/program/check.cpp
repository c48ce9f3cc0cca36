// Checks of whole programs, since files are not trusted. No later code checks again.
#include "checks.h"
#include "numbers.h"
#include "types.h"

namespace jit_passes::x86 {
namespace {

bool liesWithin(const at::Tensor& tensor, int64_t elements) {
  const int64_t offset = tensor.storage_offset();
  return offset >= 0 && tensor.numel() <= elements && offset <= elements - tensor.numel();
}

void checkTensor(const at::Tensor& tensor) {
  refuseUnless(
      tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
          !tensor.is_quantized() && tensor.is_contiguous() && !tensor.requires_grad(),
      "its tensors must be plain, dense and of the CPU");
  // A file may give a tensor sizes that exceed its memory.
  refuseUnless(
      tensor.numel() == 0 || liesWithin(tensor, tensor.storage().nbytes() / tensor.element_size()),
      "a tensor is larger than its storage");
}

// Adds the operator to the message of a check: "not a plan: conv1:conv2d (convolution): ...".
template <typename Check>
void named(const Operator& op, const Check& check) {
  try {
    check();
  } catch (const Refusal& error) {
    TORCH_CHECK(false, "not a plan: ", op.name, " (", nameOf(op.kind), "): ", error.reason);
  }
}

class Checker {
 public:
  explicit Checker(const Program& program)
      : program_(program), computed_(program.grids.size()), numbers_(program.numbers.size()) {}

  void check() {
    TORCH_CHECK(between(program_.inputs, 1, kMaxCount), "not a plan: ", program_.inputs, " inputs");
    TORCH_CHECK(
        program_.grids.size() <= size_t(kMaxCount) && program_.operators.size() <= size_t(kMaxCount),
        "not a plan: more than ", kMaxCount, " values or operators");
    for (size_t i = 0; i < program_.grids.size(); ++i) {
      checkGrid(program_.grids[i], i);
    }
    checkNumbersOf(program_);
    for (const Operator& op : program_.operators) {
      checkOperator(op);
    }
    TORCH_CHECK(
        between(program_.outputs.size(), 1, kMaxCount), "not a plan: ", program_.outputs.size(), " outputs");
    for (const int64_t output : program_.outputs) {
      TORCH_CHECK(isComputed(output), "not a plan: it returns value ", output, ", which is not computed");
    }
  }

 private:
  void checkOperator(const Operator& op) {
    checkForm(op);
    named(op, [&] { checkValues(op); });
  }

  void checkValues(const Operator& op) {
    for (const int64_t input : op.inputs) {
      refuseUnless(isComputed(input), "its operand, value ", input, ", is not computed before it");
    }
    for (const auto& [attribute, number] : op.computed) {
      refuseUnless(
          between(number, 0, int64_t(numbers_.size()) - 1), "number ", number, " of ", numbers_.size());
      forEachSized(program_, number, numbers_, [&](int64_t value) {
        refuseUnless(
            isComputed(value), "it needs the size of value ", value, ", which is not computed before it");
      });
    }
    refuseUnless(
        between(op.output, 0, int64_t(computed_.size()) - 1) && !computed_[op.output], "value ", op.output,
        " is none, or has been computed already");
    computed_[op.output] = true;
    refuseUnless(fitsTypes(op, program_.grids), "it does not have operands and a result of these types");
    declarationOf(op.kind).check_values(op, program_);
  }

  bool isComputed(int64_t value) const {
    return between(value, 0, int64_t(computed_.size()) - 1) && computed_[value];
  }

  const Program& program_;
  std::vector<bool> computed_;
  std::vector<bool> numbers_; // values that Number::Sizes needs
};

} // namespace

void check(const Program& program) { Checker(program).check(); }

void checkCounts(const Operator& op) {
  const Declaration& form = declarationOf(op.kind);
  const auto count = [&](size_t found, const Count& allowed, const char* of) {
    refuseUnless(
        found >= allowed.least && found <= allowed.most, found, " ", of, ", and it has ", allowed.least,
        " to ", allowed.most);
  };
  count(op.inputs.size(), form.inputs, "inputs");
  count(op.attributes.size(), form.attributes, "attributes");
  count(op.tensors.size(), form.tensors, "tensors");
  for (const auto& [attribute, number] : op.computed) {
    refuseUnless(
        between(attribute, 0, int64_t(op.attributes.size()) - 1) && form.computes(op, attribute),
        "it computes its attribute ", attribute);
  }
}

void checkForm(const Operator& op) {
  named(op, [&] {
    refuseUnless(isKind(op.kind), "no operator declares its kind");
    checkCounts(op);
    std::ranges::for_each(op.tensors, checkTensor);
    declarationOf(op.kind).check(op);
  });
}

} // namespace jit_passes::x86
