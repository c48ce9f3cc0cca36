#include "fbgemm.h"

namespace jit_passes {

bool fastOnFbgemm(
    at::IntArrayRef weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    int64_t groups) {
  const bool depthwise = weight.at(1) == 1;
  if (groups == 1 || (!depthwise && groups <= 100)) {
    return true;
  }
  const auto window = weight.slice(2);
  const int64_t size = window.at(0);
  const bool known_window = window.size() == 2 ? size == 3 || size == 5 : window.size() == 3 && size == 3;
  const auto each = [](at::IntArrayRef numbers, auto holds) { return std::ranges::all_of(numbers, holds); };
  return depthwise && groups % 8 == 0 && known_window && each(window, [&](int64_t k) { return k == size; }) &&
         each(stride, [](int64_t s) { return s == 1 || s == 2; }) &&
         each(padding, [&](int64_t p) { return p == size / 2; }) &&
         each(dilation, [](int64_t d) { return d == 1; });
}

} // namespace jit_passes
