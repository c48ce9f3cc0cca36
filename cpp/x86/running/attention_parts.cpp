#include "placed.h"
#include "x86/kernels/attention.h"

namespace jit_passes::x86 {
namespace {

// A view with strides and offset in elements.
View viewOf(const Memory& memory, const std::vector<Rearranged>& views) {
  Sizes strides = memory.strides;
  for (int64_t& stride : strides) {
    stride /= memory.bytes();
  }
  return through(views, {memory.sizes, strides, 0});
}

Placed placed(const Memory& memory, const View& view, Image image) {
  for (int64_t* stride : {&image.pixel, &image.row, &image.plane, &image.image}) {
    *stride *= memory.bytes();
  }
  return {image, memory.offset + view.offset * memory.bytes(), memory.home};
}

double ratio(const Grid& grid) { return static_cast<float>(grid.scale); }

} // namespace

Part packedOperand(const Step& step, const std::vector<Memory>& memory, Form form) {
  const Memory &from = memory[step.inputs[0]], &to = memory[step.output];
  const View view = viewOf(from, step.views[0]);
  bool transposed = false;
  const Placed b = placed(from, view, rightMatrices(view, transposed));
  const auto part = [&](const auto& kernel) -> Part {
    return {kernel.packItems(b.image), [=, offset = to.offset](const Call& call, int64_t begin, int64_t end) {
              kernel.pack(b.in(call), call.arena() + offset, begin, end);
            }};
  };
  if (from.grid->is_float) {
    return part(FloatProduct{transposed, {}, form});
  }
  MatrixProduct kernel{transposed};
  kernel.form = form;
  kernel.a_zero_point = memory[step.inputs[1]].grid->zero_point, kernel.b_zero_point = from.grid->zero_point;
  return part(kernel);
}

Part product(const Step& step, const std::vector<Memory>& memory, Form form) {
  const Memory &left = memory[step.inputs[0]], &right = memory[step.inputs[1]];
  const Memory& to = memory[step.output];
  const bool in_place = step.inputs.size() == 2;
  const View left_view = viewOf(left, step.views[0]), right_view = viewOf(right, step.views[1]);
  const auto of_left = leftAxes(left_view.sizes);
  bool transposed = false;
  const Placed a = placed(left, left_view, matrices(left_view, of_left.rows, of_left.columns));
  const Placed b = placed(right, right_view, rightMatrices(right_view, transposed));
  const View own = viewOf(to, {});
  View result = own; // before the permutation
  for (size_t i = 0; i < to.sizes.size(); ++i) {
    result.sizes[step.axes[i]] = own.sizes[i], result.strides[step.axes[i]] = own.strides[i];
  }
  const auto of_result = resultAxes(left_view.sizes, right_view.sizes);
  const Placed y = placed(to, result, matrices(result, of_result.rows, of_result.columns));
  const auto part = [&](const auto& kernel) -> Part {
    const int64_t offset = in_place ? 0 : memory[step.inputs[2]].offset;
    return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
              kernel.run(a.in(call), b.in(call), call.arena() + offset, y.in(call), begin, end);
            }};
  };
  if (to.grid->is_float) {
    return part(FloatProduct{transposed, step.function, form, in_place});
  }
  MatrixProduct kernel{transposed};
  kernel.form = form;
  kernel.a_zero_point = left.grid->zero_point, kernel.b_zero_point = right.grid->zero_point;
  kernel.multiplier = ratio(*left.grid) * ratio(*right.grid) / ratio(*step.grid);
  kernel.offset = offsetOf(*step.grid);
  kernel.range = codeRangeOf(*step.grid);
  kernel.table = step.table;
  return part(kernel);
}

} // namespace jit_passes::x86
