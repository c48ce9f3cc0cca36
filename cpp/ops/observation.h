// Shared by all observers: the layout of their buffer, and reading a tensor as it lies in memory.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

// The `range` buffer of an observer: float64, at least these four entries, +inf, -inf, +inf, -inf
// before anything was seen.
enum RangeEntry : int64_t { kMin = 0, kMax = 1, kLowestRank = 2, kHighestRank = 3 };

// The values in memory order, without a copy when the tensor is dense float32 (contiguous,
// channels-last or any other permutation): statistics do not depend on the order.
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

// Where numbers are measured: in the memory of the CPU, or on any device, by PyTorch's operators. Both find the same.
enum class Measured { InMemory, ByOperators };

// Both raise an error that names the value when it holds a NaN or an infinity; the second measures
// each row of a contiguous matrix.
MinMax minMaxOf(const at::Tensor& values, c10::string_view name, Measured how = Measured::InMemory);
std::vector<MinMax> minMaxOfRows(
    const at::Tensor& rows, c10::string_view name, Measured how = Measured::InMemory);
// By operators, of each row, also of numbers that are not finite.
std::vector<Extremes> extremesOfRows(const at::Tensor& rows);

// The range of each row, widened to the sums of its values 2k and 2k + 1, and to what either of them adds.
std::vector<MinMax> minMaxOfPairSums(
    const at::Tensor& rows, c10::string_view name, Measured how = Measured::InMemory);

// Changes buffers on the CPU: themselves there, elsewhere copies that are written back.
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

// Notes the rank of x; false when there is nothing to measure: x is empty or not floating-point.
bool observeShape(const at::Tensor& x, double* range);

} // namespace jit_passes
