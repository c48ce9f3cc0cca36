#include "types.h"

#include "attention.h"
#include "shapes.h"

namespace jit_passes::x86 {

Types typesOf(Kind kind) {
  switch (kind) {
    case Kind::Input: return Types::Floats;
    case Kind::Quantize: return Types::ToCodes;
    case Kind::Dequantize: return Types::ToFloats;
    case Kind::Add:
    case Kind::Multiply:
    case Kind::Divide:
    case Kind::Fill: return Types::Mixed;
    case Kind::DynamicLinear:
    case Kind::DynamicConvolution:
    case Kind::DynamicTransposedConvolution:
    case Kind::RmsNorm:
    case Kind::Recurrent:
    case Kind::Sum:
    case Kind::Length:
    case Kind::Largest:
    case Kind::Smallest:
    case Kind::Function: return Types::Real;
    case Kind::MatrixProduct:
    case Kind::Affine:
    case Kind::MaxPool:
    case Kind::AveragePool:
    case Kind::ResizeNearest:
    case Kind::ResizeBilinear:
    case Kind::AdaptiveAverage:
    case Kind::Mean:
    case Kind::LayerNorm:
    case Kind::GroupNorm:
    case Kind::Softmax:
    case Kind::Concat:
    case Kind::Flatten:
    case Kind::Reshape:
    case Kind::Unflatten:
    case Kind::Permute:
    case Kind::Transpose:
    case Kind::Unsqueeze:
    case Kind::Squeeze:
    case Kind::Expand:
    case Kind::Roll:
    case Kind::Slice:
    case Kind::Narrow:
    case Kind::Part:
    case Kind::Pad:
    case Kind::Constant: return Types::Same;
    case Kind::Power: return Types::Real;
    default: return Types::Codes;
  }
}

bool hasFloats(Kind kind) {
  const Types types = typesOf(kind);
  return types == Types::Same || types == Types::Mixed || types == Types::Real;
}

// Of layer norm, sums of more codes than that would leave int32.
bool hasCodes(const Operator& op) {
  return typesOf(op.kind) != Types::Real && op.kind != Kind::Divide && op.kind != Kind::Fill &&
         (op.kind != Kind::LayerNorm || op.tensors[NormTensors::Weight].numel() <= kMostNormalized);
}

namespace {

// Of an operator whose first operand has so many axes at least, and that of the most so many.
int64_t leastAxes(const Operator& op, int64_t first, int64_t most) {
  const auto& a = op.attributes;
  switch (op.kind) {
    case Kind::Reshape:
    case Kind::Permute:
    case Kind::Expand: return a.size();
    case Kind::Constant: return op.tensors[0].dim();
    case Kind::Add:
    case Kind::Multiply:
    case Kind::Divide:
    case Kind::Fill: return most;
    case Kind::MatrixProduct: return 0;
    default: break;
  }
  if (first == 0) {
    return 0;
  }
  switch (op.kind) {
    case Kind::Unflatten: return first + int64_t(a.size()) - 2;
    case Kind::Unsqueeze: return first + 1;
    case Kind::Squeeze: return std::max<int64_t>(first - int64_t(a.size()), 0);
    case Kind::Flatten: return std::max<int64_t>(first - axisOf(a[1], first) + axisOf(a[0], first), 0);
    case Kind::Mean:
    case Kind::Sum:
    case Kind::Length:
    case Kind::Largest:
    case Kind::Smallest: return a[0] ? first : std::max<int64_t>(first + 1 - int64_t(a.size()), 0);
    case Kind::Narrow: return first - a[3];
    case Kind::Part: return first - (a[PartAttributes::How] == PartAttributes::Single);
    default: return first;
  }
}

} // namespace

int64_t mostAxes(Kind kind) {
  switch (kind) {
    case Kind::Input:
    case Kind::Quantize:
    case Kind::Dequantize:
    case Kind::Table:
    case Kind::Function:
    case Kind::DynamicLinear:
    case Kind::Flatten:
    case Kind::Reshape:
    case Kind::Unflatten:
    case Kind::Unsqueeze:
    case Kind::Squeeze:
    case Kind::Permute:
    case Kind::Transpose:
    case Kind::Slice:
    case Kind::Narrow:
    case Kind::Part: return kMostMovedAxes;
    default: return kMostAxes;
  }
}

int64_t checkAxes(const Operator& op, const std::vector<int64_t>& axes) {
  int64_t most = 0; // of an operand
  for (const int64_t input : op.inputs) {
    most = std::max(most, axes[input]);
  }
  const int64_t first = op.inputs.empty() ? 0 : axes[op.inputs[0]], result = leastAxes(op, first, most);
  TORCH_CHECK(
      std::max(most, result) <= mostAxes(op.kind), op.name, " (", nameOf(op.kind), ") takes and gives ",
      mostAxes(op.kind), " axes at most, and would get ", most, " and give ", result,
      ": join some of them in front of it");
  return result;
}

std::optional<Grid> joinedGrid(const Operator& op, const std::vector<Grid>& grids) {
  if (op.kind != Kind::Concat) {
    return std::nullopt;
  }
  Grid grid = grids[op.inputs[0]];
  for (const int64_t input : op.inputs) {
    const Grid& other = grids[input];
    if (other.scale != grid.scale || other.zero_point != grid.zero_point) {
      return std::nullopt;
    }
    grid.low = std::min(grid.low, other.low), grid.high = std::max(grid.high, other.high);
  }
  return grid;
}

bool fitsTypes(const Operator& op, const std::vector<Grid>& grids) {
  const bool gives = grids[op.output].is_float;
  const auto all = [&](bool is_float) {
    return std::ranges::all_of(op.inputs, [&](int64_t value) { return grids[value].is_float == is_float; });
  };
  if (op.kind == Kind::Constant) {
    return op.tensors[0].scalar_type() == (gives ? at::kFloat : at::kByte);
  }
  if (!gives && !hasCodes(op)) {
    return false;
  }
  switch (typesOf(op.kind)) {
    case Types::Codes: return !gives && all(false);
    case Types::Same: return all(gives);
    case Types::Mixed: return gives || all(false);
    case Types::ToCodes: return !gives && all(true);
    case Types::ToFloats: return gives && all(false);
    case Types::Floats: return gives;
    case Types::Real: return gives && all(true);
  }
  return false;
}

} // namespace jit_passes::x86
