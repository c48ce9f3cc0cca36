// Weights in the order in which kernels read them, and what their sums are multiplied by.
#include "prepare.h"

namespace jit_passes::x86 {
namespace {

Window windowOf(const Operator& op) {
  using A = ConvolutionAttributes;
  Window window;
  if (op.kind != Kind::Convolution) {
    window.groups = op.kind == Kind::Affine ? op.tensors[kWeight].size(0) : 1;
    return window;
  }
  const auto& a = op.attributes;
  const auto sizes = op.tensors[kWeight].sizes();
  window.groups = a[A::Groups];
  window.kernel_d = sizes[2], window.kernel_h = sizes[3], window.kernel_w = sizes[4];
  window.stride_d = a[A::Stride], window.stride_h = a[A::Stride + 1], window.stride_w = a[A::Stride + 2];
  window.dilation_d = a[A::Dilation], window.dilation_h = a[A::Dilation + 1];
  window.dilation_w = a[A::Dilation + 2];
  window.pad_front = a[A::PadBefore], window.pad_top = a[A::PadBefore + 1];
  window.pad_left = a[A::PadBefore + 2];
  return window;
}

// Scales are rounded to float32 first, as those of the reference are.
std::shared_ptr<const Packed> pack(
    const Operator& op, const Grid& in, const Grid& out, bool dense, int64_t tap) {
  const at::NoGradGuard no_gradients;
  const auto& weight = op.tensors[kWeight];
  const Window window = windowOf(op);
  const int64_t outputs = weight.size(0), inputs = weight.size(1) * window.groups;
  const auto ordered = op.kind == Kind::Convolution  ? weight.permute({0, 2, 3, 4, 1}).contiguous()
                       : op.kind == Kind::Upsampling ? weight.flatten(2).select(2, tap).contiguous()
                                                     : weight;
  auto packed = std::make_shared<Packed>(Packed{
      Convolution(
          window, inputs, outputs, ordered.const_data_ptr<int8_t>(), static_cast<int32_t>(in.zero_point),
          dense),
      std::vector<float>(outputs), std::vector<float>(outputs)});
  const double in_scale = static_cast<float>(in.scale), out_scale = static_cast<float>(out.scale);
  for (int64_t c = 0; c < outputs; ++c) {
    const double weight_scale = static_cast<float>(op.tensors[kWeightScales].const_data_ptr<double>()[c]);
    packed->multiplier[c] = static_cast<float>(in_scale * weight_scale / out_scale);
    packed->offset[c] =
        static_cast<float>(out.zero_point + op.tensors[kBias].const_data_ptr<float>()[c] / out_scale);
  }
  return packed;
}

} // namespace

std::shared_ptr<const Packed> Weights::packed(size_t index, bool dense, int64_t tap) {
  const std::lock_guard lock(mutex_);
  auto& packed = packed_[{index, dense, tap}];
  if (!packed) {
    const Operator& op = program_.operators[index];
    packed = pack(op, program_.grids[op.inputs[0]], program_.grids[op.output], dense, tap);
  }
  return packed;
}

} // namespace jit_passes::x86
