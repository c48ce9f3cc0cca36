// Checks of operators that a file holds. Files are not trusted; after these checks no other code looks again. They
// throw Refusal.
#pragma once

#include "declaration.h"

namespace jit_passes::x86 {

// Larger sizes and counts are mistakes. Products of a few of them fit 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 30, kMaxCount = int64_t{1} << 20;

inline bool between(int64_t number, int64_t low, int64_t high) { return number >= low && number <= high; }

// Of inputs, attributes and tensors, and which attributes are computed.
void checkCounts(const Operator& op);

void checkEach(const std::vector<int64_t>& numbers, int64_t low, int64_t high, const char* what);
// Attributes from number `from` on are axes.
void checkAxesFrom(const Operator& op, size_t from);
void checkAllAxes(const Operator& op);
// Attributes from number `from` on are sizes; one may be -1, open.
void checkShapeFrom(const Operator& op, size_t from);
void checkSpatial(int64_t spatial);
// Of one axis; `used` is false for the axes of size 1 in front of the spatial ones.
void checkWindow(bool used, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation);

// `count` numbers of float64 that are finite in float32.
void checkNumbers(const at::Tensor& numbers, int64_t count, const char* what);
// int8 weights with `dims` axes, their scales and the bias. Sums of products fit int32.
void checkWeights(const Operator& op, int64_t dims);
// The factors of a sum, where there is one.
void checkSum(const Operator& op);
void checkDynamic(const Operator& op);

} // namespace jit_passes::x86
