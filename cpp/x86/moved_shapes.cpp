// The sizes of what only moves elements.
#include "parts.h"
#include "shapes.h"

namespace jit_passes::x86 {
namespace {

class MovedSizes {
 public:
  MovedSizes(const Operator& op, const Sizes& from) : op_(op), from_(from) {}

  Sizes infer() const {
    switch (op_.kind) {
      case Kind::Flatten: return flatten();
      case Kind::Reshape: return reshaped(from_, op_.attributes);
      case Kind::Unflatten: return unflatten();
      case Kind::Permute:
      case Kind::Transpose: return permute();
      case Kind::Unsqueeze: return unsqueezed();
      case Kind::Squeeze: return squeezed();
      case Kind::Expand: return expanded();
      case Kind::Roll: return rolled();
      case Kind::Shuffle: return shuffle();
      case Kind::Pad: return pad();
      default: return part();
    }
  }

 private:
  Sizes flatten() const {
    const int64_t rank = from_.size();
    require(rank > 0, "takes no number");
    const int64_t begin = checkAxis(op_.attributes[0], rank), end = checkAxis(op_.attributes[1], rank);
    require(begin <= end, "flattens the axes ", begin, " to ", end);
    Sizes sizes(from_.begin(), from_.begin() + begin);
    sizes.push_back(countOf(Sizes(from_.begin() + begin, from_.begin() + end + 1)));
    sizes.insert(sizes.end(), from_.begin() + end + 1, from_.end());
    return sizes;
  }

  Sizes reshaped(const Sizes& from, Sizes sizes) const {
    const auto open = std::find(sizes.begin(), sizes.end(), -1);
    const int64_t count = countOf(from);
    __int128 known = 1; // a hostile shape must not wrap around
    for (const int64_t size : sizes) {
      known = std::min<__int128>(known * (size == -1 ? 1 : size), __int128{1} << 62);
    }
    const bool fits = open == sizes.end() ? known == count : known > 0 && count % known == 0;
    require(fits, "got the shape ", from_, ", which is not ", op_.attributes);
    if (open != sizes.end()) {
      *open = count / static_cast<int64_t>(known);
    }
    return sizes;
  }

  Sizes unflatten() const {
    const int64_t axis = checkAxis(op_.attributes[0], from_.size());
    const Sizes parts = reshaped({from_[axis]}, {op_.attributes.begin() + 1, op_.attributes.end()});
    Sizes sizes(from_.begin(), from_.begin() + axis);
    sizes.insert(sizes.end(), parts.begin(), parts.end());
    sizes.insert(sizes.end(), from_.begin() + axis + 1, from_.end());
    return sizes;
  }

  Sizes permute() const {
    const int64_t rank = from_.size();
    require(
        op_.kind == Kind::Transpose || int64_t(op_.attributes.size()) == rank, "takes ",
        op_.attributes.size(), " axes, and got the shape ", from_);
    for (const int64_t axis : op_.attributes) {
      checkAxis(axis, rank);
    }
    Sizes sizes;
    std::vector<bool> seen(rank);
    for (const int64_t from : permutationOf(op_, rank)) {
      require(!seen[from], "has the axis ", from, " twice");
      seen[from] = true;
      sizes.push_back(from_[from]);
    }
    return sizes;
  }

  Sizes unsqueezed() const {
    Sizes sizes = from_;
    const int64_t rank = int64_t(sizes.size()) + 1;
    sizes.insert(sizes.begin() + checkAxis(op_.attributes[0], rank), 1);
    return sizes;
  }

  Sizes squeezed() const {
    const int64_t rank = from_.size();
    std::vector<bool> goes(rank);
    for (const int64_t attribute : op_.attributes) {
      const int64_t axis = checkAxis(attribute, rank);
      goes[axis] = from_[axis] == 1;
    }
    Sizes sizes;
    for (int64_t axis = 0; axis < rank; ++axis) {
      if (!goes[axis]) {
        sizes.push_back(from_[axis]);
      }
    }
    return sizes;
  }

  Sizes expanded() const {
    Sizes sizes = op_.attributes;
    const int64_t more = int64_t(sizes.size()) - int64_t(from_.size());
    require(more >= 0, "gives ", sizes.size(), " axes, and got the shape ", from_);
    for (int64_t i = 0; i < int64_t(sizes.size()); ++i) {
      const int64_t own = i < more ? 1 : from_[i - more];
      sizes[i] = sizes[i] == -1 && i >= more ? own : sizes[i];
      require(
          sizes[i] >= 0 && (own == sizes[i] || own == 1), "gives the sizes ", sizes, " of the shape ", from_);
    }
    return sizes;
  }

  Sizes rolled() const {
    for (size_t i = op_.attributes.size() / 2; i < op_.attributes.size(); ++i) {
      checkAxis(op_.attributes[i], from_.size());
    }
    return from_;
  }

  Sizes shuffle() const {
    const int64_t axis = checkAxis(op_.attributes[0], from_.size());
    require(
        from_[axis] % op_.attributes[1] == 0, "has ", op_.attributes[1], " parts, and got the shape ", from_);
    return from_;
  }

  Sizes part() const {
    const Range range = rangeOf(op_, from_);
    Sizes sizes = from_;
    sizes[range.axis] = range.length;
    if (op_.kind == Kind::Narrow
            ? op_.attributes[3] != 0
            : op_.kind == Kind::Part && op_.attributes[PartAttributes::How] == PartAttributes::Single) {
      sizes.erase(sizes.begin() + range.axis);
    }
    return sizes;
  }

  Sizes pad() const {
    Sizes sizes = from_;
    require(
        op_.attributes.size() <= 2 * sizes.size(), "pads more axes than there are, got the shape ", from_);
    for (size_t i = 0; i < op_.attributes.size(); ++i) {
      sizes[sizes.size() - 1 - i / 2] += op_.attributes[i];
    }
    return sizes;
  }

  int64_t checkAxis(int64_t axis, int64_t rank) const { return x86::checkAxis(op_, axis, rank, from_); }

  template <typename... Message>
  void require(bool condition, const Message&... message) const {
    x86::require(op_, condition, message...);
  }

  const Operator& op_;
  const Sizes& from_;
};

} // namespace

Sizes inferMoved(const Operator& op, const Sizes& from) { return MovedSizes(op, from).infer(); }

Sizes permutationOf(const Operator& op, int64_t rank) {
  Sizes axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (op.kind == Kind::Transpose) {
    std::swap(axes[axisOf(op.attributes[0], rank)], axes[axisOf(op.attributes[1], rank)]);
    return axes;
  }
  std::transform(op.attributes.begin(), op.attributes.end(), axes.begin(), [&](int64_t axis) {
    return axisOf(axis, rank);
  });
  return axes;
}

} // namespace jit_passes::x86
