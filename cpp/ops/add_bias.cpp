// jit_passes::add_bias: the bias of a convolution or linear, one number for each channel.
//
//   y[n, c, p] = x[n, c, p] + bias[c]        for positions p of spatial_dims axes, with or without n
//   y[..., c] = x[..., c] + bias[c]          for spatial_dims = 0
//
// The bias is cast to the dtype of x, so under autocast the result has the dtype of a convolution with bias.
#include "graph/registry.h"

namespace jit_passes {
namespace {

at::Tensor addBias(const at::Tensor& x, const at::Tensor& bias, int64_t spatial_dims) {
  TORCH_CHECK(
      spatial_dims >= 0, "spatial_dims must be 0 or more, got ", spatial_dims,
      ": it is the number of axes behind the channels");
  TORCH_CHECK(
      x.dim() == spatial_dims + 1 || x.dim() == spatial_dims + 2 || (spatial_dims == 0 && x.dim() > 0),
      "x must have ", spatial_dims + 2, " dimensions, or ", spatial_dims + 1,
      " without a batch axis, for spatial_dims=", spatial_dims, ", got ", x.dim(),
      ": spatial_dims is the number of axes behind the channels");
  const auto channels = x.sym_size(x.dim() - spatial_dims - 1);
  TORCH_CHECK(
      bias.dim() == 1 && bias.sym_size(0) == channels, "bias must have shape [", channels,
      "], a number for each channel of x of shape ", x.sym_sizes(), ", got ", bias.sym_sizes(),
      ": check which axis holds the channels");
  std::vector<c10::SymInt> shape(spatial_dims + 1, 1);
  shape[0] = channels;
  return x.add(bias.to(x.scalar_type()).reshape_symint(shape));
}

const RegisterOp add_bias_op{
    "add_bias(Tensor x, Tensor bias, int spatial_dims) -> Tensor",
    "Add a number to each channel, as a convolution or linear does with its bias.", composed(addBias)};

} // namespace
} // namespace jit_passes
