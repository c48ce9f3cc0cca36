#include "dtypes.h"

#include "casts.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

// Traces hold a number as a tensor without axes.
std::optional<at::Tensor> numberOf(const Value* value) {
  const auto constant = constantTensor(value);
  return constant && constant->defined() && constant->dim() == 0 ? constant : std::nullopt;
}

bool isCast(const Node* node) { return node->kind() == aten::to || node->kind() == aten::type_as; }

Dtype dtypeOf(at::ScalarType known) { return {known, at::isFloatingType(known)}; }

} // namespace

bool Dtypes::casts(const Node* node) const {
  const bool placed =
      devices_.size() == 1 && node->kind() == aten::to && placed_.count(inputOf(node, "self"));
  return keepsFloat(node, placed ? *devices_.begin() : std::string());
}

// The tensor of a constant or an attribute. A write keeps the dtype.
std::optional<at::Tensor> Dtypes::held(const Value* value) const {
  const auto content = isConstant(value) ? constantOf(value) : known_.attribute(value);
  return content && content->isTensor() && content->toTensor().defined() ? std::optional(content->toTensor())
                                                                         : std::nullopt;
}

Dtype Dtypes::of(const Value* value) const {
  if (const auto found = found_.find(value); found != found_.end()) {
    return found->second;
  }
  const auto tensor = held(value);
  return tensor ? dtypeOf(tensor->scalar_type()) : Dtype();
}

void Dtypes::add(const Node* node) {
  for (const Value* operand : node->inputs()) { // numbers may be on another device
    if (const auto tensor = held(operand); tensor && tensor->is_floating_point() && tensor->dim() > 0) {
      devices_.insert(tensor->device().str());
    }
  }
  if (isPlaced(node)) {
    placed_.insert(node->outputs().begin(), node->outputs().end());
  }
  const bool always = node->owningBlock() == node->owningGraph()->block();
  const Dtype weight = always && weightedOperator(node) ? of(inputOf(node, "weight")) : Dtype();
  if (weight.known && weight.floats) {
    addRead(inputOf(node, "input"), *weight.known);
  }
  for (const Value* result : node->outputs()) {
    const Dtype dtype = isTensor(result) ? made(result) : Dtype();
    if (dtype.known || dtype.floats) {
      found_.emplace(result, dtype);
    }
  }
}

// Notes the dtype of a layer's input, and of the operand that has this dtype too. Both are on the layer's device.
void Dtypes::addRead(const Value* value, at::ScalarType dtype) {
  const bool placed = !placed_.insert(value).second;
  if (!isTensor(value) || (placed && of(value).known)) {
    return;
  }
  if (!of(value).known) {
    found_[value] = dtypeOf(dtype);
  }
  const auto row = dtypeOfResult(value);
  if (row && row->as == ResultDtype::As::Same && !isCast(value->node())) {
    addRead(row->of.front(), dtype);
  }
}

// Whether the results are on the device of a weight. All operands of an operator are on one device, except for
// numbers. A cast moves its operand.
bool Dtypes::isPlaced(const Node* node) const {
  if (weightedOperator(node) || node->kind() == aten::embedding) {
    return isFloat(inputOf(node, "weight"));
  }
  const bool lists = node->kind() == prim::ListUnpack || node->kind() == prim::ListConstruct;
  const bool has_names = !lists && node->maybeSchema() != nullptr;
  const Value* device = has_names ? operandOf(node, "device") : nullptr;
  const Value* other = has_names && isCast(node) ? operandOf(node, "other") : nullptr;
  if (other != nullptr) {
    return placed_.count(other) > 0;
  }
  const bool stays = lists || (has_names && (device == nullptr || isNone(device)));
  return stays && std::ranges::any_of(
                      node->inputs(), [&](const Value* operand) { return placed_.count(operand) > 0; });
}

Dtype Dtypes::made(const Value* result) const {
  if (result->node()->kind() == prim::If) {
    return ofAny(result->node(), result->offset());
  }
  const auto row = dtypeOfResult(result);
  if (!row) {
    return {};
  }
  Dtype dtype = row->as == ResultDtype::As::Same       ? of(row->of.front())
                : row->as == ResultDtype::As::Promoted ? promoted(row->of)
                : row->dtype                           ? dtypeOf(*row->dtype)
                                                       : Dtype();
  dtype.floats |= row->floats && !dtype.known;
  return dtype;
}

// The dtype that a result has in all branches.
Dtype Dtypes::ofAny(const Node* branch, size_t result) const {
  const Dtype first = of(branch->blocks()[0]->outputs()[result]);
  const Dtype second = of(branch->blocks()[1]->outputs()[result]);
  return {first.known == second.known ? first.known : std::nullopt, first.floats && second.floats};
}

Dtype Dtypes::promoted(at::ArrayRef<const Value*> operands) const {
  std::vector<const Value*> tensors;
  std::ranges::copy_if(operands, std::back_inserter(tensors), [](auto* v) { return !numberOf(v); });
  Dtype found;
  bool known = true;
  for (const Value* tensor : tensors.empty() ? operands : tensors) {
    const Dtype own = of(tensor);
    known &= own.known && !at::isComplexType(*own.known);
    found.floats |= own.floats;
    if (own.known && own.floats) {
      known &= !found.known || found.known == own.known;
      found.known = own.known;
    }
  }
  for (const Value* operand : tensors.empty() ? at::ArrayRef<const Value*>() : operands) {
    const auto number = numberOf(operand);
    known &= !number || leavesDtype(*number, tensors, found.known);
  }
  return {known ? found.known : std::nullopt, found.floats};
}

// Whether a number beside these tensors does not change their dtype. Beside whole numbers, the dtype depends on whether
// the executor makes the number a scalar.
bool Dtypes::leavesDtype(
    const at::Tensor& number, at::ArrayRef<const Value*> tensors, std::optional<at::ScalarType> dtype) const {
  if (at::isIntegralType(number.scalar_type(), true) || number.scalar_type() == dtype) {
    return true;
  }
  return dtype && number.is_floating_point() &&
         (number.unsafeGetTensorImpl()->is_wrapped_number() ||
          std::ranges::any_of(tensors, [&](auto* tensor) { return of(tensor).floats && hasAxes(tensor); }));
}

bool Dtypes::hasAxes(const Value* tensor) const {
  if (!shapes_) {
    shapes_.emplace(context_);
  }
  return shapes_->leastRank(tensor) > 0;
}

// An operator that broadcasts computes with floats if one operand is floating, other operators if all are. Numbers
// that are tensors do not count.
std::map<int64_t, bool> floatOperators(const torch::jit::Module& module, const std::string& method) {
  const Options no_options;
  const PassContext context(module, method, no_options);
  Dtypes dtypes(context);
  std::map<int64_t, bool> found;
  for (const Node* node : nodesInOrder(*context.graph())) {
    const auto isFloating = [&](const Value* value) { return !numberOf(value) && dtypes.of(value).floats; };
    const auto of = std::ranges::count_if(node->inputs(), isTensor);
    const auto floats_of = std::ranges::count_if(node->inputs(), isFloating);
    found.emplace(found.size(), floats_of > 0 && (floats_of == of || isElementwise(node)));
    dtypes.add(node);
  }
  return found;
}

} // namespace jit_passes
