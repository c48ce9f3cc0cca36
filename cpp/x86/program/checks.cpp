#include "checks.h"

#include "x86/kernels/dynamic.h"

namespace jit_passes::x86 {
namespace {

// A limit for sums of products, and for the part of the zero point, so that their sum fits int32.
constexpr int64_t kMaxSum = int64_t{1} << 30;

} // namespace

bool mayLeaveInt32(const at::Tensor& weight) {
  return weight.numel() / weight.size(0) * 128 >= kMaxSum / 255;
}

void checkEach(const std::vector<int64_t>& numbers, int64_t low, int64_t high, const char* what) {
  for (const int64_t number : numbers) {
    refuseUnless(between(number, low, high), what, " of ", number);
  }
}

void checkAxesFrom(const Operator& op, size_t from) {
  checkEach({op.attributes.begin() + from, op.attributes.end()}, -8, 7, "an axis");
}

void checkAllAxes(const Operator& op) { checkAxesFrom(op, 0); }

void checkShapeFrom(const Operator& op, size_t from) {
  const std::vector<int64_t> sizes(op.attributes.begin() + from, op.attributes.end());
  refuseUnless(std::count(sizes.begin(), sizes.end(), -1) <= 1, "more than one size is open");
  checkEach(sizes, -1, kMaxSize, "a size");
}

void checkSpatial(int64_t spatial) {
  refuseUnless(between(spatial, 1, 3), "it has 1 to 3 spatial axes, not ", spatial);
}

void checkWindow(bool used, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
  refuseUnless(
      used || (kernel == 1 && stride == 1 && pad == 0 && dilation == 1),
      "a window in more than its spatial axes");
  refuseUnless(
      between(kernel, 1, kMostWindow) && between(stride, 1, kMostWindow) && between(pad, 0, kMostWindow) &&
          between(dilation, 1, kMostWindow),
      "a window of ", kernel, ", a stride of ", stride, ", a padding of ", pad, ", a dilation of ", dilation);
}

void checkNumbers(const at::Tensor& numbers, int64_t count, const char* what) {
  refuseUnless(
      numbers.scalar_type() == at::kDouble && numbers.dim() == 1 && numbers.size(0) == count, what,
      " are float64, ", count, " of them, not ", numbers.scalar_type(), " of the shape ", numbers.sizes());
  refuseUnless(at::isfinite(numbers.to(at::kFloat)).all().item<bool>(), what, " are not finite");
}

void checkBias(const at::Tensor& bias) {
  refuseUnless(at::isfinite(bias).all().item<bool>(), "its bias is not finite");
}

void checkWeights(const Operator& op, int64_t dims) {
  const auto &weight = op.tensors[kWeight], &bias = op.tensors[kBias];
  if (weight.is_meta()) {
    return; // a model that is not quantized yet: see RegionReader
  }
  refuseUnless(
      weight.scalar_type() == at::kChar && weight.dim() == dims && weight.numel() > 0,
      "weights are int8 with ", dims, " axes, not ", weight.scalar_type(), " of the shape ", weight.sizes());
  for (const int64_t size : weight.sizes()) {
    refuseUnless(between(size, 1, kMaxSize), "weights of the shape ", weight.sizes());
  }
  checkNumbers(op.tensors[kWeightScales], weight.size(0), "scales of weights");
  refuseUnless((op.tensors[kWeightScales] > 0).all().item<bool>(), "a scale of its weights is not above 0");
  refuseUnless(
      bias.scalar_type() == at::kFloat && bias.dim() == 1 && bias.size(0) == weight.size(0),
      "the bias is float32, a number for each of ", weight.size(0), " results");
  checkBias(bias);
  const auto fits = [&] {
    const auto sums = weight.to(at::kShort).abs().reshape({weight.size(0), -1}).sum(1, false, at::kLong);
    return sums.max().item<int64_t>() < kMaxSum / 255;
  };
  refuseUnless(
      weight.numel() / weight.size(0) <= kMostProducts && (!mayLeaveInt32(weight) || fits()),
      "its weights are too many or too large for sums in int32");
}

void checkSum(const Operator& op) {
  const bool has_sum = op.inputs.size() > 1;
  refuseUnless(has_sum == (op.tensors.size() > kFactors), "a sum has an operand and factors");
  if (has_sum) {
    checkNumbers(op.tensors[kFactors], 2, "factors");
    refuseUnless(op.tensors[kFactors][0].item<float>() != 0, "the factor of its own result is 0");
  }
}

void checkDynamic(const Operator& op) {
  refuseUnless(
      between(dynamicAttribute(op, DynamicAttributes::PerRow), 0, isLinear(op.kind)),
      "whether rows have grids is 0 or 1, and 0 where they are no rows of a linear layer");
  refuseUnless(
      between(dynamicAttribute(op, DynamicAttributes::Form), 0, int64_t(RangeForm::Count) - 1),
      "no formulas with this number find a grid");
}

} // namespace jit_passes::x86
