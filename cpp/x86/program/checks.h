// Checks of operators from a file. Files are not trusted, and no later code checks again. All checks throw Refusal.
#pragma once

#include "declaration.h"

namespace jit_passes::x86 {

// Limits for sizes and counts; larger ones are mistakes. Products of a few of them fit 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 30, kMaxCount = int64_t{1} << 20;

inline bool between(int64_t number, int64_t low, int64_t high) { return number >= low && number <= high; }

// Checks the number of inputs, attributes and tensors, and that the kind may compute the computed attributes.
JIT_PASSES_API void checkCounts(const Operator& op);

JIT_PASSES_API void checkEach(
    const std::vector<int64_t>& numbers, int64_t low, int64_t high, const char* what);
// Checks that attributes from number `from` on are axes.
JIT_PASSES_API void checkAxesFrom(const Operator& op, size_t from);
JIT_PASSES_API void checkAllAxes(const Operator& op);
// Checks that attributes from number `from` on are sizes. A single size may be -1, which means open.
JIT_PASSES_API void checkShapeFrom(const Operator& op, size_t from);
JIT_PASSES_API void checkSpatial(int64_t spatial);
// Checks the window along one axis. `used` is false for the axes of size 1 in front of the spatial ones.
JIT_PASSES_API void checkWindow(bool used, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation);

// Checks that the tensor has `count` float64 numbers that are finite in float32.
JIT_PASSES_API void checkNumbers(const at::Tensor& numbers, int64_t count, const char* what);
JIT_PASSES_API void checkBias(const at::Tensor& bias); // that its numbers are finite
// Checks int8 weights with `dims` axes, their scales and the bias, and that sums of products fit int32.
JIT_PASSES_API void checkWeights(const Operator& op, int64_t dims);
// Checks the factors of a sum, if there is one.
JIT_PASSES_API void checkSum(const Operator& op);
JIT_PASSES_API void checkDynamic(const Operator& op);

} // namespace jit_passes::x86
