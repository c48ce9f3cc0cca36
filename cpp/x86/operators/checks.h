// Checks of what a file says of an operator. Files are not trusted: after these no code has to look again.
#pragma once

#include "declaration.h"

namespace jit_passes::x86 {

// Sizes and numbers of things beyond these are mistakes, and products of a few of them fit 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 30, kMaxCount = int64_t{1} << 20;

inline bool between(int64_t number, int64_t low, int64_t high) { return number >= low && number <= high; }

// "not a plan: conv1:conv2d (convolution): ..."
template <typename... Message>
void requireForm(const Operator& op, bool condition, const Message&... message) {
  const bool known = isKind(op.kind);
  TORCH_CHECK(
      condition, "not a plan: ", op.name, known ? " (" : "", known ? nameOf(op.kind) : "", known ? ")" : "",
      ": ", message...);
}

void checkEach(
    const Operator& op, const std::vector<int64_t>& numbers, int64_t low, int64_t high, const char* what);
// Attributes from that one on are axes.
void checkAxesFrom(const Operator& op, size_t from);
void checkAllAxes(const Operator& op);
// Attributes from that one on are sizes, of which one may be open.
void checkShapeFrom(const Operator& op, size_t from);
void checkSpatial(const Operator& op, int64_t spatial);
// Along an axis that is used, or one of size 1.
void checkWindow(
    const Operator& op, bool used, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation);

// float64, finite in float32, so many.
void checkNumbers(const Operator& op, const at::Tensor& numbers, int64_t count, const char* what);
// int8 weights with so many axes, their scales and the bias: sums fit int32.
void checkWeights(const Operator& op, int64_t dims);
// The factors of a sum, where there is one.
void checkSum(const Operator& op);
void checkDynamic(const Operator& op);

} // namespace jit_passes::x86
