#include "views.h"

#include "x86/program/declaration.h"

namespace jit_passes::x86 {
namespace {

View unflattened(const View& from, int64_t axis, const Sizes& sizes) {
  View to{{}, {}, from.offset};
  const int64_t parts = static_cast<int64_t>(sizes.size()) - static_cast<int64_t>(from.sizes.size()) + 1;
  to.sizes = sizes, to.strides = from.strides;
  to.strides.insert(to.strides.begin() + axis, parts - 1, 0);
  to.strides.resize(sizes.size());
  int64_t stride = from.strides[axis];
  for (int64_t i = axis + parts - 1; i >= axis; --i) {
    to.strides[i] = stride;
    stride *= sizes[i];
  }
  return to;
}

} // namespace

View through(const std::vector<Rearranged>& operators, View view) {
  for (const auto& [made_by, sizes] : operators) {
    const Operator& op = *made_by;
    const int64_t rank = view.sizes.size();
    if (op.kind == Kind::Unflatten) {
      view = unflattened(view, axisOf(op.attributes[0], rank), sizes);
    } else if (declarationOf(op.kind).permutes) {
      const Sizes from = view.strides, axes = permutationOf(op, rank);
      for (int64_t i = 0; i < rank; ++i) {
        view.strides[i] = from[axes[i]];
      }
    } else {
      const Range range = rangeOf(op, view.sizes);
      view.offset += range.start * view.strides[range.axis];
      if (sizes.size() < view.sizes.size()) {
        view.strides.erase(view.strides.begin() + range.axis);
      } else {
        view.strides[range.axis] *= range.step;
      }
    }
    view.sizes = sizes;
  }
  return view;
}

MatrixAxes leftAxes(const Sizes& sizes) {
  const int64_t rank = sizes.size();
  return {rank - 2, rank - 1};
}

MatrixAxes rightAxes(const Sizes& sizes) {
  const int64_t rank = sizes.size();
  return rank == 1 ? MatrixAxes{0, -1} : MatrixAxes{rank - 2, rank - 1};
}

MatrixAxes resultAxes(const Sizes& left, const Sizes& right) {
  const int64_t rank =
      static_cast<int64_t>(std::max(left.size(), right.size())) - (left.size() == 1) - (right.size() == 1);
  const int64_t columns = right.size() == 1 ? -1 : rank - 1;
  return {left.size() == 1 ? -1 : rank - 1 - (columns >= 0), columns};
}

bool isDense(const View& view, int64_t axis) {
  return axis < 0 || view.strides[axis] == 1 || view.sizes[axis] == 1;
}

Image matrices(const View& view, int64_t pixels, int64_t channels) {
  Image image;
  image.width = pixels < 0 ? 1 : view.sizes[pixels], image.pixel = pixels < 0 ? 0 : view.strides[pixels];
  image.channels = channels < 0 ? 1 : view.sizes[channels];
  const std::pair<int64_t*, int64_t*> dims[] = {
      {&image.height, &image.row}, {&image.depth, &image.plane}, {&image.images, &image.image}};
  size_t next = 0;
  for (int64_t axis = static_cast<int64_t>(view.sizes.size()) - 1; axis >= 0; --axis) {
    if (axis != pixels && axis != channels) {
      *dims[next].first = view.sizes[axis], *dims[next].second = view.strides[axis];
      ++next;
    }
  }
  return image;
}

Image rightMatrices(const View& view, bool& transposed) {
  const auto [rows, columns] = rightAxes(view.sizes);
  transposed = columns < 0 || !isDense(view, columns);
  return transposed ? matrices(view, columns, rows) : matrices(view, rows, columns);
}

} // namespace jit_passes::x86
