#include "known_values.h"

#include "alias.h"

namespace jit_passes {

KnownValues::KnownValues(const torch::jit::Module& module, const std::shared_ptr<Graph>& graph)
    : module_(module), self_(graph->inputs().at(0)), written_(writtenValues(graph)) {
  forEachNode(*graph, [&](const Node* node) {
    if (node->kind() == c10::prim::SetAttr) {
      assigned_.insert(node->s(c10::attr::name));
    }
  });
}

void KnownValues::inherit(const Value* value, const Value* old) {
  if (written_.erase(old) > 0) { // a later value may have its address
    written_.insert(value);
  }
}

std::optional<c10::IValue> KnownValues::attribute(const Value* value) const {
  std::vector<std::string> path; // the last name first
  for (; value != self_; value = value->node()->input()) {
    const Node* node = value->node();
    if (node->kind() != c10::prim::GetAttr || assigned_.count(node->s(c10::attr::name))) {
      return std::nullopt;
    }
    path.push_back(node->s(c10::attr::name));
  }
  c10::IValue found = module_._ivalue();
  for (auto name = path.rbegin(); name != path.rend(); ++name) {
    if (!found.isObject() || !found.toObjectRef().type()->hasAttribute(*name)) {
      return std::nullopt;
    }
    found = found.toObjectRef().getAttr(*name);
  }
  return found;
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
  const auto constant = isConstant(list) ? torch::jit::toIValue(list) : std::nullopt;
  return constant && constant->isIntList() ? std::optional<int64_t>(constant->toIntList().size())
                                           : std::nullopt;
}

} // namespace jit_passes
