// jit_passes::train_lsq_plus: fake_quantize_lsq_plus with a scale and an offset that start from the first
// batch, and a zero point that integers have.
//
//   [low, high] = the range of the first batch with the least squared error, if scale is infinite and observe
//   scale       = (high - low) / (quant_max - quant_min)
//   offset      = low - quant_min * scale
//   result      = fake_quantize_lsq_plus(x, scale, o, gradient_scale = 1 / sqrt(N * quant_max))
//   o           = clip(round(offset / scale), -quant_max, -quant_min) * scale
//
// o is a whole number of steps: the zero point is -o / scale. Its gradient goes straight through to the
// offset, and none of it to the scale, so both gradients are the paper's, at o. An offset that a step of the
// optimizer took beyond the ends is put back there, so that the next can take it back.
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

// Other devices would have to be waited for to know whether there is something to put back.
template <bool kCpu>
void guardOffset(const Tensor& offset, const Tensor& scale, int64_t quant_min, int64_t quant_max) {
  const auto step = scale.reshape(offset.sizes());
  const auto nearest = at::minimum(at::maximum(offset, -quant_max * step), -quant_min * step);
  if (!kCpu || !at::equal(nearest, offset)) {
    at::AutoDispatchBelowADInplaceOrView guard; // nor a word to the counter that backward compares
    offset.copy_(nearest);
  }
}

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
      // Numbers that are all equal, as behind a gamma of 0, begin in the middle: the gradient stops at the ends.
      const int64_t first = low < high ? quant_min : (quant_min + quant_max + 1) / 2;
      assign(scale, {step});
      assign(offset, {low - static_cast<double>(first) * step});
    }
  }
  if (enabled && x.numel() > 0) {
    guardScale<kCpu>(scale, corrections, name);
    TORCH_CHECK_VALUE(
        !kCpu || std::isfinite(offset.item<double>()), "the trained offset of '", name, "' is ", offset,
        ": lower the learning rate of the quantization parameters, and resume from a checkpoint");
    guardOffset<kCpu>(offset, scale, quant_min, quant_max);
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
  callWithoutGradient(
      prepare, x, scale, offset, corrections, observe, enabled, quant_min, quant_max, group, name);
  if (!enabled) {
    return x.clone();
  }
  if (x.sym_numel() == 0) {
    return ofNothing(x, scale, offset);
  }
  const auto known = offset.detach(), step = scale.detach();
  const auto whole =
      (offset - known) + // 0, with the gradient
      callFakeQuantizeLearnable(known, step, -quant_max, -quant_min, std::nullopt, "half_even");
  return callFakeQuantizeLsqPlus(
      x, scale, whole, quant_min, quant_max, gradientScale(x, quant_max, std::nullopt, per_sample),
      std::nullopt);
}

const RegisterOp train_lsq_plus_op{
    "train_lsq_plus", "Fake-quantize with a trained scale and zero point that start from the data (LSQ+)."};
const RegisterOp prepare_lsq_plus_op{
    "prepare_lsq_plus", "Initialize LSQ+'s scale and offset, and keep the scale positive."};

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
