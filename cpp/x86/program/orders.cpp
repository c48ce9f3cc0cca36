#include "orders.h"

#include "declaration.h"

namespace jit_passes::x86 {
Sizes contiguousOrder(int64_t rank) {
  Sizes order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<Sizes> outputOrders(const Program& program, const std::vector<Sizes>& sizes) {
  std::vector<Sizes> orders(sizes.size()), outputs;
  for (const Operator& op : program.operators) {
    const int64_t rank = sizes[op.output].size();
    const auto order = declarationOf(op.kind).order;
    orders[op.output] = order && rank <= kMostPlanAxes ? order(op, orders, sizes) : contiguousOrder(rank);
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
