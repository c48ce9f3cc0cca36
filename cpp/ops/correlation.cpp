// jit_passes::correlation: a convolution or linear without its bias.
//
//   y[n, o, p] = sum over c, k of  input[n, c, p * stride - padding + k * dilation] * weight[o, c, k]
//   y[..., o] = sum over c of  input[..., c] * weight[o, c]          for a weight of two axes, without a window
//
// The weight decides whether there are 1, 2 or 3 spatial axes. If transposed, the weight is [in, out / groups,
// window...], the sum is the convolution's gradient, and output_padding applies. at::conv{1,2,3}d,
// at::conv_transpose{1,2,3}d and at::linear without bias compute the numbers, so results are equal to the bit.
//
// correlation.mode pads by name: "valid" not at all, "same" by (window - 1) * dilation in all, half of it on each
// side. If that is odd, the end gets one more, as in PyTorch.
#include <ATen/FuncTorchTLS.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "graph/registry.h"

namespace jit_passes {
namespace {

using at::IntArrayRef;
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool isLinear(const Tensor& weight) { return weight.dim() == 2; }

void checkLinear(const Tensor& input, const Tensor& weight, bool transposed, int64_t groups) {
  TORCH_CHECK(
      !transposed && groups == 1, "a weight of 2 dimensions has no transposed form and 1 group, got ", groups,
      transposed ? " groups, transposed" : " groups", ": give the weight a window of size 1");
  TORCH_CHECK(
      input.dim() > 0 && input.sym_size(-1) == weight.sym_size(1), "the last axis of input must have ",
      weight.sym_size(1), " numbers, for a weight of shape ", weight.sym_sizes(), ", got shape ",
      input.sym_sizes(), ": change weight or input");
}

void checkShapes(const Tensor& input, const Tensor& weight, bool transposed, int64_t groups) {
  TORCH_CHECK(
      weight.dim() >= 2 && weight.dim() <= 5,
      "weight must have 2 to 5 dimensions (channels, channels, window), got ", weight.dim(),
      ": give a window of one axis the shape [out, in / groups, length]");
  if (isLinear(weight)) {
    checkLinear(input, weight, transposed, groups);
    return;
  }
  TORCH_CHECK(
      input.dim() == weight.dim() || input.dim() == weight.dim() - 1, "input must have ", weight.dim(),
      " dimensions, or ", weight.dim() - 1, " without a batch axis, for a weight of ", weight.dim(), ", got ",
      input.dim(), ": reshape the input, or take a weight of another rank");
  TORCH_CHECK(groups > 0, "groups must be above 0, got ", groups, ": 1 is for no groups");
  const auto channels = input.sym_size(input.dim() - weight.dim() + 1);
  TORCH_CHECK(
      weight.sym_size(0) % groups == 0, "the first axis of weight must be a multiple of groups, got ",
      weight.sym_size(0), " in ", groups, " groups: choose groups that divide the channels");
  const auto expected = transposed ? weight.sym_size(0) : weight.sym_size(1) * groups;
  TORCH_CHECK(
      channels == expected, "input must have ", expected, " channels, for a ",
      transposed ? "transposed weight" : "weight", " of shape ", weight.sym_sizes(), " in ", groups,
      " groups, got ", channels, " in shape ", input.sym_sizes(), ": change weight or groups");
}

void checkLength(IntArrayRef list, const char* name, int64_t spatial_dims) {
  TORCH_CHECK(
      list.size() == 1 || static_cast<int64_t>(list.size()) == spatial_dims, name, " must hold 1 or ",
      spatial_dims, " numbers, got ", list, ": give one for all axes of the window, or one for each");
}

// PyTorch's own convolution, which handles tangents, function transforms and complex numbers.
Tensor convolve(
    const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
    bool transposed, IntArrayRef output_padding, int64_t groups) {
  checkShapes(input, weight, transposed, groups);
  const int64_t spatial_dims = weight.dim() - 2;
  checkLength(stride, "stride", spatial_dims);
  checkLength(padding, "padding", spatial_dims);
  checkLength(dilation, "dilation", spatial_dims);
  if (!transposed) {
    switch (spatial_dims) {
      case 0: return at::linear(input, weight);
      case 1: return at::conv1d(input, weight, {}, stride, padding, dilation, groups);
      case 2: return at::conv2d(input, weight, {}, stride, padding, dilation, groups);
      default: return at::conv3d(input, weight, {}, stride, padding, dilation, groups);
    }
  }
  checkLength(output_padding, "output_padding", spatial_dims);
  switch (spatial_dims) {
    case 1: return at::conv_transpose1d(input, weight, {}, stride, padding, output_padding, groups, dilation);
    case 2: return at::conv_transpose2d(input, weight, {}, stride, padding, output_padding, groups, dilation);
    default:
      return at::conv_transpose3d(input, weight, {}, stride, padding, output_padding, groups, dilation);
  }
}

Tensor correlation(
    const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
    bool transposed, IntArrayRef output_padding, int64_t groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("jit_passes::correlation", "")
                             .typed<decltype(convolve)>();
  return op.call(input, weight, stride, padding, dilation, transposed, output_padding, groups);
}

class Correlation : public torch::autograd::Function<Correlation> {
 public:
  static Tensor forward(
      AutogradContext* context, const Tensor& input, const Tensor& weight, IntArrayRef stride,
      IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
      int64_t groups) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({input, weight});
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->saved_data["dilation"] = dilation;
    context->saved_data["transposed"] = transposed;
    context->saved_data["output_padding"] = output_padding;
    context->saved_data["groups"] = groups;
    return correlation(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  }

  // Made of operators with derivatives, so that there is a second derivative.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1];
    const auto list = [&](const char* name) { return context->saved_data[name].toIntVector(); };
    const bool batched = input.dim() == weight.dim();
    const auto with_batch = [&](const Tensor& tensor) { return batched ? tensor : tensor.unsqueeze(0); };
    auto [of_input, of_weight, of_bias] = at::convolution_backward(
        with_batch(gradients[0]), with_batch(input), weight, {}, list("stride"), list("padding"),
        list("dilation"), context->saved_data["transposed"].toBool(), list("output_padding"),
        context->saved_data["groups"].toInt(),
        {context->needs_input_grad(0), context->needs_input_grad(1), false});
    if (!batched && of_input.defined()) {
      of_input = of_input.squeeze(0);
    }
    return {of_input, of_weight, {}, {}, {}, {}, {}, {}};
  }
};

bool hasTangent(const Tensor& tensor) { return tensor._fw_grad(0).defined(); }

Tensor correlationAutograd(
    const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
    bool transposed, IntArrayRef output_padding, int64_t groups) {
  // A C++ Function supports neither tangents nor function transforms, and convolution_backward no complex numbers.
  // Once a transform has run in a thread, the thread counts as inside one: PyTorch's headers tell no more, and the
  // derivatives are equal. A product of matrices has its derivatives in ATen.
  if (isLinear(weight) || hasTangent(input) || hasTangent(weight) || input.is_complex() ||
      weight.is_complex() || at::functorch::functorchTLSAccessor() != nullptr) {
    return convolve(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  }
  if (!at::GradMode::is_enabled() || !(input.requires_grad() || weight.requires_grad())) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return correlation(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  }
  return Correlation::apply(input, weight, stride, padding, dilation, transposed, output_padding, groups);
}

// Casts both operands to the dtype of autocast, as for aten::conv2d.
template <c10::DeviceType device>
Tensor correlationAutocast(
    const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
    bool transposed, IntArrayRef output_padding, int64_t groups) {
  const c10::impl::ExcludeDispatchKeyGuard guard(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const Tensor& tensor) { return at::autocast::cached_cast(dtype, tensor, device); };
  return correlation(
      cast(input), cast(weight), stride, padding, dilation, transposed, output_padding, groups);
}

// The padding for "same": equal on both sides, after a pad of the end where the total is odd.
Tensor padSame(
    const Tensor& input, const Tensor& weight, IntArrayRef dilation, std::vector<int64_t>& padding) {
  const int64_t spatial_dims = weight.dim() - 2;
  std::vector<c10::SymInt> behind(2 * spatial_dims, 0); // the last axis first, front and back of each
  bool uneven = false;
  for (int64_t axis = 0; axis < spatial_dims; ++axis) {
    const int64_t window = weight.sym_size(2 + axis).guard_int(__FILE__, __LINE__);
    const int64_t total = dilation[dilation.size() == 1 ? 0 : axis] * (window - 1);
    padding[axis] = total / 2;
    behind[2 * (spatial_dims - 1 - axis) + 1] = total % 2;
    uneven |= total % 2 != 0;
  }
  return uneven ? at::constant_pad_nd_symint(input, behind, 0) : input;
}

Tensor correlationMode(
    const Tensor& input, const Tensor& weight, IntArrayRef stride, std::string_view padding,
    IntArrayRef dilation, int64_t groups) {
  TORCH_CHECK(
      padding == "same" || padding == "valid", "padding must be 'same' or 'valid', got '", padding,
      "': give numbers for any other");
  checkShapes(input, weight, /*transposed=*/false, groups);
  const int64_t spatial_dims = weight.dim() - 2;
  checkLength(dilation, "dilation", spatial_dims);
  std::vector<int64_t> numbers(spatial_dims, 0);
  auto padded = input;
  if (padding == "same") {
    TORCH_CHECK(
        std::ranges::all_of(stride, [](int64_t step) { return step == 1; }),
        "padding 'same' needs a stride of 1, got ", stride, ": give the padding in numbers");
    padded = padSame(input, weight, dilation, numbers);
  }
  return correlation(
      padded, weight, stride, numbers, dilation, /*transposed=*/false, std::vector<int64_t>{0}, groups);
}

const RegisterOp correlation_op{
    "correlation(Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, "
    "bool transposed, int[] output_padding, int groups) -> Tensor",
    "A convolution or linear without its bias.",
    onAnyDevice(convolve),
    withGradient(correlationAutograd),
    torch::dispatch(c10::DispatchKey::FuncTorchBatched, convolve),
    torch::dispatch(c10::DispatchKey::AutocastCPU, correlationAutocast<c10::DeviceType::CPU>),
    torch::dispatch(c10::DispatchKey::AutocastCUDA, correlationAutocast<c10::DeviceType::CUDA>)};

// correlation.mode is composed of a pad and a correlation, which give it devices and gradients.
TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def(
      "correlation.mode(Tensor input, Tensor weight, int[] stride, str padding, int[] dilation, "
      "int groups) -> Tensor",
      correlationMode);
}

} // namespace
} // namespace jit_passes
