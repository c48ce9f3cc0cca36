// The sizes of a program's values.
#pragma once

#include "program.h"

namespace jit_passes::x86 {

using Sizes = std::vector<int64_t>;

// The sizes of all values, from the sizes of inputs. An error names the operator that cannot take its operands.
std::vector<Sizes> inferSizes(const Program& program, const std::vector<Sizes>& inputs);

// The sizes of an operator's result. The sizes of its operands must be known.
Sizes inferResult(const Operator& op, const std::vector<Sizes>& sizes, const std::vector<Sizes>& inputs);

// The axis counted from 0. A negative axis counts from the end.
inline int64_t axisOf(int64_t axis, int64_t rank) { return axis < 0 ? axis + rank : axis; }

// Raises an error that names the operator, unless the condition holds.
template <typename... Message>
void require(const Operator& op, bool condition, const Message&... message) {
  TORCH_CHECK(condition, op.name, " (", nameOf(op.kind), ") ", message...);
}

// The axis counted from 0; an error that names the operator if a tensor of this rank does not have it.
JIT_PASSES_API int64_t checkAxis(const Operator& op, int64_t axis, int64_t rank, const Sizes& of);

// Whether a mean, or another reduction with its attributes, reduces the axis.
JIT_PASSES_API bool isReduced(const Operator& op, int64_t axis, int64_t rank);

// For each axis of the result of Permute or Transpose, the axis of the operand.
JIT_PASSES_API Sizes permutationOf(const Operator& op, int64_t rank);

JIT_PASSES_API int64_t countOf(const Sizes& sizes);

// The number that fills a value, if the value is an expanded constant. An expanded result takes no
// memory.
std::optional<at::Tensor> numberSpread(const Program& program, int64_t value);

// Whether a tensor has shape [0]. As in at::cat, it can be joined with tensors of any shape, and adds nothing.
inline bool isJoinedWithAny(const Sizes& sizes) { return sizes == Sizes{0}; }

} // namespace jit_passes::x86
