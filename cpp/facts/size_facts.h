// The questions about ranks and sizes that rows of operators ask.
#pragma once

#include "axis_facts.h"
#include "extent.h"

namespace jit_passes {

// Ranks and sizes of one graph ask each other, so either knows the other by its questions only: see Shapes.
class SizeFacts {
 public:
  virtual AxisRange axes(const Value* tensor) const = 0;
  // The size of an axis, never open. A negative axis counts from the end.
  virtual Extent ofAxis(const Value* tensor, int64_t axis) const = 0;
  virtual Extent ofNumber(const Value* value) const = 0;
  // The elements of a list, if its length is known.
  virtual std::optional<std::vector<Extent>> ofList(const Value* list) const = 0;
  // Whether a number is computed from sizes in a way that it cannot be negative.
  virtual bool isNotNegative(const Value* number) const = 0;
  // The axis of size 1 that the node removes, if it is a squeeze.
  virtual std::optional<int64_t> squeezed(const Node* node) const = 0;
  // Whether `tensor` is computed from `whole` element by element, and by reductions that keep the reduced axes.
  virtual bool isReducedOf(const Value* tensor, const Value* whole) const = 0;
  // The rank of a linear layer's weight. With rank 1 the layer gives one number for each row.
  virtual std::optional<int64_t> weightRank(const Node* linear) const = 0;
  // The first value that the tensor is computed from by operators that keep the shape. A written value ends the
  // search, since a write may change the shape.
  virtual const Value* source(const Value* tensor) const = 0;
  virtual bool isWritten(const Value* value) const = 0;
  virtual std::optional<at::Tensor> constant(const Value* tensor) const = 0;
  // Forgets sizes that were found with fewer ranks.
  virtual void forgetSizes() const = 0;

  std::optional<int64_t> rank(const Value* tensor) const { return axes(tensor).exact(); }
  // The fewest axes that the tensor can have; 0 if nothing is known.
  int64_t leastRank(const Value* tensor) const { return axes(tensor).least; }

 protected:
  ~SizeFacts() = default;
};

} // namespace jit_passes
