#include "dtypes_of_results.h"

#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

std::optional<ResultDtype> sameAs(const Value* tensor) {
  return ResultDtype{.as = ResultDtype::As::Same, .of = {tensor}};
}

std::optional<ResultDtype> promoted(at::ArrayRef<const Value*> operands) {
  return ResultDtype{.as = ResultDtype::As::Promoted, .of = {operands.begin(), operands.end()}};
}

} // namespace

// For the first result: others may be indices.
std::optional<ResultDtype> dtypeOfOperand(const Value* result) {
  return result->offset() == 0 ? sameAs(mainOperand(result->node())) : std::nullopt;
}

std::optional<ResultDtype> dtypeOfOther(const Value* result) {
  return sameAs(inputOf(result->node(), "other"));
}

// For a cast that asks for no dtype.
std::optional<ResultDtype> dtypeOfCast(const Value* result) {
  const Node* node = result->node();
  const Value* other = node->maybeSchema() == nullptr ? nullptr : operandOf(node, "other");
  return sameAs(other == nullptr ? mainOperand(node) : other);
}

std::optional<ResultDtype> dtypeOfPart(const Value* result) {
  const Node* list = result->node()->input()->node();
  return cutsTensor(list) ? sameAs(mainOperand(list)) : std::nullopt;
}

// For layers, which refuse an input of another dtype, and for lookups.
std::optional<ResultDtype> dtypeOfWeight(const Value* result) {
  return sameAs(inputOf(result->node(), "weight"));
}

// Of all tensors, and of all operands that may widen the dtype as the model runs.
std::optional<ResultDtype> dtypeOfTensors(const Value* result) {
  std::vector<const Value*> operands;
  for (const Value* operand : result->node()->inputs()) {
    const auto kind = operand->type()->kind();
    const bool widens =
        kind == c10::TypeKind::ComplexType || kind == c10::TypeKind::NumberType || mayBeTensor(operand);
    if (isTensor(operand) || (widens && !isNone(operand))) {
      operands.push_back(operand);
    }
  }
  return operands.empty() ? std::nullopt : promoted(operands);
}

std::optional<ResultDtype> dtypeOfAttention(const Value* result) {
  return promoted(result->node()->inputs().slice(0, 3));
}

std::optional<ResultDtype> dtypeOfElements(const Value* result) {
  const Node* list = mainOperand(result->node())->node();
  return list->kind() == prim::ListConstruct && !list->inputs().empty() ? promoted(list->inputs())
                                                                        : std::nullopt;
}

// For recurrent layers: the states are results too.
std::optional<ResultDtype> dtypeOfStates(const Value* result) { return sameAs(mainOperand(result->node())); }

std::optional<ResultDtype> dtypeOfKind(const Value* result) {
  return ResultDtype{.dtype = resultDtype(result->node())};
}

// For results that are floating, of a dtype that no operand tells.
std::optional<ResultDtype> floatingDtype(const Value*) { return ResultDtype{.floats = true}; }

std::optional<ResultDtype> dtypeAsked(const Value* result) {
  const Node* node = result->node();
  const bool asks = node->outputs().size() == 1 && node->maybeSchema() != nullptr;
  const Value* dtype = asks ? operandOf(node, "dtype") : nullptr;
  if (dtype == nullptr || isNone(dtype)) {
    return std::nullopt;
  }
  const auto number = constantNumber(dtype);
  const auto asked = number ? std::optional(static_cast<at::ScalarType>(*number)) : std::nullopt;
  // A norm of complex numbers is real, and layers with quantized weights give floats.
  const bool plain = asked && !at::isComplexType(*asked) && !at::isQIntType(*asked);
  return ResultDtype{.dtype = plain ? asked : std::nullopt};
}

} // namespace jit_passes
