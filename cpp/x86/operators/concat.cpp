#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {
namespace {

Sizes sizesOfConcat(const Operands& operands) { return joined(operands, operands.op.attributes[0]); }

Planned concat(const Reader& reader, Node* node) {
  Node* list = node->input(0)->node();
  refuseUnless(
      list->kind() == c10::prim::ListConstruct && !reader.isWritten(node->input(0)),
      "the list of its operands is made elsewhere");
  // Caches begin with a tensor of no numbers and one axis, which goes with any others.
  const auto isEmpty = [&](const Value* value) {
    const auto known = reader.find(value);
    return known && known->isTensor() && known->toTensor().dim() == 1 && known->toTensor().numel() == 0;
  };
  auto operands = list->inputs().vec();
  std::erase_if(operands, isEmpty);
  refuseUnless(!operands.empty(), "it joins nothing");
  const std::vector<int64_t> axis{reader.operand(node, "dim").toInt()};
  return {{Kind::Concat, "", {}, 0, axis, {}}, operands};
}

// Attributes: axis.
const RegisterOperator concat_operator{
    {.name = "concat",
     .inputs = {1, 4096},
     .attributes = {1, 1},
     .types = Types::Same,
     .from = {{"cat", concat}},
     .check = checkAllAxes,
     .infer = sizesOfConcat,
     .joins = axisOfAttribute,
     .lower = &Lowering::lowerConcat}};

} // namespace
} // namespace jit_passes::x86
