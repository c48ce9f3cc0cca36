// Comparisons of two tensors that broadcast: 1 where the test holds, else 0. Only operators of the plan read these
// truths, and any number but 0 is true for them. A region gives no truths (`Capability.truths`).
#include "broadcast.h"
#include "graph/operators.h"
#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {
namespace {

using Which = CompareFloats::Which;

template <Which kWhich>
Planned comparison(const RegionReader&, Node* node) {
  return {{Kind("compare"), "", {}, 0, {kWhich}, {}}, {node->input(0), node->input(1)}};
}

// a > b is b < a.
template <Which kWhich>
Planned swappedComparison(const RegionReader&, Node* node) {
  return {{Kind("compare"), "", {}, 0, {kWhich}, {}}, {node->input(1), node->input(0)}};
}

// A test of one tensor.
template <Which kWhich>
Planned ownTruth(const RegionReader&, Node* node) {
  return {{Kind("compare"), "", {}, 0, {kWhich}, {}}, {node->input(0), node->input(0)}};
}

bool isTruth(const Value* value) {
  static const std::unordered_set<c10::Symbol> of_bits{
      c10::aten::bitwise_and, c10::aten::bitwise_or, c10::aten::bitwise_not, c10::aten::__and__,
      c10::aten::__or__};
  const Node* node = value->node();
  if (of_bits.count(node->kind()) > 0) {
    return std::ranges::all_of(node->inputs(), isTruth);
  }
  const auto known = operatorTable().find(node->kind().toQualString());
  return known != operatorTable().end() && known->second.gives == at::kBool;
}

// PyTorch's bitwise operators also combine the bits of integers. A plan has them for truths only.
template <Which kWhich>
Planned bitwise(const RegionReader& reader, Node* node) {
  refuseUnless(
      std::ranges::all_of(node->inputs(), isTruth), "its operands are not truths that the model compares");
  const bool one = node->inputs().size() == 1;
  return one ? ownTruth<kWhich>(reader, node) : comparison<kWhich>(reader, node);
}

void checkCompare(const Operator& op) {
  refuseUnless(between(op.attributes[0], 0, CompareFloats::Count - 1), "there is no test ", op.attributes[0]);
}

bool givesTruths(const Operator& /*op*/) { return false; }

Part compareKernel(const StepContext& c) {
  const Memory& to = c.out();
  const Dims dims = pixelDims(to.sizes, to.axis);
  const Placed a = broadcastTo(to, c.in(0), dims), b = broadcastTo(to, c.in(1), dims), y = image(to, dims);
  const CompareFloats kernel{static_cast<Which>(c.op.attributes[0]), floatOperand(c, 0), floatOperand(c, 1)};
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            kernel.run(a.in(call), b.in(call), y.in(call), begin, end);
          }};
}

// Attributes: the test, a CompareFloats::Which.
const RegisterOperator compare_operator{
    {.name = "compare",
     .inputs = {2, 2},
     .attributes = {1, 1},
     .types = Types::Mixed,
     .from =
         {{"lt", comparison<Which::Less>},
          {"le", comparison<Which::LessOrEqual>},
          {"gt", swappedComparison<Which::Less>},
          {"ge", swappedComparison<Which::LessOrEqual>},
          {"eq", comparison<Which::Equal>},
          {"ne", comparison<Which::NotEqual>},
          {"isnan", ownTruth<Which::NotEqual>},
          {"logical_and", comparison<Which::Both>},
          {"logical_or", comparison<Which::Either>},
          {"logical_not", ownTruth<Which::Neither>},
          {"bitwise_and", bitwise<Which::Both>},
          {"bitwise_or", bitwise<Which::Either>},
          {"bitwise_not", bitwise<Which::Neither>},
          {"__and__", bitwise<Which::Both>},
          {"__or__", bitwise<Which::Either>}},
     .check = checkCompare,
     .infer = sizesOfAll,
     .least_axes = mostAxesOfAny,
     .gives_codes = givesTruths,
     .lower = lowerBroadcast,
     .elementwise = true,
     .kernel = compareKernel,
     .order = orderOfLargest}};

} // namespace
} // namespace jit_passes::x86
