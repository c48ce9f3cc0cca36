#include "known_values.h"

#include "alias.h"
#include "module.h"

namespace jit_passes {

KnownValues::KnownValues(const PassContext& context, bool attributes_apart)
    : written_(writtenValues(context.graph(), attributes_apart)),
      assigned_(assignedAttributes(*context.graph())) {
  if (context.hasModule()) {
    module_ = context.module();
  }
}

void KnownValues::inherit(const Value* value, const Value* old) {
  if (written_.erase(old) > 0) { // a later value may have its address
    written_.insert(value);
  }
}

std::optional<c10::IValue> KnownValues::attribute(const Value* value) const {
  return module_ && !passesThrough(value, assigned_) ? attributeOf(*module_, value) : std::nullopt;
}

std::optional<c10::IValue> KnownValues::parameter(const Value* value) const {
  const Node* node = value->node();
  if (node->kind() == c10::aten::_unwrap_optional || node->kind() == c10::prim::unchecked_cast) {
    return parameter(node->input(0));
  }
  if (isTranspose(node)) {
    const auto matrix = parameter(node->input(0));
    const bool known = matrix && matrix->isTensor() && matrix->toTensor().dim() == 2;
    return known ? std::optional<c10::IValue>(matrix->toTensor().detach().t()) : std::nullopt;
  }
  if (node->kind() != c10::prim::GetAttr || isWritten(value)) {
    return std::nullopt;
  }
  const auto held = attribute(value);
  return held && (held->isTensor() || held->isNone()) ? held : std::nullopt;
}

bool KnownValues::isNone(const Value* value) const {
  const auto held = attribute(value);
  return jit_passes::isNone(value) || (held && held->isNone());
}

std::optional<int64_t> KnownValues::rank(const Value* tensor) const {
  if (const auto constant = constantTensor(tensor)) {
    return constant->dim();
  }
  if (const auto held = attribute(tensor); held && held->isTensor()) {
    return held->toTensor().dim();
  }
  const auto type = tensor->type()->cast<c10::TensorType>();
  const auto dims = type ? type->dim() : std::nullopt;
  return dims ? std::optional<int64_t>(*dims) : std::nullopt;
}

std::optional<int64_t> KnownValues::length(const Value* list) const {
  if (isWritten(list)) {
    return std::nullopt;
  }
  if (list->node()->kind() == c10::prim::ListConstruct) {
    return list->node()->inputs().size();
  }
  const auto constant = constantInts(list);
  return constant ? std::optional<int64_t>(constant->size()) : std::nullopt;
}

} // namespace jit_passes
