#include "from_graph.h"

#include "builder.h"
#include "graph/dialect.h"
#include "graph/operators.h"
#include "graph/places.h"
#include "recurrent_layers.h"
#include "x86/kernels/dynamic.h"

namespace jit_passes::x86 {
namespace {

struct Planner {
  Planned (*plan)(const RegionReader&, Node*);
  const Declaration* declaration;
  size_t any_dtype; // position among the node's operands
};

const std::unordered_map<c10::Symbol, Planner>& planners() {
  static const auto table = [] {
    std::unordered_map<c10::Symbol, Planner> found;
    for (const Declaration* declaration : declarations()) {
      for (const From& from : declaration->from) {
        const auto kind = c10::Symbol::fromQualString(std::string("aten::") + from.name);
        found.emplace(kind, Planner{from.plan, declaration, from.any_dtype});
      }
    }
    return found;
  }();
  return table;
}

} // namespace

bool isPlanned(const Node* node) { return planners().count(node->kind()) > 0; }

std::map<std::string, PlannedKind> plannedKinds() {
  std::map<std::string, PlannedKind> kinds;
  for (const auto& [kind, planner] : planners()) {
    const Types types = planner.declaration->types;
    kinds.emplace(kind.toQualString(), PlannedKind{planner.declaration->keeps_codes, types != Types::Codes});
  }
  for (const c10::Symbol kind : recurrentKinds()) {
    kinds.emplace(kind.toQualString(), PlannedKind{false, false});
  }
  for (const auto& [kind, traits] : operatorTable()) {
    if (traits.clip) {
      kinds.emplace(kind, PlannedKind{false, true});
    }
  }
  for (const c10::Symbol kind : identityKinds()) {
    kinds.emplace(kind.toQualString(), PlannedKind{true, true});
  }
  kinds.emplace("aten::to", PlannedKind{false, true});
  return kinds;
}

bool takesAnyDtype(const torch::jit::Use& use) {
  const auto found = planners().find(use.user->kind());
  return found != planners().end() && found->second.any_dtype == use.offset;
}

bool keepsCodes(const Node* node) {
  const auto found = planners().find(node->kind());
  return found != planners().end() && found->second.declaration->keeps_codes;
}

Planned plannedOperator(const RegionReader& reader, Node* node) {
  const auto found = planners().find(node->kind());
  refuseUnless(found != planners().end(), "a plan does not have this operator");
  return found->second.plan(reader, node);
}

std::optional<double> numberOf(const RegionReader& reader, const Value* value) {
  const auto known = reader.find(value);
  if (known && known->isTensor() && known->toTensor().dim() == 0) {
    return known->toTensor().item<double>();
  }
  return known && known->isScalar() ? std::optional(known->toScalar().toDouble()) : std::nullopt;
}

void setLast(std::vector<int64_t>& attributes, size_t at, const std::vector<int64_t>& numbers, int64_t rest) {
  for (size_t i = 0; i < 3; ++i) {
    const size_t unused = 3 - numbers.size();
    attributes[at + i] = i < unused ? rest : numbers[i - unused];
  }
}

std::vector<at::Tensor> weighted(const RegionReader& reader, const Node* node) {
  const auto [weight, scales] = reader.weights(operandOf(node, "weight"));
  return {weight, scales, reader.bias(operandOf(node, "bias"), weight.size(0))};
}

Planned withChoice(const RegionReader& reader, const Node* node, Planned planned) {
  if (node->input(0)->node()->kind() != dequantize_dynamic) {
    return planned;
  }
  const Node* codes = node->input(0)->node()->input(0)->node();
  refuseUnless(
      codes->kind() == quantize_dynamic && codes->input(1)->node()->kind() == choose_qparams &&
          codes->input(1)->node() == codes->input(2)->node() &&
          codes->input(0) == codes->input(1)->node()->input(0),
      "the grid of its input does not follow from its numbers");
  Node* choice = codes->input(1)->node();
  const auto text = [&](const char* name) { return reader.operand(choice, name).toStringRef(); };
  const std::string scheme = text("qscheme"), form = text("range_form");
  const bool linear = isLinear(planned.op.kind), per_row = scheme.starts_with("per_token_");
  refuseUnless(linear || !per_row, "the tokens of its input are no pixels");
  const RangeForm range = form == "fbgemm"                 ? RangeForm::Fbgemm
                          : scheme.ends_with("_symmetric") ? RangeForm::Symmetric
                                                           : RangeForm::Affine;
  const auto is = [&](const Node* of, const char* name, int64_t number) {
    return reader.operand(of, name).toInt() == number;
  };
  refuseUnless(
      is(codes, "quant_min", 0) && is(codes, "quant_max", 255) &&
          is(codes, "dtype", static_cast<int64_t>(at::kByte)) && is(choice, "quant_min", 0) &&
          is(choice, "quant_max", 255),
      "its input has other codes than uint8");
  const char* kind = declarationOf(planned.op.kind).dynamic_form;
  refuseUnless(kind != nullptr, "it has no form whose input is quantized as the plan runs");
  planned.op.kind = kindNamed(kind);
  planned.op.attributes.insert(planned.op.attributes.end(), {per_row, static_cast<int64_t>(range)});
  planned.operands = {choice->input(0)};
  return planned;
}

Planned clipping(Node* node, double low, double high) {
  return function(node, FloatFunction::Clip, {low, high});
}

} // namespace jit_passes::x86
