#include "operator.h"

namespace jit_passes::x86 {
namespace {

Planned gather(const RegionReader& reader, Node* node) {
  return {
      {Kind("gather"), "", {}, 0, {reader.integer(node, "dim")}, {}},
      {operandOf(node, "self"), operandOf(node, "index")}};
}

// y[..., i, ...] = x[..., index[..., i, ...], ...], float32. Items: elements of the result.
Part gatherKernel(const StepContext& c) {
  const Memory &from = c.in(0), &index = c.in(1), &to = c.out();
  const int64_t along = axisOf(c.op.attributes[0], int64_t(to.sizes.size())), size = from.sizes[along];
  Sizes steps = from.strides;
  steps[along] = 0;
  const Placed x{{}, from.offset, from.home}, at{{}, index.offset, index.home}, y{{}, to.offset, to.home};
  return {
      countOf(to.sizes),
      [=, name = c.op.name, sizes = to.sizes, stride = from.strides[along], of_index = index.strides,
       of_result = to.strides](const Call& call, int64_t begin, int64_t end) {
        const auto *source = x.in(call).data, *indices = at.in(call).data;
        auto* result = y.in(call).data;
        for (int64_t i = begin; i < end; ++i) {
          int64_t rest = i, read = 0, asked = 0, written = 0;
          for (size_t axis = sizes.size(); axis-- > 0; rest /= sizes[axis]) {
            const int64_t here = rest % sizes[axis];
            read += here * steps[axis], asked += here * of_index[axis], written += here * of_result[axis];
          }
          const float wanted = *reinterpret_cast<const float*>(indices + asked);
          TORCH_CHECK_INDEX(
              wanted >= 0 && wanted < float(size), name, " takes element ", int64_t(wanted),
              " of an axis of ", size);
          *reinterpret_cast<float*>(result + written) =
              *reinterpret_cast<const float*>(source + read + int64_t(wanted) * stride);
        }
      }};
}

Sizes sizesOfGather(const Operands& operands) {
  const Sizes &from = operands[0], &index = operands[1];
  const int64_t along = checkAxis(operands.op, operands.op.attributes[0], from.size(), from);
  bool fits = from.size() == index.size();
  for (size_t i = 0; fits && i < from.size(); ++i) {
    fits = int64_t(i) == along || index[i] <= from[i];
  }
  require(operands.op, fits, "got the shapes ", from, " and ", index);
  require(
      operands.op, from[along] <= kMostIndices, "picks along at most ", kMostIndices,
      " numbers, and got the shape ", from);
  return index;
}

// Inputs: the source and the index, both in float32. Attributes: axis.
const RegisterOperator gather_operator{
    {.name = "gather",
     .inputs = {2, 2},
     .attributes = {1, 1},
     .types = Types::Real,
     .any_dtype = 1,
     .from = {{"gather", gather, "index"}},
     .check = checkAllAxes,
     .infer = sizesOfGather,
     .lower = lowerAsTheyAre,
     .kernel = gatherKernel}};

} // namespace
} // namespace jit_passes::x86
