#include "kernels.h"

#include <torch/csrc/autograd/custom_function.h>

namespace jit_passes {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

class ByBackward : public torch::autograd::Function<ByBackward> {
 public:
  static Tensor forward(
      AutogradContext* context, const c10::OperatorHandle& op, at::TensorList tensors, Stack operands) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward(tensors.vec());
    const Stack others(operands.begin() + tensors.size(), operands.end());
    context->saved_data["others"] = c10::ivalue::Tuple::create(others);
    context->saved_data["backward"] = op.schema().name() + "_backward";
    op.callBoxed(operands);
    return operands.back().toTensor();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& name = context->saved_data["backward"].toStringRef();
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
    Stack stack{gradients[0]};
    const auto saved = context->get_saved_variables();
    stack.insert(stack.end(), saved.begin(), saved.end());
    const auto& others = context->saved_data["others"].toTupleRef().elements();
    const auto missing = static_cast<ptrdiff_t>(op.schema().arguments().size() - stack.size());
    stack.insert(stack.end(), others.begin(), others.begin() + missing);
    op.callBoxed(stack);
    variable_list result(saved.size() + 2); // one for each argument of `forward`
    std::transform(
        stack.begin(), stack.end(), result.begin() + 1, [](const auto& found) { return found.toTensor(); });
    return result;
  }
};

void runByBackward(const c10::OperatorHandle& op, Stack* stack) {
  const auto operands = torch::jit::pop(*stack, op.schema().arguments().size());
  variable_list tensors;
  for (const auto& operand : operands) {
    if (operand.isTensor()) {
      tensors.push_back(operand.toTensor());
    }
  }
  torch::jit::push(*stack, ByBackward::apply(op, at::TensorList(tensors), operands));
}

void runLikeOperands(const c10::OperatorHandle& op, Stack* stack) {
  const auto operands = torch::jit::pop(*stack, op.schema().arguments().size());
  const size_t results = op.schema().returns().size();
  for (size_t i = 0; i < results; ++i) {
    torch::jit::push(*stack, at::empty_like(operands[results > 1 ? i + 1 : i].toTensor()));
  }
}

void runNothing(const c10::OperatorHandle& op, Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

} // namespace

torch::CppFunction byBackward() { return torch::CppFunction::makeFromBoxedFunction<&runByBackward>(); }

torch::CppFunction likeOperands() { return torch::CppFunction::makeFromBoxedFunction<&runLikeOperands>(); }

torch::CppFunction doNothing() { return torch::CppFunction::makeFromBoxedFunction<&runNothing>(); }

} // namespace jit_passes
