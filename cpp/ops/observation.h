// Functions of all observers: the layout of their buffer, and the values of a tensor in memory order.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// The `range` buffer of an observer: float64, with at least these four entries. The entries are +inf, -inf, +inf,
// -inf until a value is seen.
enum RangeEntry : int64_t { kMin = 0, kMax = 1, kLowestRank = 2, kHighestRank = 3 };

// The values in memory order, since statistics do not depend on the order. A dense float32 tensor (contiguous,
// channels-last or any other permutation) is not copied.
at::Tensor valuesOf(const at::Tensor& x);

struct MinMax {
  float min;
  float max;
};

struct Extremes {
  float min = std::numeric_limits<float>::infinity();
  float max = -std::numeric_limits<float>::infinity();
  bool finite = true;

  void add(const float* x, int64_t count);
  void merge(const Extremes& other);
};

// Raises an error that names the value.
void checkFinite(const Extremes& seen, c10::string_view name);
std::vector<MinMax> checkedRanges(const std::vector<Extremes>& seen, c10::string_view name);

// Whether numbers are measured in the CPU's memory, or by PyTorch's operators on any device. Both ways give equal
// results.
enum class Measured { InMemory, ByOperators };

// A NaN or an infinity is an error that names the value. minMaxOfRows measures each row of a contiguous matrix.
MinMax minMaxOf(const at::Tensor& values, c10::string_view name, Measured how = Measured::InMemory);
std::vector<MinMax> minMaxOfRows(
    const at::Tensor& rows, c10::string_view name, Measured how = Measured::InMemory);
// The extremes of each row by PyTorch's operators, without an error for numbers that are not finite.
std::vector<Extremes> extremesOfRows(const at::Tensor& rows);

// The range of each row, widened to the sums of its values 2k and 2k + 1, and to either of them alone.
std::vector<MinMax> minMaxOfPairSums(
    const at::Tensor& rows, c10::string_view name, Measured how = Measured::InMemory);

// Calls `change` with buffers on the CPU. Buffers of other devices are copied there and written back.
template <typename Change, typename... Buffers>
void changeOnCpu(const Change& change, const Buffers&... buffers) {
  std::array<at::Tensor, sizeof...(buffers)> changed{buffers.to(at::kCPU)...};
  std::apply(change, changed);
  size_t i = 0;
  const auto write_back = [&](at::Tensor buffer) {
    if (!buffer.is_same(changed[i])) {
      buffer.copy_(changed[i]);
    }
    ++i;
  };
  (write_back(buffers), ...);
}

// Notes the rank of x. Returns whether there are values to measure: x is not empty and is floating-point.
bool observeShape(const at::Tensor& x, double* range);

} // namespace jit_passes
