// Functions along one axis whose result has the size of the operand.
#include "operator.h"

namespace jit_passes::x86 {
namespace {

Planned alongAxis(const RegionReader& reader, Node* node, const char* kind) {
  reader.refuseCast(node);
  return {{Kind(kind), "", {}, 0, {reader.integer(node, "dim")}, {}}, {inputOf(node, "self")}};
}

Planned logSoftmax(const RegionReader& reader, Node* node) { return alongAxis(reader, node, "log_softmax"); }
Planned cumsum(const RegionReader& reader, Node* node) { return alongAxis(reader, node, "cumsum"); }

Sizes sizesAlongAxis(const Operands& operands) {
  checkAxis(operands.op, operands.op.attributes[0], operands.first().size(), operands.first());
  return operands.first();
}

template <typename Kernel>
Part alongAxisKernel(const StepContext& c) {
  return c.ofRows(Kernel{});
}

// Attributes: axis.
template <typename Kernel>
Declaration alongAxisOperator(const char* name, From from) {
  return {
      .name = name,
      .attributes = {1, 1},
      .types = Types::Real,
      .decodes = true,
      .from = {from},
      .check = checkAllAxes,
      .infer = sizesAlongAxis,
      .channels = axisOfAttribute,
      .lower = lowerChannels,
      .kernel = alongAxisKernel<Kernel>};
}

const RegisterOperator log_softmax_operator{
    alongAxisOperator<LogSoftmaxFloats>("log_softmax", {"log_softmax", logSoftmax})};
const RegisterOperator cumsum_operator{alongAxisOperator<CumulateFloats>("cumsum", {"cumsum", cumsum})};

} // namespace
} // namespace jit_passes::x86
