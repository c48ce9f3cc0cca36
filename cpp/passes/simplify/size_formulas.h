// Sizes of what a model computes, as formulas of sizes of what it takes.
#pragma once

#include "facts/shapes.h"

namespace jit_passes {

// Writes formulas into a graph, each number once. Those that come later may be made of earlier ones, so they are asked for
// in program order.
class SizeFormulas {
 public:
  // `is_early` says of a tensor whether its sizes may be asked for as they are.
  SizeFormulas(const Shapes& shapes, std::function<bool(const Value*)> is_early)
      : shapes_(shapes), is_early_(std::move(is_early)) {}

  // The same number in front of a node, made of sizes of early tensors; null where that is not known.
  Value* ofNumber(Value* number, Node* before);
  // Whether it is made of sizes of others.
  bool isLate(const Value* number);
  // Takes away what nobody reads of the formulas. No more are asked for.
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
