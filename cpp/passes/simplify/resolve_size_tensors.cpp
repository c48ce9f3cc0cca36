// Compute with sizes as whole numbers, where a trace has tensors.
//
//   %n : int = aten::size(%x, 2)
//   %t : Tensor = prim::NumToTensor(%n)
//   %h : Tensor = aten::floor_divide(%t, 2)       ->   %h : int = aten::floordiv(%n, 2)
//   %i : int = aten::Int(%h)
//   %y = aten::reshape(%x, [%i, -1])                   %y = aten::reshape(%x, [%h, -1])
//
// Both wrap around at 64 bits, and round towards minus infinity. The divisor of a remainder must be a constant above
// 0: PyTorch ends the process at a remainder of whole numbers by 0, without an error.
#include "facts/shape_facts.h"
#include "graph/alias.h"
#include "graph/graph.h"
#include "simplify.h"

namespace jit_passes {
namespace {

const auto rsub = symbol("aten::rsub"), repeat_interleave = symbol("aten::repeat_interleave");

class SizeTensors {
 public:
  explicit SizeTensors(const std::shared_ptr<Graph>& graph) : written_(writtenValues(graph)) {}

  // Whether a tensor holds a number that is computed from whole numbers.
  bool isNumber(Value* tensor) {
    const auto known = known_.find(tensor);
    return known != known_.end() ? known->second : (known_[tensor] = findIsNumber(tensor));
  }

  // The number in the tensor, computed in front of the node that makes the tensor.
  Value* numberOf(Value* tensor) {
    if (const auto made = made_.find(tensor); made != made_.end()) {
      return made->second;
    }
    Node* node = tensor->node();
    if (node->kind() == prim::NumToTensor) {
      return node->input();
    }
    const bool reversed = node->kind() == rsub;
    Value *first = operand(node, reversed ? 1 : 0), *second = operand(node, reversed ? 0 : 1);
    return made_[tensor] = insertValue(node, *numberedKind(node), {first, second}, node, c10::IntType::get());
  }

 private:
  bool findIsNumber(Value* tensor) {
    const Node* node = tensor->node();
    if (written_.count(tensor)) {
      return false;
    }
    if (node->kind() == prim::NumToTensor) {
      return isWhole(node->input());
    }
    const auto isOperand = [&](Value* value) {
      return wholeNumber(value) || (isTensor(value) ? isNumber(value) : isWhole(value));
    };
    const auto kind = numberedKind(node);
    return kind && (kind != aten::remainder || wholeNumber(inputOf(node, "other")).value_or(0) > 0) &&
           isOperand(tensor->node()->input(0)) && isOperand(tensor->node()->input(1));
  }

  Value* operand(Node* node, size_t position) {
    Value* value = node->input(position);
    const auto number = wholeNumber(value);
    return !isTensor(value) ? value : number ? insertConstant(node, *number) : numberOf(value);
  }

  static bool isWhole(const Value* value) { return value->type()->kind() == c10::TypeKind::IntType; }

  // The operator on whole numbers with the result of this one.
  static std::optional<c10::Symbol> numberedKind(const Node* node) {
    if (node->kind() == aten::add || node->kind() == aten::sub || node->kind() == rsub) {
      const bool plain = node->inputs().size() == 3 && constantNumber(node, "alpha") == 1.0;
      return !plain ? std::nullopt : std::optional(node->kind() == aten::add ? aten::add : aten::sub);
    }
    if (node->inputs().size() == 2) {
      return node->kind() == aten::mul            ? std::optional(aten::mul)
             : node->kind() == aten::floor_divide ? std::optional(aten::floordiv)
             : node->kind() == aten::remainder    ? std::optional(aten::remainder)
                                                  : std::nullopt;
    }
    const bool rounds = node->kind() == aten::div && node->inputs().size() == 3;
    const auto rounding = rounds ? constantOf(node, "rounding_mode") : std::nullopt;
    const bool floors = rounding && rounding->isString() && rounding->toStringRef() == "floor";
    return floors ? std::optional(aten::floordiv) : std::nullopt;
  }

  std::unordered_set<const Value*> written_;
  std::unordered_map<Value*, bool> known_;
  std::unordered_map<Value*, Value*> made_;
};

} // namespace

bool resolveSizeTensors(PassContext& context) {
  const auto repeats = [](const Node* node) {
    return node->kind() == repeat_interleave && isTensor(node->input(1));
  };
  const auto reads = [](const Node* node) {
    return isConversion(node) && node->kind() != prim::NumToTensor && isTensor(node->input());
  };
  const auto readers =
      nodesWhere(*context.graph(), [&](const Node* node) { return repeats(node) || reads(node); });
  if (readers.empty()) {
    return false;
  }
  SizeTensors tensors(context.graph());
  bool changed = false;
  for (Node* node : readers) {
    Value* tensor = repeats(node) ? node->input(1) : mainOperand(node);
    if (!tensors.isNumber(tensor)) {
      continue;
    }
    if (repeats(node)) {
      node->replaceInput(1, tensors.numberOf(tensor)); // another overload
    } else {
      replaceNode(node, tensors.numberOf(tensor));
    }
    changed = true;
  }
  return changed;
}

} // namespace jit_passes
