// fpga::shift_sigmoid: a sigmoid of a shift, a sum and a clip.
//
//   y = clip(x / 4 + 1/2, 0, 1)       dy/dx = 1/4 where -2 < x < 2, else 0
//
// It is the tangent of the sigmoid at 0. In fixed point, x / 4 is a shift by two bits.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor shiftSigmoid(const Tensor& x) {
  TORCH_CHECK(
      x.is_floating_point(), "x must be a floating-point tensor, got ", x.scalar_type(),
      ": call x.float() first");
  return (x * 0.25 + 0.5).clamp_(0, 1);
}

class ShiftSigmoid : public torch::autograd::Function<ShiftSigmoid> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x});
    return shiftSigmoid(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto x = context->get_saved_variables()[0];
    return {gradients[0] * 0.25 * (x.abs() < 2)};
  }
};

TORCH_LIBRARY(fpga, m) { m.def("shift_sigmoid(Tensor x) -> Tensor"); }

TORCH_LIBRARY_IMPL(fpga, CompositeExplicitAutograd, m) { m.impl("shift_sigmoid", shiftSigmoid); }

TORCH_LIBRARY_IMPL(fpga, Autograd, m) {
  m.impl("shift_sigmoid", [](const Tensor& x) { return ShiftSigmoid::apply(x); });
}

} // namespace
