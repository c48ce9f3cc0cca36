#include "moves.h"
#include "placed.h"

namespace jit_passes::x86 {

Part padded(const Memory& from, const Memory& to, const std::vector<int64_t>& attributes) {
  const Dims dims = axisDims(to.sizes, to.axis);
  std::array<int64_t, 4> offset{};
  for (size_t i = 0; i < dims.size(); ++i) {
    const size_t at = 2 * (to.sizes.size() - 1 - dims[i].axis);
    offset[i] = dims[i].axis >= 0 && at < attributes.size() ? attributes[at] : 0;
  }
  Placed x = image(from, axisDims(from.sizes, from.axis)), y = image(to, dims);
  x.image.channels *= to.bytes(), y.image.channels *= to.bytes();
  const auto zero = static_cast<uint8_t>(to.grid->zero_point); // 0 for float32
  return {y.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            padRows(x.in(call), offset, zero, y.in(call), begin, end);
          }};
}

namespace {

// An axis that a copy goes over: how many elements, and how many bytes they are apart.
struct Along {
  int64_t size, from, to;
};

// A copy of more axes than an image has. Items: all elements but those of the last axis, and the channels.
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
  return {items, [=](const Call& call, int64_t begin, int64_t end) {
            const Image in = x.in(call), out = y.in(call);
            for (int64_t index = begin; index < end; ++index) {
              Image from = in, to = out;
              int64_t rest = index;
              for (size_t i = outer.size(); i-- > 0; rest /= outer[i].size) {
                const int64_t at = rest % outer[i].size;
                from.data += at * outer[i].from, to.data += at * outer[i].to;
              }
              copyAcross(from, channels.from, to, channels.to, bytes, 0, 1); // one row
            }
          }};
}

} // namespace

Part rolled(const Operator& op, const Memory& from, const Memory& to) {
  const Dims dims = axisDims(to.sizes, to.axis);
  const int64_t rank = to.sizes.size(), count = op.attributes.size() / 2;
  std::array<int64_t, 4> offset{};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis = axisOf(op.attributes[count + i], rank);
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (dims[dim].axis == axis && dims[dim].size > 0) {
        offset[dim] += op.attributes[i] % dims[dim].size;
      }
    }
  }
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const int64_t size = std::max<int64_t>(dims[dim].size, 1);
    offset[dim] = (offset[dim] % size + size) % size;
  }
  Placed x = image(from, dims), y = image(to, dims);
  x.image.channels *= to.bytes(), y.image.channels *= to.bytes();
  return {y.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            rollRows(x.in(call), offset, y.in(call), begin, end);
          }};
}

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
  if (int64_t(std::max(sizes.size(), all.size())) > kMostAxes) {
    return copiedFar(sizes, strides, {{}, offset, from.home}, to);
  }
  const Dims dims = pixelDims(sizes, to.axis);
  const int64_t bytes = to.bytes(), channels = to.axis < 0 ? 1 : sizes[to.axis];
  const int64_t channel = to.axis < 0 ? bytes : strides[to.axis];
  Placed x{imageOf(dims, strides, channels, bytes), offset, from.home};
  Placed y{
      imageOf(dims, to.strides, channels, bytes),
      to.offset + (step.start ? step.start * to.strides[step.along] : 0), to.home};
  if (channel == bytes || channels == 1) {
    x.image.channels *= bytes, y.image.channels *= bytes;
    return unary(LookUp{step.table}, x, y);
  }
  return {y.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            copyAcross(x.in(call), channel, y.in(call), bytes, bytes, begin, end);
          }};
}

Part loaded(const Operator& op, const Memory& to) {
  const at::Tensor ordered = to.axis < 0 ? op.tensors[0] : op.tensors[0].movedim(to.axis, -1);
  const int64_t count = ordered.numel();
  const at::Tensor held = at::zeros({count + kSlack}, ordered.options());
  held.narrow(0, 0, count).copy_(ordered.flatten());
  Memory from{.sizes = to.sizes, .axis = to.axis, .grid = to.grid};
  layOutDense(from);
  const Dims dims = pixelDims(to.sizes, to.axis);
  Placed y = image(to, dims);
  Image x = image(from, dims).image;
  x.data = static_cast<uint8_t*>(held.mutable_data_ptr()); // the part keeps it
  x.channels *= to.bytes(), y.image.channels *= to.bytes();
  const LookUp kernel;
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            (void)held;
            kernel.run(x, y.in(call), begin, end);
          }};
}

Part blended(const Operator& op, const Memory& from, const Memory& to) {
  const Placed x = image(from), y = image(to);
  const auto tapsOf = [&](int64_t in, int64_t out, size_t axis) {
    const auto factor =
        op.tensors.empty() ? std::nullopt : std::optional(op.tensors[0].const_data_ptr<double>()[axis]);
    return blendedTaps(in, out, factor, op.attributes.back() != 0);
  };
  const auto rows = tapsOf(x.image.height, y.image.height, 0),
             columns = tapsOf(x.image.width, y.image.width, 1);
  if (to.grid->is_float) {
    return unary(BlendFloats{rows, columns}, x, y);
  }
  const double ratio =
      static_cast<double>(static_cast<float>(from.grid->scale)) / static_cast<float>(to.grid->scale);
  Blend kernel{rows, columns};
  kernel.ratio = static_cast<float>(ratio);
  kernel.offset = static_cast<float>(offsetOf(*to.grid) - ratio * from.grid->zero_point);
  kernel.range = codeRangeOf(*to.grid);
  return unary(std::move(kernel), x, y);
}

Part interleaved(const Step& step, const std::vector<Memory>& memory) {
  const Memory& to = memory[step.output];
  const Dims dims = pixelDims(to.sizes, to.axis);
  std::vector<Placed> parts;
  Interleave kernel;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    parts.push_back(image(memory[step.inputs[i]], dims));
    const at::Tensor& table = step.own_tables[i];
    kernel.tables.push_back(table.defined() ? table.const_data_ptr<uint8_t>() : nullptr);
  }
  const Placed y = image(to, dims);
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            // Nothing is allocated while it runs: one part after the other, but two are common.
            for (size_t i = 0; i < parts.size(); i += 2) {
              const bool both = i + 1 < parts.size();
              const Image images[] = {parts[i].in(call), parts[both ? i + 1 : i].in(call)};
              kernel.run(images, i, both ? 2 : 1, y.in(call), begin, end);
            }
          }};
}

} // namespace jit_passes::x86
