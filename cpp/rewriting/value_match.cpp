#include "value_match.h"

namespace jit_passes {
namespace {

std::optional<c10::IValue> heldBy(const Value* value, const ReadAttribute& attribute) {
  return attribute && value->node()->kind() == prim::GetAttr ? attribute(value) : std::nullopt;
}

bool mayBeNone(const Value* value) {
  return value->type()->kind() == c10::TypeKind::OptionalType && !isNone(value);
}

// Optional[float] -> float
c10::TypePtr withoutNone(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

std::string textOf(const c10::IValue& constant) {
  if (constant.isTensor()) {
    return "a tensor";
  }
  std::ostringstream text;
  text << constant;
  return text.str();
}

} // namespace

bool sameConstant(const Value* a, const Value* b) {
  if (!isConstant(a) || !isConstant(b)) {
    return false;
  }
  const auto left = constantOf(a), right = constantOf(b);
  if (!left || !right || left->isTensor() != right->isTensor()) {
    return false;
  }
  if (left->isTensor()) {
    return left->toTensor().is_same(right->toTensor());
  }
  if (left->isInt() && right->isInt()) {
    return left->toInt() == right->toInt();
  }
  const auto left_number = constantNumber(a), right_number = constantNumber(b);
  return left_number && right_number ? *left_number == *right_number : *left == *right;
}

bool isConstantOf(const Value* wanted, const Value* value, const ReadAttribute& attribute) {
  if (!isNone(wanted)) {
    return sameConstant(wanted, value);
  }
  const auto held = mayBeNone(value) ? heldBy(value, attribute) : std::nullopt;
  return isNone(value) || (held && held->isNone());
}

bool isWholeForFloat(const Value* input, const Value* value) {
  return isConstant(value) && value->type()->kind() == c10::TypeKind::IntType &&
         withoutNone(input->type())->kind() == c10::TypeKind::FloatType;
}

bool hasTypeOf(const Value* wanted, const Value* value, const ReadAttribute& attribute) {
  if (value->type()->isSubtypeOf(*wanted->type()) || isWholeForFloat(wanted, value)) {
    return true;
  }
  const auto held = mayBeNone(value) ? heldBy(value, attribute) : std::nullopt;
  return held && held->type()->isSubtypeOf(*wanted->type());
}

std::string textOf(const Value* value, const ReadAttribute& attribute) {
  if (isNone(value)) {
    return "None";
  }
  const Node* maker = value->node();
  if (maker->kind() == prim::GetAttr) {
    const auto held = heldBy(value, attribute);
    const bool shown = held && !held->isObject();
    return "the attribute '" + maker->s(attr::name) + "'" + (shown ? " (" + textOf(*held) + ")" : "");
  }
  const auto constant = constantOf(value);
  return constant ? (constant->isTensor() ? "a constant tensor" : textOf(*constant))
                  : "the result of " + describe(maker);
}

std::string typeOf(const Value* value, const ReadAttribute& attribute) {
  const auto held = mayBeNone(value) ? heldBy(value, attribute) : std::nullopt;
  if (isNone(value) || (held && held->isNone())) {
    return "None";
  }
  return "of type " + value->type()->annotation_str();
}

} // namespace jit_passes
