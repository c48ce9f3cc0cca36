#include "shapes.h"

#include "declaration.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kMaxCodes = int64_t{1} << 32; // limit for one value; more is a mistake

} // namespace

int64_t checkAxis(const Operator& op, int64_t axis, int64_t rank, const Sizes& of) {
  require(op, axis >= -rank && axis < rank, "works along axis ", axis, ", and got the shape ", of);
  return axisOf(axis, rank);
}

bool isReduced(const Operator& op, int64_t axis, int64_t rank) {
  return std::any_of(op.attributes.begin() + 1, op.attributes.end(), [&](int64_t reduced) {
    return axisOf(reduced, rank) == axis;
  });
}

int64_t countOf(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

Sizes inferResult(const Operator& op, const std::vector<Sizes>& sizes, const std::vector<Sizes>& inputs) {
  const Declaration& declaration = declarationOf(op.kind);
  const size_t most = declaration.most_axes;
  Operands operands{op, {}};
  if (op.kind == Kind::Input) {
    operands.sizes.push_back(&inputs[op.attributes[0]]);
  }
  for (const int64_t input : op.inputs) {
    operands.sizes.push_back(&sizes[input]);
  }
  for (const Sizes* operand : operands.sizes) {
    require(op, operand->size() <= most, "takes ", most, " axes at most, and got the shape ", *operand);
  }
  Sizes result = declaration.infer(operands);
  require(
      op, result.size() <= most, "gives a tensor with ", result.size(), " axes; a plan takes ", most,
      " at most");
  int64_t codes = 1;
  for (const int64_t size : result) {
    // No factor is negative, and a product of two numbers below these limits does not overflow.
    require(
        op, size <= kMaxCodes && (codes *= std::max<int64_t>(size, 1)) <= kMaxCodes,
        "gives a tensor of the shape ", result, ", which is too large");
  }
  return result;
}

std::optional<at::Tensor> numberSpread(const Program& program, int64_t value) {
  const auto makerOf = [&](int64_t made) {
    return std::ranges::find_if(program.operators, [=](const Operator& op) { return op.output == made; });
  };
  const auto expands = makerOf(value);
  if (expands->kind != Kind::Expand) {
    return std::nullopt;
  }
  const auto constant = makerOf(expands->inputs[0]);
  const bool spread =
      constant->kind == Kind::Constant && program.grids[value].is_float && constant->tensors[0].numel() == 1;
  return spread ? std::optional(constant->tensors[0].reshape({})) : std::nullopt;
}

std::vector<Sizes> inferSizes(const Program& program, const std::vector<Sizes>& inputs) {
  std::vector<Sizes> sizes(program.grids.size());
  for (const Operator& op : program.operators) {
    sizes[op.output] = inferResult(op, sizes, inputs);
  }
  return sizes;
}

} // namespace jit_passes::x86
