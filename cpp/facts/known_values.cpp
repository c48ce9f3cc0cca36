#include "known_values.h"

#include "graph/alias.h"
#include "graph/module.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

// Whether the module has parameters or buffers. A frozen module has none.
bool holdsTensors(const torch::jit::Module& module) {
  const auto types = module.type()->getAttributes();
  return std::ranges::any_of(types, [](const c10::ClassAttribute& attribute) {
    return attribute.getType()->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
           attribute.getType()->is_module();
  });
}

c10::IValue withoutGradient(const c10::IValue& value) {
  return value.isTensor() ? c10::IValue(value.toTensor().detach()) : value;
}

} // namespace

bool isPure(const Node* node) {
  return node->kind() != prim::Constant && node->kind() != prim::GetAttr && node->blocks().empty() &&
         !node->outputs().empty() && !mayWrite(node) && !isRandom(node) && !node->hasSideEffects();
}

KnownValues::KnownValues(const PassContext& context, bool attributes_apart)
    : graph_(context.graph()),
      written_(writtenValues(context.graph(), attributes_apart)),
      assigned_(assignedAttributes(*context.graph())) {
  if (context.hasModule()) {
    module_ = context.module();
  }
}

void KnownValues::inherit(const Value* value, const Value* old) {
  if (written_.erase(old) > 0) { // another value may get the address of `old`
    written_.insert(value);
  }
}

std::optional<c10::IValue> KnownValues::attribute(const Value* value) const {
  return module_ && !passesThrough(value, assigned_) ? attributeOf(*module_, value) : std::nullopt;
}

std::optional<c10::IValue> KnownValues::parameter(const Value* value) const {
  const Node* node = value->node();
  if (node->kind() == aten::_unwrap_optional || node->kind() == prim::unchecked_cast) {
    return parameter(node->input());
  }
  if (isTranspose(node)) {
    const auto matrix = parameter(mainOperand(node));
    const bool known = matrix && matrix->isTensor() && matrix->toTensor().dim() == 2;
    return known ? std::optional<c10::IValue>(matrix->toTensor().detach().t()) : std::nullopt;
  }
  if (node->kind() != prim::GetAttr || isWritten(value)) {
    return std::nullopt;
  }
  const auto held = attribute(value);
  return held && (held->isTensor() || held->isNone()) ? held : std::nullopt;
}

std::optional<c10::IValue> KnownValues::fixed(const Value* value) const {
  if (auto held = parameter(value)) {
    return held;
  }
  if (isConstant(value) || value->owningGraph() != graph_.get()) {
    return std::nullopt;
  }
  if (!fixed_) {
    computeFixed();
  }
  const auto found = fixed_->find(value->unique());
  return found == fixed_->end() ? std::nullopt : std::optional(found->second);
}

void KnownValues::computeFixed() const {
  fixed_.emplace();
  if (!module_ || !holdsTensors(*module_)) {
    return;
  }
  forEachNode(*graph_, [&](const Node* node) {
    const auto results = resultsOf(node);
    for (size_t i = 0; results && i < results->size(); ++i) {
      fixed_->emplace(node->output(i)->unique(), results->at(i));
    }
  });
}

// Nothing for the dialect's operators, which conversion replaces by others. Dropout that follows the training mode
// counts as dropout in eval mode.
std::optional<std::vector<c10::IValue>> KnownValues::resultsOf(const Node* node) const {
  if (isDropout(node) && !isConstant(inputOf(node, "train")) && !isWritten(node->output())) {
    const auto whole = fixed(mainOperand(node));
    return whole ? std::optional(std::vector{*whole}) : std::nullopt;
  }
  std::unordered_map<const Value*, c10::IValue> operands;
  for (const Value* input : node->inputs()) {
    const auto held = isConstant(input) ? constantOf(input) : fixed(input);
    if (!held) {
      return std::nullopt;
    }
    operands.emplace(input, withoutGradient(*held));
  }
  const auto written = [&](const Value* output) { return isWritten(output); };
  if (operands.empty() || startsWith(node, "jit_passes::") || !isPure(node) ||
      std::ranges::any_of(node->outputs(), written)) {
    return std::nullopt;
  }
  const at::NoGradGuard guard;
  Graph scratch;
  std::unordered_map<const Value*, Value*> constants;
  for (const auto& [input, value] : operands) {
    const auto constant = torch::jit::tryInsertConstant(scratch, value);
    if (!constant) {
      return std::nullopt;
    }
    constants.emplace(input, *constant);
  }
  Node* copy =
      scratch.createClone(const_cast<Node*>(node), [&](Value* input) { return constants.at(input); });
  return torch::jit::runNodeIfInputsAreConstant(scratch.insertNode(copy));
}

std::optional<at::Tensor> KnownValues::tensor(const Value* value) const {
  const auto held = fixed(value);
  return held && held->isTensor() ? std::optional(held->toTensor()) : constantTensor(value);
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
  if (list->node()->kind() == prim::ListConstruct) {
    return list->node()->inputs().size();
  }
  const auto constant = constantInts(list);
  return constant ? std::optional<int64_t>(constant->size()) : std::nullopt;
}

} // namespace jit_passes
