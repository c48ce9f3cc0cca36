#include "from_graph.h"

#include "builder.h"
#include "graph/dialect.h"
#include "graph/operators.h"
#include "graph/places.h"
#include "x86/kernels/dynamic.h"

namespace jit_passes::x86 {
namespace {

// Kinds of nodes that a plan has without a declaration.
std::map<std::string, PlannedKind> kindsWithoutDeclaration() {
  std::map<std::string, PlannedKind> kinds;
  for (const auto& [kind, traits] : operatorTable()) {
    if (traits.recurrent == Recurrent::Plain || traits.recurrent == Recurrent::Gated) {
      kinds.emplace(kind, PlannedKind{false, false});
    }
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

struct Planner {
  From from;
  const Declaration* declaration;
};

const bool kinds_are_reserved = [] {
  for (const auto& [kind, has] : kindsWithoutDeclaration()) {
    reserveKind(kind);
  }
  return true;
}();

struct Planners {
  explicit Planners(size_t count) : count(count) {
    for (const Declaration* declaration : declarations()) {
      for (const From& from : declaration->from) {
        by_kind.emplace(c10::Symbol::fromQualString(kindOfNode(from)), Planner{from, declaration});
      }
    }
  }

  const size_t count; // of declarations
  std::unordered_map<c10::Symbol, Planner> by_kind;
};

// Made anew once a library with further operators is loaded. Older ones are kept, since other threads may read them.
const Planners& planners() {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<const Planners>> made;
  const std::lock_guard lock(mutex);
  const size_t count = countDeclarations();
  if (made.empty() || made.back()->count != count) {
    made.push_back(std::make_unique<const Planners>(count));
  }
  return *made.back();
}

const Planner* plannerOf(const Node* node) {
  const auto& known = planners().by_kind;
  const auto found = known.find(node->kind());
  return found == known.end() ? nullptr : &found->second;
}

} // namespace

bool isPlanned(const Node* node) { return plannerOf(node) != nullptr; }

std::map<std::string, PlannedKind> plannedKinds() {
  auto kinds = kindsWithoutDeclaration();
  for (const auto& [kind, planner] : planners().by_kind) {
    const Declaration& declaration = *planner.declaration;
    kinds.emplace(
        kind.toQualString(), PlannedKind{declaration.keeps_codes, declaration.types != Types::Codes});
  }
  return kinds;
}

bool takesAnyDtype(const torch::jit::Use& use) {
  const Planner* planner = plannerOf(use.user);
  const char* name = planner ? planner->from.any_dtype : nullptr;
  return name && use.user->schema().argumentIndexWithName(name) == static_cast<int>(use.offset);
}

bool takesShape(const Node* node) {
  const Planner* planner = plannerOf(node);
  return planner && planner->declaration->takes_shape;
}

bool keepsCodes(const Node* node) {
  const Planner* planner = plannerOf(node);
  return planner && planner->declaration->keeps_codes;
}

Planned plannedOperator(const RegionReader& reader, Node* node) {
  const Planner* planner = plannerOf(node);
  refuseUnless(planner != nullptr, "a plan does not have this operator");
  Planned planned = planner->from.plan(reader, node);
  TORCH_CHECK(
      isKind(planned.op.kind), "the operator '", planner->declaration->name, "' of plans turns ",
      node->kind().toQualString(), " into the operator '", nameOf(planned.op.kind),
      "', which no file declares: correct the name, or declare it");
  return planned;
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
  const auto text = [&](const char* name) { return reader.text(choice, name); };
  const std::string scheme = text("qscheme"), form = text("range_form");
  const bool linear = isLinear(planned.op.kind), per_row = scheme.starts_with("per_token_");
  refuseUnless(linear || !per_row, "the tokens of its input are no pixels");
  const RangeForm range = form == "fbgemm"                 ? RangeForm::Fbgemm
                          : scheme.ends_with("_symmetric") ? RangeForm::Symmetric
                                                           : RangeForm::Affine;
  const auto is = [&](const Node* of, const char* name, int64_t number) {
    return reader.integer(of, name) == number;
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
