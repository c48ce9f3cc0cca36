#include "types.h"

#include "attention.h"

namespace jit_passes::x86 {

Types typesOf(Kind kind) {
  switch (kind) {
    case Kind::Input: return Types::Floats;
    case Kind::Quantize: return Types::ToCodes;
    case Kind::Dequantize: return Types::ToFloats;
    case Kind::Add:
    case Kind::Multiply: return Types::Mixed;
    case Kind::DynamicLinear:
    case Kind::DynamicConvolution:
    case Kind::DynamicTransposedConvolution:
    case Kind::RmsNorm:
    case Kind::Function: return Types::Real;
    case Kind::MatrixProduct:
    case Kind::AdaptiveAverage:
    case Kind::Mean:
    case Kind::LayerNorm:
    case Kind::Softmax:
    case Kind::Concat:
    case Kind::Flatten:
    case Kind::Reshape:
    case Kind::Unflatten:
    case Kind::Permute:
    case Kind::Transpose:
    case Kind::Unsqueeze:
    case Kind::Expand:
    case Kind::Roll:
    case Kind::Slice:
    case Kind::Narrow:
    case Kind::Part:
    case Kind::Constant: return Types::Same;
    default: return Types::Codes;
  }
}

bool hasFloats(Kind kind) {
  const Types types = typesOf(kind);
  return types == Types::Same || types == Types::Mixed || types == Types::Real;
}

// The sums of more codes than that would leave int32.
bool hasCodes(const Operator& op) {
  return typesOf(op.kind) != Types::Real &&
         (op.kind != Kind::LayerNorm || op.tensors[NormTensors::Weight].numel() <= kMostNormalized);
}

int64_t mostAxes(Kind kind) {
  switch (kind) {
    case Kind::Input:
    case Kind::Quantize:
    case Kind::Dequantize:
    case Kind::Table:
    case Kind::Function:
    case Kind::Flatten:
    case Kind::Reshape:
    case Kind::Unflatten:
    case Kind::Unsqueeze:
    case Kind::Permute:
    case Kind::Transpose: return kMostMovedAxes;
    default: return kMostAxes;
  }
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
