// The sizes of a program's values.
#pragma once

#include "program.h"

namespace jit_passes::x86 {

using Sizes = std::vector<int64_t>;

// Of all values, for those of the inputs. Throws, with the name of the operator, where an operator cannot have
// such operands.
std::vector<Sizes> inferSizes(const Program& program, const std::vector<Sizes>& inputs);

// Of the result of an operator, whose operands have known sizes.
Sizes inferResult(const Operator& op, const std::vector<Sizes>& sizes, const std::vector<Sizes>& inputs);

// The axis from 0 on of one that may count from the end.
inline int64_t axisOf(int64_t axis, int64_t rank) { return axis < 0 ? axis + rank : axis; }

// An error that names the operator.
template <typename... Message>
void require(const Operator& op, bool condition, const Message&... message) {
  TORCH_CHECK(condition, op.name, " (", nameOf(op.kind), ") ", message...);
}

// The same of an axis that the operator works along, of a tensor of so many axes.
int64_t checkAxis(const Operator& op, int64_t axis, int64_t rank, const Sizes& of);

// Whether the axis is one that a mean, or another operator of its form, goes over.
bool isReduced(const Operator& op, int64_t axis, int64_t rank);

// The axis of the operand, for each of the result of Permute or Transpose.
Sizes permutationOf(const Operator& op, int64_t rank);

int64_t countOf(const Sizes& sizes);

// The number that all elements of a value are, if it is the expansion of a constant: as a result it takes no memory.
std::optional<at::Tensor> numberSpread(const Program& program, int64_t value);

// Whether a tensor is [0], which is joined with tensors of any shape and adds nothing to them, as in at::cat.
inline bool isJoinedWithAny(const Sizes& sizes) { return sizes == Sizes{0}; }

} // namespace jit_passes::x86
