#include "sums.h"

#include "declaration.h"

namespace jit_passes::x86 {
namespace {

Operator withoutSum(Operator op) {
  op.inputs.resize(1), op.tensors.resize(kFactors);
  return op;
}

// The range of the numbers that codes stand for, times a factor.
std::pair<double, double> rangeOf(const Grid& grid, double factor) {
  const double one = (grid.low - grid.zero_point) * grid.scale * factor;
  const double other = (grid.high - grid.zero_point) * grid.scale * factor;
  return std::minmax(one, other);
}

// A grid for the first operand, over all values for which the sum is within its own codes. The grid has a code for
// 0.
Grid gridOfFirst(const Grid& sum, const Grid& second, const double* factors) {
  const auto whole = rangeOf(sum, 1), other = rangeOf(second, factors[1]);
  const double ends[] = {
      (whole.first - other.second) / factors[0], (whole.second - other.first) / factors[0]};
  const double low = std::min({ends[0], ends[1], 0.0}), high = std::max({ends[0], ends[1], 0.0});
  const double scale = high > low ? (high - low) / 255 : sum.scale;
  return {scale, std::clamp<int64_t>(std::llrint(-low / scale), 0, 255), 0, 255};
}

} // namespace

Operator withSum(Operator weighted, const Operator& sum, size_t own) {
  const double* factors = sum.tensors[0].const_data_ptr<double>();
  weighted.tensors.push_back(at::tensor({factors[own], factors[1 - own]}, at::kDouble));
  return weighted;
}

std::optional<Program> sumsApart(const Program& program, const std::vector<Sizes>& inputs) {
  const auto sizes = inferSizes(program, inputs);
  Program apart{program.inputs, program.grids, {}, program.outputs};
  for (const Operator& op : program.operators) {
    const Sizes& result = sizes[op.output];
    if (!hasSum(op) ||
        (sizes[op.inputs[1]] == result && inferResult(withoutSum(op), sizes, inputs) == result)) {
      apart.operators.push_back(op);
      continue;
    }
    const at::Tensor& factors = op.tensors[kFactors];
    Operator first = withoutSum(op);
    first.output = static_cast<int64_t>(apart.grids.size());
    apart.grids.push_back(
        gridOfFirst(program.grids[op.output], program.grids[op.inputs[1]], factors.const_data_ptr<double>()));
    Operator sum{Kind::Add, op.name, {first.output, op.inputs[1]}, op.output, {}, {factors}};
    apart.operators.push_back(std::move(first));
    apart.operators.push_back(std::move(sum));
  }
  if (apart.operators.size() == program.operators.size()) {
    return std::nullopt;
  }
  for (size_t i = program.grids.size(); i < apart.grids.size(); ++i) {
    checkGrid(apart.grids[i], i); // the scale may be NaN; weights were checked, and may be released already
  }
  return apart;
}

} // namespace jit_passes::x86
