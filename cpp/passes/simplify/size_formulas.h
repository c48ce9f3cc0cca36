// Sizes of computed tensors, as formulas of sizes of the model's inputs.
#pragma once

#include "facts/shapes.h"

namespace jit_passes {

// Writes formulas into a graph, each number once. A formula may use earlier ones, so callers ask in program order.
class SizeFormulas {
 public:
  // `is_early` tells whether formulas may ask for the sizes of a tensor.
  SizeFormulas(const Shapes& shapes, std::function<bool(const Value*)> is_early)
      : shapes_(shapes), is_early_(std::move(is_early)) {}

  // The number as a formula of sizes of early tensors, in front of a node. Null if there is none.
  Value* ofNumber(Value* number, Node* before);
  // Whether the number is a formula of other sizes.
  bool isLate(const Value* number);
  // Removes nodes of formulas that have no uses. To be called last.
  void removeUnused();

 private:
  Value* ofAxis(const Value* tensor, int64_t axis);
  Value* find(const Value* tensor, int64_t axis);
  Value* ofWindow(const Node* node, int64_t axis, int64_t spatial);
  Value* ofPadded(const Node* pad, int64_t axis);
  Value* ofSlice(const Node* slice, int64_t axis);
  Value* ofBroadcast(const Node* node, int64_t axis);
  Value* ofJoined(const Node* node, int64_t axis);
  Value* number(int64_t value);
  Value* number(Value* value);
  Value* make(c10::Symbol kind, Value* a, Value* b);
  Value* make(c10::Symbol kind, Value* a, int64_t b) { return make(kind, a, number(b)); }

  const Shapes& shapes_;
  std::function<bool(const Value*)> is_early_;
  Node* before_ = nullptr;
  std::vector<Node*> made_;
  std::map<std::pair<const Value*, int64_t>, Value*> axes_;
  std::unordered_map<const Value*, Value*> numbers_;
  std::unordered_map<const Value*, bool> late_;
};

} // namespace jit_passes
