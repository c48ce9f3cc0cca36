#include "orders.h"

namespace jit_passes::x86 {
namespace {

Sizes orderOf(const Operator& op, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes) {
  const int64_t rank = sizes[op.output].size();
  Sizes order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (rank > kMostAxes) {
    return order;
  }
  switch (op.kind) {
    case Kind::Permute:
    case Kind::Transpose: {
      const Sizes from = permutationOf(op, rank), &given = orders[op.inputs[0]];
      for (int64_t axis = 0; axis < rank; ++axis) {
        order[std::find(given.begin(), given.end(), from[axis]) - given.begin()] = axis;
      }
      return order;
    }
    case Kind::Table:
    case Kind::Function:
    case Kind::Quantize:
    case Kind::Dequantize: return orders[op.inputs[0]];
    case Kind::Add:
    case Kind::Multiply:
    case Kind::Divide:
    case Kind::Fill: // of the first operand that is as large as the result
      for (const int64_t input : op.inputs) {
        if (sizes[input] == sizes[op.output]) {
          return orders[input];
        }
      }
      return order;
    default: return order;
  }
}

} // namespace

std::vector<Sizes> outputOrders(const Program& program, const std::vector<Sizes>& sizes) {
  std::vector<Sizes> orders(sizes.size()), outputs;
  for (const Operator& op : program.operators) {
    orders[op.output] = orderOf(op, orders, sizes);
  }
  for (const int64_t output : program.outputs) {
    outputs.push_back(orders[output]);
  }
  return outputs;
}

Sizes stridesOf(const Sizes& sizes, const Sizes& order) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return strides;
}

} // namespace jit_passes::x86
