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
