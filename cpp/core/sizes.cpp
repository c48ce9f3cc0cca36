// Sizes that a graph gives as numbers.
#include "shapes.h"

namespace jit_passes {

std::optional<int64_t> Shapes::integer(const Value* value) {
  const auto number = constantNumber(value);
  return number && *number == std::floor(*number) ? std::optional(static_cast<int64_t>(*number))
                                                  : std::nullopt;
}

Extent Shapes::ofNumber(const Value* value) const {
  const Node* node = value->node();
  static const auto conversions =
      symbols({"prim::NumToTensor", "aten::Int", "aten::ScalarImplicit", "aten::IntImplicit"});
  if (const auto constant = constantOf(value); constant && constant->isInt()) {
    return {nullptr, constant->toInt()};
  }
  if (conversions.count(node->kind()) && node->inputs().size() == 1) {
    return ofNumber(node->input(0));
  }
  if (const auto quotient = ofQuotient(node)) {
    return {nullptr, *quotient};
  }
  const Extent held{value, isTensor(value) ? Extent::kHeld : 0};
  const Value* sizes = node->kind() == aten::size ? value : node->inputs().empty() ? nullptr : node->input(0);
  if (sizes == nullptr || sizes->node()->kind() != aten::size || known_.isWritten(sizes)) {
    return held;
  }
  const Value* tensor = sizes->node()->input(0);
  const Node* reader = value == sizes || node->kind() == aten::__getitem__ ? node : nullptr;
  if (node->kind() == prim::ListUnpack) {
    return ofAxis(tensor, value->offset(), held);
  }
  const auto axis = reader && reader->inputs().size() == 2 ? constantOf(reader->input(1)) : std::nullopt;
  return axis && axis->isInt() ? ofAxis(tensor, axis->toInt(), held) : held;
}

// `size // 4`, and what traced models have for it.
std::optional<int64_t> Shapes::ofQuotient(const Node* node) const {
  const bool floors = node->kind() == aten::floordiv || node->kind() == aten::floor_divide;
  const auto rounding =
      node->kind() == aten::div && node->inputs().size() == 3 ? constantOf(node->input(2)) : std::nullopt;
  if (!floors && !(rounding && rounding->isString())) { // trunc and floor are one for sizes
    return std::nullopt;
  }
  const Extent size = ofNumber(node->input(0));
  const auto divisor = integer(node->input(1));
  return size.isNumber() && size.number >= 0 && divisor && *divisor > 0
             ? std::optional(size.number / *divisor)
             : std::nullopt;
}

// The sizes that a reshape is given; -1 for the one that is open.
std::optional<std::vector<Extent>> Shapes::sizesGiven(const Value* tensor) const {
  const Node* node = tensor->node();
  if (node->kind() != aten::reshape || known_.isWritten(node->input(1))) {
    return std::nullopt;
  }
  std::vector<Extent> sizes;
  if (const auto constant = constantInts(node->input(1))) {
    for (const int64_t size : *constant) {
      sizes.push_back({nullptr, size});
    }
  } else if (node->input(1)->node()->kind() == prim::ListConstruct) {
    for (const Value* size : node->input(1)->node()->inputs()) {
      sizes.push_back(ofNumber(size));
    }
  } else {
    return std::nullopt;
  }
  return sizes;
}

} // namespace jit_passes
