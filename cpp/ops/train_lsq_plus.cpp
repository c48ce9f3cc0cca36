// jit_passes::train_lsq_plus: fake_quantize_lsq_plus with a scale and an offset that start from the first
// batch, and a zero point that integers have.
//
//   [low, high] = the range of the first batch with the least squared error, if scale is infinite and observe
//   scale       = (high - low) / (quant_max - quant_min)
//   offset      = low - quant_min * scale
//   result      = fake_quantize_lsq_plus(x, scale, o, gradient_scale = 1 / sqrt(N * quant_max))
//   o           = fake_quantize_learnable(offset, scale, -quant_max, -quant_min)
//
// o is a whole number of steps, from -quant_max to -quant_min of them: the zero point is -o / scale. The
// mask is not LSQ's, which excludes the ends: an offset of 0, as after a relu, is at an end where quant_min
// is 0, and would stay there for good.
//
// Source: Bhalgat et al., arXiv:2004.09576.
#include "fake_quantize.h"
#include "first_batch.h"
#include "trained_quantization.h"
#include "training.h"

namespace jit_passes {
namespace {

using at::Tensor;
using c10::string_view;

template <bool kCpu>
void prepareLsqPlus(
    const Tensor& x, const Tensor& scale, const Tensor& offset, const Tensor& corrections, bool observe,
    bool enabled, int64_t quant_min, int64_t quant_max, string_view group, string_view name) {
  checkGrid(x, quant_min, quant_max);
  checkCount(scale, "scale", x, std::nullopt);
  checkCount(offset, "offset", x, std::nullopt);
  if (observe && isUnset(scale)) {
    const FirstBatch batch(x, std::nullopt, 0, std::nullopt, group, name);
    if (!batch.empty()) {
      const auto [low, high] = batch.leastSquaredError(quant_min, quant_max, /*with_offset=*/true);
      const double step = std::max((high - low) / static_cast<double>(quant_max - quant_min), kSmallestScale);
      assign(scale, {step});
      assign(offset, {low - static_cast<double>(quant_min) * step});
    }
  }
  if (enabled && x.numel() > 0) {
    guardScale<kCpu>(scale, corrections, name);
    TORCH_CHECK_VALUE(
        !kCpu || std::isfinite(offset.item<double>()), "the trained offset of '", name, "' is ", offset,
        ": lower the learning rate of the quantization parameters, and resume from a checkpoint");
  }
}

void prepareLsqPlusMeta(
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool, bool, int64_t, int64_t, string_view,
    string_view) {}

Tensor trainLsqPlus(
    const Tensor& x, const Tensor& scale, const Tensor& offset, const Tensor& corrections, bool observe,
    bool enabled, bool per_sample, int64_t quant_min, int64_t quant_max, string_view group, string_view name,
    string_view) {
  static const auto prepare = findOperator<void(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool, bool, int64_t, int64_t, string_view,
      string_view)>("jit_passes::prepare_lsq_plus");
  prepare.call(
      x.detach(), scale.detach(), offset.detach(), corrections, observe, enabled, quant_min, quant_max, group,
      name);
  if (!enabled) {
    return x.clone();
  }
  if (x.sym_numel() == 0) {
    return ofNothing(x, scale, offset);
  }
  const auto whole =
      callFakeQuantizeLearnable(offset, scale, -quant_max, -quant_min, std::nullopt, "half_even");
  return callFakeQuantizeLsqPlus(
      x, scale, whole, quant_min, quant_max, gradientScale(x, quant_max, std::nullopt, per_sample),
      std::nullopt);
}

const RegisterOp train_op{
    "train_lsq_plus", "Fake-quantize with a trained scale and zero point that start from the data (LSQ+)."};
const RegisterOp prepare_op{"prepare_lsq_plus", "Start these, and look after them."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) {
  m.def(
      "prepare_lsq_plus(Tensor x, Tensor(a!) scale, Tensor(b!) offset, Tensor(c!) corrections, bool observe, "
      "bool enabled, int quant_min, int quant_max, str group, str name) -> ()");
  m.def(
      "train_lsq_plus(Tensor x, Tensor(a!) scale, Tensor(b!) offset, Tensor(c!) corrections, bool observe, "
      "bool enabled, bool per_sample, int quant_min, int quant_max, str group, str name, str spec) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(jit_passes, CPU, m) { m.impl("prepare_lsq_plus", prepareLsqPlus<true>); }

TORCH_LIBRARY_IMPL(jit_passes, CompositeExplicitAutograd, m) {
  m.impl("prepare_lsq_plus", prepareLsqPlus<false>);
}

TORCH_LIBRARY_IMPL(jit_passes, Meta, m) { m.impl("prepare_lsq_plus", prepareLsqPlusMeta); }

TORCH_LIBRARY_IMPL(jit_passes, CompositeImplicitAutograd, m) { m.impl("train_lsq_plus", trainLsqPlus); }

} // namespace
} // namespace jit_passes
