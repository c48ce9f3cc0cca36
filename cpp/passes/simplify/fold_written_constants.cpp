// Replace a copy of a constant and constant writes to it by a constant.
//
//   %c = aten::clone(%bias)                         a constant [96], of query, key and value
//   %n : int = aten::floordiv(aten::numel(%c), 3)
//   %k = aten::slice(%c, 0, %n, 2 * %n, 1)
//   %z = aten::zero_(%k)
//   %y = aten::linear(%x, %w, %c)            ->     %y = aten::linear(%x, %w, %constant)
//
// Swin V2 has no bias for keys, and sets this part of the bias to zero in each call. A layer with a computed bias
// stays in float. All writes must come before other reads of the copy, and must write constants only. Readers must
// give new tensors, so no node can write to the constant.
#include "facts/shape_facts.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// Whether the node writes to its first operand, and to no other.
bool writesFirst(const Node* node) {
  const auto* schema = node->maybeSchema();
  if (schema == nullptr || schema->arguments().empty()) {
    return false;
  }
  for (size_t i = 0; i < schema->arguments().size(); ++i) {
    const auto* alias = schema->arguments()[i].alias_info();
    if ((alias != nullptr && alias->isWrite()) != (i == 0)) {
      return false;
    }
  }
  return true;
}

// Whether the node gives numbers, or a new tensor: traces compute numbers as tensors.
bool givesAnew(const Node* node) {
  static const auto kinds = symbols({"aten::numel", "aten::dim", "aten::len"});
  return kinds.count(node->kind()) > 0 || computesSizes(node) || isConversion(node) ||
         (isElementwise(node) && !mayWrite(node));
}

class WrittenCopy {
 public:
  explicit WrittenCopy(Node* copy) : copy_(copy), block_(copy->owningBlock()) {
    add(copy);
    for (Node* node = copy->next(); node->kind() != prim::Return; node = node->next()) {
      const auto inputs = node->inputs();
      const bool reads = std::ranges::any_of(inputs, [&](const Value* v) { return made_.count(v) > 0; });
      if (!reads ||
          !std::ranges::all_of(inputs, [&](const Value* v) { return isConstant(v) || made_.count(v); })) {
        continue;
      }
      const bool writes = writesFirst(node) && made_.count(mainOperand(node)) > 0;
      const bool moves = movesData(node) && isTensor(node->output());
      if (node->outputs().size() == 1 && node->blocks().empty() && (writes || moves || givesAnew(node))) {
        add(node);
        last_ = writes ? node : last_;
      }
    }
  }

  // Whether there is a write, and all other readers come after the last one.
  bool isFoldable() const {
    return last_ != nullptr && std::ranges::all_of(nodes_, [&](const Node* node) {
             return std::ranges::all_of(node->output()->uses(), [&](const Use& use) { return mayRead(use); });
           });
  }

  void fold() {
    const at::NoGradGuard no_gradients;
    std::unordered_map<const Value*, c10::IValue> values;
    for (const Node* node : nodes_) {
      values[node->output()] = computed(node, values);
    }
    Node* behind = last_->next();
    for (Node* node : nodes_) {
      const c10::IValue& value = values.at(node->output());
      const bool read = std::ranges::any_of(
          node->output()->uses(), [&](const Use& use) { return made_.count(use.user->output()) == 0; });
      if (read) {
        Node* before = value.isTensor() && !givesAnew(node) ? behind : node->next();
        node->output()->replaceAllUsesWith(
            insertConstant(before, value.isTensor() ? c10::IValue(value.toTensor().clone()) : value));
      }
    }
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
      if (!(*node)->hasUses()) {
        (*node)->destroy();
      }
    }
  }

 private:
  void add(Node* node) {
    nodes_.push_back(node);
    made_.insert(node->output());
  }

  bool mayRead(const Use& use) const {
    const bool own = use.user->outputs().size() == 1 && made_.count(use.user->output()) > 0;
    if (own || use.user->owningBlock() != block_) {
      return own;
    }
    return last_->isBefore(use.user) && (weightedOperator(use.user) || isElementwise(use.user)) &&
           !mayWrite(use.user);
  }

  Node* copy_;
  const Block* block_;
  Node* last_ = nullptr;     // the last write
  std::vector<Node*> nodes_; // in program order
  std::unordered_set<const Value*> made_;
};

bool foldWrittenConstants(PassContext& context) {
  const auto copies = nodesWhere(*context.graph(), [](const Node* node) {
    return node->kind() == aten::clone && constantTensor(node, "self");
  });
  bool changed = false;
  for (Node* copy : copies) {
    WrittenCopy written(copy);
    if (written.isFoldable()) {
      written.fold();
      changed = true;
    }
  }
  return changed;
}

const RegisterPass fold_written_constants_pass{
    "fold_written_constants", "Replace a copy of a constant and constant writes to it by a constant.",
    foldWrittenConstants, needs("inlined")};

} // namespace
} // namespace jit_passes
