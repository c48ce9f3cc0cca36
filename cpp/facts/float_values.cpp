#include "float_values.h"

#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

constexpr auto kFloat = static_cast<int64_t>(at::kFloat);

// Whether the cast gives float32 and returns a float32 operand as it is: without a copy, another layout or another
// device. `device` is the operand's; if it is empty, the operand's device is not known.
bool castsToFloat(const Node* node, const std::string& device) {
  if (!asksForFloat(node)) {
    return false;
  }
  const auto* schema = node->maybeSchema();
  const auto asksForOther = [&](const char* name, const c10::IValue& wanted) {
    const bool has = schema->argumentIndexWithName(name) && !isNone(node, name);
    const auto said = has ? constantOf(node, name) : std::nullopt;
    return has && (device.empty() || !said || *said != wanted);
  };
  if (asksForOther("device", device.empty() ? c10::IValue() : c10::Device(device)) ||
      asksForOther("pin_memory", false) || asksForOther("layout", static_cast<int64_t>(at::kStrided)) ||
      asksForOther("memory_format", {})) {
    return false;
  }
  return schema->argumentIndexWithName("copy") && constantNumber(node, "copy") == 0.0;
}

} // namespace

bool FloatValues::casts(const Node* node) const {
  const bool placed =
      devices_.size() == 1 && node->kind() == aten::to && placed_.count(inputOf(node, "self"));
  return castsToFloat(node, placed ? *devices_.begin() : std::string());
}

bool FloatValues::has(const Value* value) const {
  if (found_.count(value) > 0) {
    return true;
  }
  const auto held =
      isConstant(value) ? constantOf(value) : known_.attribute(value); // a write keeps the dtype
  if (!held || !held->isTensor() || !held->toTensor().defined() ||
      held->toTensor().scalar_type() != at::kFloat) {
    return false;
  }
  devices_.insert(held->toTensor().device().str());
  return true;
}

void FloatValues::add(const Node* node) {
  if (isPlaced(node)) {
    placed_.insert(node->outputs().begin(), node->outputs().end());
  }
  const bool always = node->owningBlock() == node->owningGraph()->block();
  if (always && weightedOperator(node) && has(inputOf(node, "weight"))) {
    addRead(inputOf(node, "input"));
  }
  if (node->kind() == prim::If) {
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      if (std::ranges::all_of(node->blocks(), [&](const Block* block) { return has(block->outputs()[i]); })) {
        found_.insert(node->output(i));
      }
    }
  } else if (node->kind() == prim::ListUnpack) {
    const Node* parts = node->input()->node();
    if (movesData(parts) && has(mainOperand(parts))) {
      found_.insert(node->outputs().begin(), node->outputs().end());
    }
  } else if (node->outputs().size() == 1 && isTensor(node->output()) && givesFloat(node)) {
    found_.insert(node->output());
  }
}

// Notes that the value is float32, and the operand that it is moved or normalized from too.
void FloatValues::addRead(const Value* value) {
  const Node* node = value->node();
  const bool keeps = movesData(node) || node->kind() == aten::layer_norm || isDropout(node);
  placed_.insert(value);
  if (isTensor(value) && found_.insert(value).second && keeps) {
    addRead(mainOperand(node));
  }
}

// Whether the results are on the device of a weight. All operands of an operator are on one device, except for
// numbers.
bool FloatValues::isPlaced(const Node* node) const {
  if (weightedOperator(node) || node->kind() == aten::embedding) {
    return has(inputOf(node, "weight"));
  }
  const bool lists = node->kind() == prim::ListUnpack || node->kind() == prim::ListConstruct;
  const Value* device = lists || node->maybeSchema() == nullptr ? nullptr : operandOf(node, "device");
  const bool stays = lists || (node->maybeSchema() != nullptr && (device == nullptr || isNone(device)));
  return stays && std::ranges::any_of(
                      node->inputs(), [&](const Value* operand) { return placed_.count(operand) > 0; });
}

bool FloatValues::givesFloat(const Node* node) const {
  static const auto products = symbols({"aten::matmul", "aten::bmm", "aten::mm"});
  if (casts(node)) {
    return true;
  }
  if (node->kind() == aten::type_as) {
    return has(inputOf(node, "other"));
  }
  const Value* dtype = node->maybeSchema() == nullptr ? nullptr : operandOf(node, "dtype");
  if (dtype != nullptr && constantNumber(dtype) == kFloat) {
    return true;
  }
  if (weightedOperator(node)) {
    return has(inputOf(node, "weight"));
  }
  // Indices, mask and number do not affect the dtype.
  if (node->kind() == aten::embedding || node->kind() == aten::masked_fill) {
    return has(mainOperand(node));
  }
  if (products.count(node->kind()) > 0) {
    return has(node->input(0)) && has(node->input(1));
  }
  if (node->kind() == aten::cat || node->kind() == aten::stack) {
    const Node* list = inputOf(node, "tensors")->node();
    return list->kind() == prim::ListConstruct && !list->inputs().empty() &&
           std::ranges::all_of(list->inputs(), [&](const Value* element) { return has(element); });
  }
  if (!(keepsDtype(node) || movesData(node)) || !has(mainOperand(node))) {
    return false;
  }
  // An operand `dtype` may give the result another dtype, and so may other tensor operands.
  if (node->maybeSchema() == nullptr || (dtype != nullptr && !isNone(dtype))) {
    return false;
  }
  return std::ranges::all_of(node->inputs(), [&](const Value* operand) {
    const auto kind = operand->type()->kind();
    const bool widens =
        kind == c10::TypeKind::ComplexType || kind == c10::TypeKind::NumberType || mayBeTensor(operand);
    return (!isTensor(operand) && !widens) || has(operand) || node->kind() == aten::batch_norm ||
           isBesideAxes(operand, mainOperand(node));
  });
}

// Whether `number` is a tensor without axes, as in traces, and `tensor` has axes: the result then has the tensor's
// dtype.
bool FloatValues::isBesideAxes(const Value* number, const Value* tensor) const {
  const auto constant = constantTensor(number);
  if (!constant || constant->dim() > 0 || constant->is_complex()) {
    return false;
  }
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
  FloatValues floats(context);
  std::unordered_set<const Value*> floating;
  std::map<int64_t, bool> found;
  for (const Node* node : nodesInOrder(*context.graph())) {
    const auto isFloating = [&](const Value* value) {
      const auto constant = constantTensor(value);
      return floating.count(value) > 0 || ((!constant || constant->dim() > 0) && floats.has(value));
    };
    const auto of = std::ranges::count_if(node->inputs(), isTensor);
    const auto floats_of = std::ranges::count_if(node->inputs(), isFloating);
    found.emplace(found.size(), floats_of > 0 && (floats_of == of || isElementwise(node)));
    const bool computes = isElementwise(node) && keepsDtype(node);
    const bool keeps = node->kind() == prim::ListUnpack || movesData(node) || computes;
    if (givesFloats(node) || weightedOperator(node) || isToFloat(node) || (keeps && floats_of > 0)) {
      floating.insert(node->outputs().begin(), node->outputs().end());
    }
    floats.add(node);
  }
  return found;
}

} // namespace jit_passes
