#include "parts.h"

namespace jit_passes::x86 {
namespace {

using Attributes = std::vector<int64_t>;

constexpr int64_t kLargest = int64_t{1}
                             << 40; // of a number that means something; sums of two do not overflow

bool within(int64_t number, int64_t low, int64_t high) { return number >= low && number <= high; }

// As at::slice does it.
Range sliced(const Attributes& a, int64_t axis, int64_t size) {
  const auto inside = [&](int64_t at) { return std::clamp(at < 0 ? at + size : at, int64_t{0}, size); };
  const int64_t start = inside(a[1]), end = std::max(inside(a[2]), start);
  return {axis, start, (end - start + a[3] - 1) / a[3], a[3]};
}

// The sizes of all parts.
Sizes partsOf(const Attributes& a, int64_t size) {
  using A = PartAttributes;
  if (a[A::How] == A::Listed) {
    return {a.begin() + A::Sizes, a.end()};
  }
  const int64_t asked = a[A::Sizes];
  const int64_t each = a[A::How] != A::Chunks ? asked : (size + asked - 1) / asked;
  // An empty axis has as many chunks as are asked for, and one part of equal size.
  const int64_t none = a[A::How] == A::Single ? 0 : a[A::How] == A::Equal ? 1 : asked;
  const int64_t count = size > 0 && each > 0 ? (size + each - 1) / each : none;
  if (count != a[A::Parts] || (each == 0 && size > 0)) {
    return {};
  }
  Sizes sizes(count, each);
  sizes.back() = size - each * (count - 1);
  return sizes;
}

} // namespace

bool isRange(const Operator& op) {
  using A = PartAttributes;
  const Attributes& a = op.attributes;
  if (!within(a[0], -8, 7)) {
    return false;
  }
  switch (op.kind) {
    case Kind::Shuffle: return within(a[1], 1, kLargest);
    case Kind::Slice:
      return within(a[1], -kLargest, kLargest) && within(a[2], -kLargest, kLargest) &&
             within(a[3], 1, kLargest);
    case Kind::Narrow:
      return within(a[1], -kLargest, kLargest) && within(a[2], 0, kLargest) && within(a[3], 0, 1) &&
             (a[3] == 0 || a[2] == 1);
    default: break;
  }
  const int64_t sizes = a.size() - A::Sizes;
  return within(a[A::How], A::Chunks, A::Single) && within(a[A::Parts], 1, int64_t{1} << 20) &&
         within(a[A::Number], 0, a[A::Parts] - 1) && sizes == (a[A::How] == A::Listed ? a[A::Parts] : 1) &&
         std::all_of(a.begin() + A::Sizes, a.end(), [&](int64_t size) {
           return within(size, a[A::How] == A::Chunks, kLargest) && (a[A::How] != A::Single || size == 1);
         });
}

Range rangeOf(const Operator& op, const Sizes& sizes) {
  using A = PartAttributes;
  const Attributes& a = op.attributes;
  const int64_t rank = sizes.size();
  const auto require = [&](bool condition, const auto&... message) {
    TORCH_CHECK(condition, op.name, " (", nameOf(op.kind), ") ", message..., ", and got the shape ", sizes);
  };
  require(within(a[0], -rank, rank - 1), "works along axis ", a[0]);
  const int64_t axis = axisOf(a[0], rank), size = sizes[axis];
  if (op.kind == Kind::Slice) {
    return sliced(a, axis, size);
  }
  if (op.kind == Kind::Narrow) {
    const int64_t start = a[1] < 0 ? a[1] + size : a[1];
    require(start >= 0 && start + a[2] <= size, "takes ", a[2], " from ", a[1], " on along axis ", a[0]);
    return {axis, start, a[2], 1};
  }
  const Sizes parts = partsOf(a, size);
  require(
      !parts.empty() && std::accumulate(parts.begin(), parts.end(), int64_t{0}) == size, "splits axis ", a[0],
      " into ", a[A::Parts], " parts");
  const auto here = parts.begin() + a[A::Number];
  return {axis, std::accumulate(parts.begin(), here, int64_t{0}), *here, 1};
}

} // namespace jit_passes::x86
