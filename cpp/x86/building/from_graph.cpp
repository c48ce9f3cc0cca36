#include "from_graph.h"

#include "builder.h"
#include "graph/dialect.h"
#include "graph/places.h"
#include "x86/kernels/dynamic.h"

namespace jit_passes::x86 {
namespace {

bool keepsGrid(const Source& source) {
  const bool moves = source.declaration && source.declaration->keeps_codes;
  return becomes<SameValue>(source.from) || (becomes<Planned>(source.from) && moves);
}

} // namespace

bool isPlanned(const Node* node) { return sourceOf(node) != nullptr; }

std::map<std::string, PlannedKind> plannedKinds() {
  std::map<std::string, PlannedKind> kinds;
  for (const auto& [kind, source] : sources()) {
    const auto& [from, declaration] = source;
    const bool floats = !declaration || declaration->types != Types::Codes;
    kinds.emplace(kind, PlannedKind{keepsGrid(source) && !from.any_dtype, floats && from.in_floats});
  }
  return kinds;
}

bool takesAnyDtype(const torch::jit::Use& use) {
  const Source* source = sourceOf(use.user);
  const char* name = source ? source->from.any_dtype : nullptr;
  return name && use.user->schema().argumentIndexWithName(name) == static_cast<int>(use.offset);
}

bool takesShape(const Node* node) {
  const Source* source = sourceOf(node);
  return source && source->declaration && source->declaration->takes_shape;
}

bool keepsCodes(const Node* node) {
  const Source* source = sourceOf(node);
  return source && keepsGrid(*source);
}

bool isClip(const Node* node) {
  const Source* source = sourceOf(node);
  return source && becomes<Clipped>(source->from);
}

NodeForm formOf(const RegionReader& reader, Node* node) {
  const Source* source = sourceOf(node);
  refuseUnless(source != nullptr, "a plan does not have this operator");
  NodeForm form = std::visit([&](auto* plan) -> NodeForm { return plan(reader, node); }, source->from.plan);
  const auto requireDeclared = [&](const Operator& op) {
    TORCH_CHECK(
        isKind(op.kind), "plans turn ", node->kind().toQualString(), " into the operator '", nameOf(op.kind),
        "', which no file declares: correct the name, or declare it");
  };
  if (const auto* one = std::get_if<Planned>(&form)) {
    requireDeclared(one->op);
  } else if (const auto* several = std::get_if<PlannedOperators>(&form)) {
    int64_t known = several->operands.size();
    const auto requireKnown = [&](int64_t value) {
      TORCH_CHECK(
          value >= 0 && value < known, "plans turn ", node->kind().toQualString(),
          " into operators of which one reads value ", value, " of ", known,
          ": count the operands, then the operators in front of it");
    };
    for (const Operator& op : several->operators) {
      requireDeclared(op);
      std::ranges::for_each(op.inputs, requireKnown);
      ++known;
    }
    std::ranges::for_each(several->results, requireKnown);
  }
  return form;
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

} // namespace jit_passes::x86
