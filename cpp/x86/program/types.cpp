#include "types.h"

namespace jit_passes::x86 {

bool hasFloats(Kind kind) {
  const Types types = declarationOf(kind).types;
  return types == Types::Same || types == Types::Mixed || types == Types::Real || types == Types::Stored;
}

bool hasCodes(const Operator& op) {
  const Declaration& declaration = declarationOf(op.kind);
  return declaration.types != Types::Real && declaration.gives_codes(op);
}

void refuseAxes(const char* verb, int64_t axes, int64_t most) {
  refuseUnless(axes <= most, "it ", verb, " more than ", most, " axes");
}

int64_t checkAxes(const Operator& op, const std::vector<int64_t>& axes) {
  const Declaration& declaration = declarationOf(op.kind);
  int64_t most = 0; // the most axes of an operand
  for (const int64_t input : op.inputs) {
    most = std::max(most, axes[input]);
  }
  const int64_t first = op.inputs.empty() ? 0 : axes[op.inputs[0]],
                result = declaration.least_axes(op, first, most);
  refuseAxes("reads", most, declaration.most_axes);
  refuseAxes("gives", result, declaration.most_axes);
  return result;
}

std::optional<Grid> joinedGrid(const Operator& op, const std::vector<Grid>& grids) {
  if (declarationOf(op.kind).joins == nullptr || isAffine(op.kind)) {
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
  if (!gives && !hasCodes(op)) {
    return false;
  }
  switch (declarationOf(op.kind).types) {
    case Types::Codes: return !gives && all(false);
    case Types::Same: return all(gives);
    case Types::Mixed: return gives || all(false);
    case Types::ToCodes: return !gives && all(true);
    case Types::ToFloats: return gives && all(false);
    case Types::Floats: return gives;
    case Types::Stored: return op.tensors[0].scalar_type() == (gives ? at::kFloat : at::kByte);
    case Types::Real: return gives && all(true);
  }
  return false;
}

} // namespace jit_passes::x86
