#include "copies.h"
#include "placed.h"
#include "x86/kernels/copy_across.h"

namespace jit_passes::x86 {

namespace {

// An axis of a copy: the number of elements, and their distances in bytes.
struct Along {
  int64_t size, from, to;
};

// A copy of more axes than an image has. Items: the elements of all axes but the last one and the channels.
Part copiedFar(const Sizes& sizes, const Sizes& strides, Placed x, const Memory& to) {
  std::vector<Along> outer;
  for (int64_t i = 0; i < int64_t(sizes.size()); ++i) {
    const Along axis{sizes[i], strides[i], to.strides[i]};
    Along* last = outer.empty() ? nullptr : &outer.back();
    if (i == to.axis || axis.size == 1) {
      continue;
    }
    if (last != nullptr && last->from == axis.size * axis.from && last->to == axis.size * axis.to) {
      *last = {last->size * axis.size, axis.from, axis.to};
    } else {
      outer.push_back(axis);
    }
  }
  if (outer.empty()) {
    outer.push_back({1, 0, 0});
  }
  const int64_t bytes = to.bytes();
  const Along channels =
      to.axis < 0 ? Along{1, bytes, bytes} : Along{sizes[to.axis], strides[to.axis], bytes};
  Placed y{{}, to.offset, to.home};
  const Along row = outer.back();
  outer.pop_back();
  int64_t items = 1;
  for (const Along& axis : outer) {
    items *= axis.size;
  }
  const auto rowOf = [&](Placed& placed, int64_t pixel) {
    placed.image = {};
    placed.image.width = row.size, placed.image.pixel = pixel;
    placed.image.channels = channels.size;
  };
  rowOf(x, row.from), rowOf(y, row.to);
  const CopyAcross kernel{channels.from, channels.to, bytes};
  return {items, [=](const Call& call, int64_t begin, int64_t end) {
            const Image in = x.in(call), out = y.in(call);
            for (int64_t index = begin; index < end; ++index) {
              Image from = in, to = out;
              int64_t rest = index;
              for (size_t i = outer.size(); i-- > 0; rest /= outer[i].size) {
                const int64_t at = rest % outer[i].size;
                from.data += at * outer[i].from, to.data += at * outer[i].to;
              }
              kernel.run(from, to, 0, 1); // one row
            }
          }};
}

} // namespace

Part copied(const Step& step, const Memory& from, const Memory& to) {
  Sizes all = from.sizes, all_strides = from.strides, sizes, strides;
  int64_t offset = from.offset;
  if (step.range) {
    const auto& [axis, start, length, stride] = *step.range;
    offset += start * all_strides[axis];
    all[axis] = length, all_strides[axis] *= stride;
  }
  for (size_t i = 0; i < step.axes.size(); ++i) {
    const int64_t axis = step.axes[i];
    sizes.push_back(axis < 0 ? to.sizes[i] : all[axis]);
    strides.push_back(axis < 0 ? 0 : all_strides[axis]);
  }
  if (int64_t(std::max(sizes.size(), all.size())) > kMostPlanAxes) {
    return copiedFar(sizes, strides, {{}, offset, from.home}, to);
  }
  const int64_t bytes = to.bytes(), channels = to.axis < 0 ? 1 : sizes[to.axis];
  const int64_t channel = to.axis < 0 ? bytes : strides[to.axis];
  const Dims dims = alongNeighbours(pixelDims(sizes, to.axis), strides, channel, bytes);
  Placed x{imageOf(dims, strides, channels, bytes), offset, from.home};
  Placed y{
      imageOf(dims, to.strides, channels, bytes),
      to.offset + (step.start ? step.start * to.strides[step.along] : 0), to.home};
  if (channel == bytes || channels == 1) {
    x.image.channels *= bytes, y.image.channels *= bytes;
    return unary(LookUp{step.table}, x, y);
  }
  return unary(CopyAcross{channel, bytes, bytes}, x, y);
}

} // namespace jit_passes::x86
