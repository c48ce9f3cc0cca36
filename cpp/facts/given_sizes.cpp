// The sizes in the lists of reshape, unflatten and expand. An element -1 leaves a size open.
//
//   %y = aten::unflatten(%x, 1, [-1, 2, 8])      axis 1 has the size of axis 1 of %x, divided by 2 * 8
//   %z = aten::reshape(%x, [%n, 4])              axis 0 has %n elements, or the quotient by 4 if %n is -1
//   %w = aten::reshape(%x, [%n, -1, 4])          axis 0 has %n elements: only one size may be open
#include "shape_facts.h"
#include "sizes_of_results.h"

namespace jit_passes {
namespace {

// Whether the list holds the sizes of a tensor, or a part of them.
bool listsSizes(const Value* list) {
  static const auto copies = symbol("aten::list");
  while (list->node()->kind() == aten::slice || list->node()->kind() == copies) {
    list = mainOperand(list->node());
  }
  return isSizes(list);
}

bool counts(const Node* node) {
  static const auto kinds = symbols({"aten::size", "aten::len", "aten::dim", "aten::numel"});
  return kinds.count(node->kind()) > 0;
}

// Whether the result is not negative if no operand is.
bool keepsSign(const Node* node) {
  static const auto kinds = symbols(
      {"aten::add", "aten::mul", "aten::div", "aten::floordiv", "aten::floor_divide", "aten::remainder",
       "aten::pow", "aten::sqrt", "aten::floor", "aten::ceil", "aten::Float", "prim::min", "prim::max"});
  return isConversion(node) || kinds.count(node->kind()) > 0;
}

bool isNumeric(const Value* value) {
  return isTensor(value) || value->type()->isSubtypeOf(*c10::NumberType::get());
}

} // namespace

std::optional<Shapes::Split> Shapes::split(const Node* node) const {
  if (node->kind() != aten::flatten && node->kind() != aten::unflatten) {
    return std::nullopt;
  }
  const auto one = constantOf(node->input(1)), two = constantOf(node->input(2));
  const auto parts = node->kind() == aten::unflatten ? ofList(inputOf(node, "sizes")) : std::nullopt;
  if (!one || !one->isInt() || (!parts && (!two || !two->isInt()))) {
    return std::nullopt;
  }
  const auto own = rank(inputOf(node, "self"));
  if (own == 0) { // flatten gives a tensor without axes one axis
    return std::nullopt;
  }
  const int64_t first = one->toInt() < 0 && own ? one->toInt() + *own : one->toInt();
  if (first < 0) {
    return std::nullopt;
  }
  if (node->kind() == aten::unflatten) {
    return parts ? std::optional(Split{first, 1, int64_t(parts->size())}) : std::nullopt;
  }
  const int64_t last = two->toInt() < 0 && own ? two->toInt() + *own : two->toInt();
  if (last == -1) {
    return Split{first, 1, 1}; // up to the last axis, so no axis comes after it
  }
  return last >= 0 ? std::optional(Split{first, last - first + 1, 1}) : std::nullopt;
}

bool Shapes::isNotNegative(const Value* number) const {
  const auto [known, added] = not_negative_.emplace(number, false);
  if (!added) {
    return known->second;
  }
  const bool found = findNotNegative(number);
  return not_negative_[number] = found;
}

bool Shapes::findNotNegative(const Value* number) const {
  const Node* node = number->node();
  const Extent extent = ofNumber(number);
  if (const auto known = extent.isNumber() ? extent.number() : wholeNumber(number)) {
    return *known >= 0;
  }
  if (extent.axis() != nullptr || counts(node)) {
    return true;
  }
  if (node->kind() == prim::Constant) {
    const auto constant = constantNumber(number);
    return constant && *constant >= 0;
  }
  if (node->kind() == prim::If) {
    return std::ranges::all_of(node->blocks(), [&](const Block* block) {
      return isNotNegative(block->outputs()[number->offset()]);
    });
  }
  if (node->kind() == prim::ListUnpack || node->kind() == aten::__getitem__) {
    return listsSizes(mainOperand(node)) && !isWritten(mainOperand(node));
  }
  return keepsSign(node) && isNumeric(mainOperand(node)) &&
         std::ranges::all_of(node->inputs(), [&](const Value* operand) { // div: how it rounds is a string
           return isNumeric(operand) ? isNotNegative(operand) : isConstant(operand);
         });
}

std::optional<std::vector<Extent>> Shapes::sizesIn(const Value* list) const {
  auto sizes = ofList(list);
  if (sizes) {
    const auto is_open = [](const Extent& size) { return size.number() == -1; };
    std::ranges::replace_if(*sizes, is_open, Extent::open());
  }
  return sizes;
}

std::optional<std::vector<Extent>> Shapes::sizesGiven(const Value* tensor) const {
  const Node* node = tensor->node();
  const bool splits = node->kind() == aten::unflatten, expands = node->kind() == aten::expand;
  const auto change = splits ? split(node) : std::nullopt;
  const bool listed = node->kind() == aten::reshape || expands || change;
  auto sizes = listed ? sizesIn(node->inputs()[splits ? 2 : 1]) : std::nullopt;
  if (!sizes || (!expands && std::ranges::count(*sizes, Extent::open()) > 0)) {
    return sizes; // one size is open already, so no integer can be -1: two open sizes are an error
  }
  std::vector<size_t> unsure;
  for (size_t i = 0; i < sizes->size(); ++i) {
    if (const Value* integer = (*sizes)[i].integer(); integer != nullptr && !isNotNegative(integer)) {
      unsure.push_back(i);
    }
  }
  for (const size_t i : unsure) { // a single unsure size follows from the others, whether it is -1 or not
    const int64_t axis = static_cast<int64_t>(i) + (splits ? change->axis : 0);
    (*sizes)[i] = !expands && unsure.size() == 1 ? Extent::open() : Extent::ofAxis(tensor, axis);
  }
  return sizes;
}

// The size of the axis from the list of sizes, or from the axes that flatten joins and unflatten splits.
Size sizeOfReshaped(const Value* tensor, int64_t axis, const Shapes& shapes) {
  const Node* node = tensor->node();
  const auto sizes = shapes.sizesGiven(tensor);
  const bool splits = node->kind() == aten::unflatten;
  const auto change = shapes.split(node);
  const int64_t index = splits && change ? axis - change->axis : axis;
  if (sizes && index >= 0 && index < int64_t(sizes->size())) {
    if (!(*sizes)[index].isOpen()) {
      return (*sizes)[index];
    }
    if (splits) {
      return shapes.ofOpen(node, *sizes);
    }
    const auto own = node->kind() == aten::expand ? shapes.rank(inputOf(node, "self")) : std::nullopt;
    const int64_t more = int64_t(sizes->size()) - own.value_or(0);
    return own && axis >= more ? Size(shapes.ofAxis(inputOf(node, "self"), axis - more)) : std::nullopt;
  }
  if (change && (axis < change->axis || axis >= change->axis + change->second)) {
    const int64_t moved = axis < change->axis ? 0 : change->first - change->second;
    return shapes.ofAxis(inputOf(node, "self"), axis + moved);
  }
  return change ? shapes.ofRest(Extent::ofAxis(tensor, axis), 1) : std::nullopt;
}

// The open size of an axis that unflatten splits: the axis's size divided by the others. Nothing if one is not
// known.
std::optional<Extent> Shapes::ofOpen(const Node* unflatten, const std::vector<Extent>& sizes) const {
  const Extent whole = ofAxis(inputOf(unflatten, "self"), split(unflatten)->axis);
  int64_t others = 1;
  for (const Extent& size : sizes) {
    others *= size.isOpen() ? 1 : size.number().value_or(0);
  }
  if (others <= 0) {
    return std::nullopt;
  }
  return whole.isNumber() ? Extent::ofNumber(*whole.number() / others) : ofRest(whole, others);
}

// The quotient of a size that flatten has joined and `others`. Nothing if the quotient is no axis of flatten's
// operand.
std::optional<Extent> Shapes::ofRest(const Extent& whole, int64_t others) const {
  const auto* joined = whole.axis();
  const Node* flatten = joined != nullptr ? joined->tensor->node() : nullptr;
  const bool counted = flatten && flatten->kind() == aten::flatten && rank(inputOf(flatten, "self"));
  const auto change = counted ? split(flatten) : std::nullopt;
  if (!change || change->axis != joined->axis) {
    return std::nullopt;
  }
  std::optional<Extent> unknown;
  int64_t product = 1;
  for (int64_t axis = change->axis; axis < change->axis + change->first; ++axis) {
    const Extent own = ofAxis(inputOf(flatten, "self"), axis);
    if (!own.isNumber() && unknown) {
      return std::nullopt;
    }
    product *= own.number().value_or(1);
    unknown = own.isNumber() ? unknown : own;
  }
  if (unknown) {
    return product == others ? unknown : std::nullopt;
  }
  return product % others == 0 ? std::optional(Extent::ofNumber(product / others)) : std::nullopt;
}

} // namespace jit_passes
