#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

Planned logSoftmax(const RegionReader& reader, Node* node) {
  const bool casts =
      reader.has(node, "dtype") && reader.operand(node, "dtype").toInt() != int64_t(at::kFloat);
  refuseUnless(!casts, "it changes the dtype");
  return {
      {Kind("log_softmax"), "", {}, 0, {reader.operand(node, "dim").toInt()}, {}}, {inputOf(node, "self")}};
}

// y = x - m - log(sum of exp(x - m)) over the channels of each pixel, m the largest x. Numbers below it count as if they
// were 87 below it at most, where their share is less than float32 tells. The sum is in double. Items: rows.
struct LogSoftmaxFloats {
  int64_t items(const Image& out) const { return out.rows(); }

  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
    for (int64_t index = begin; index < end; ++index) {
      for (int64_t i = 0; i < in.width; ++i) {
        row(reinterpret_cast<const float*>(in.rowAt(index) + i * in.pixel), in.channels,
            reinterpret_cast<float*>(out.rowAt(index) + i * out.pixel));
      }
    }
  }

  static void row(const float* x, int64_t count, float* y) {
    const FloatFunction exponential{FloatFunction::Exp};
    const float largest = *std::max_element(x, x + count);
    for (int64_t i = 0; i < count; ++i) {
      y[i] = x[i] - largest;
    }
    constexpr int64_t kTogether = 256;
    float powers[kTogether];
    double sum = 0;
    for (int64_t i = 0; i < count; i += kTogether) {
      const int64_t some = std::min(kTogether, count - i);
      exponential.run(y + i, powers, some);
      sum = std::accumulate(powers, powers + some, sum);
    }
    const auto logarithm = static_cast<float>(std::log(sum));
    for (int64_t i = 0; i < count; ++i) {
      y[i] -= logarithm;
    }
  }
};

Part logSoftmaxKernel(const StepContext& c) { return c.unary(LogSoftmaxFloats{}); }

Sizes sizesOfLogSoftmax(const Operands& operands) {
  checkAxis(operands.op, operands.op.attributes[0], operands.first().size(), operands.first());
  return operands.first();
}

// Attributes: axis.
const RegisterOperator log_softmax_operator{
    {.name = "log_softmax",
     .attributes = {1, 1},
     .types = Types::Real,
     .from = {{"log_softmax", logSoftmax}},
     .check = checkAllAxes,
     .infer = sizesOfLogSoftmax,
     .channels = axisOfAttribute,
     .lower = lowerChannels,
     .kernel = logSoftmaxKernel}};

} // namespace
} // namespace jit_passes::x86
