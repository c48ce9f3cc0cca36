#include "shapes.h"

#include "graph/operators.h"
#include "results.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

constexpr int64_t kMostNumber = int64_t{1} << 30; // so that a product of two fits int64_t

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

const Ranks& Shapes::ranks() const {
  if (!ranks_) { // set before use, since ranks and sizes ask each other
    ranks_ = std::make_unique<Ranks>(*graph_, known_, *this);
    ranks_->settle(images_);
  }
  return *ranks_;
}

void Shapes::forgetSizes() const {
  extents_.clear();
  numbers_.clear();
  not_negative_.clear();
}

// The axis of size 1 that squeeze removes, counted from the first.
std::optional<int64_t> Shapes::squeezed(const Node* node) const {
  const bool takes_one = node->kind() == aten::squeeze && node->inputs().size() == 2;
  const int64_t own = takes_one ? rank(inputOf(node, "self")).value_or(0) : 0;
  const auto given = own > 0 ? constantOf(node, "dim") : std::nullopt;
  if (!given || !given->isInt()) {
    return std::nullopt;
  }
  const int64_t axis = given->toInt() + (given->toInt() < 0 ? own : 0);
  const bool is_one = axis >= 0 && axis < own && ofAxis(inputOf(node, "self"), axis) == Extent::ofNumber(1);
  return is_one ? std::optional(axis) : std::nullopt;
}

const Value* Shapes::source(const Value* tensor) const {
  while (keepsShape(tensor->node()) && !isWritten(tensor) && !isWritten(mainOperand(tensor->node()))) {
    tensor = mainOperand(tensor->node());
  }
  return tensor;
}

std::optional<int64_t> Shapes::weightRank(const Node* linear) const {
  const auto weight = known_.tensor(inputOf(linear, "weight"));
  return weight ? std::optional(weight->dim()) : rank(inputOf(linear, "weight"));
}

Extent Shapes::ofAxis(const Value* tensor, int64_t axis, Extent opaque) const {
  if (known_.isWritten(tensor)) {
    return opaque;
  }
  if (axis < 0) {
    const auto own = rank(tensor);
    if (!own) {
      const auto number = behind(tensor, axis);
      return number ? Extent::ofNumber(*number) : opaque;
    }
    if (axis + *own < 0) {
      return opaque;
    }
    axis += *own;
  }
  const Extent itself = Extent::ofAxis(tensor, axis);
  const auto [known, added] = extents_.emplace(std::pair(tensor, axis), itself);
  if (!added) {
    return known->second;
  }
  const auto held = constant(tensor);
  Extent found = held && axis < held->dim() ? Extent::ofNumber(held->size(axis))
                                            : sizeOfResult(tensor, axis, *this).value_or(itself);
  if (!found.isNumber() && rank(tensor) == axis + 1) {
    if (const auto features = featuresRead(tensor)) {
      found = Extent::ofNumber(*features);
    }
  }
  const Value* of = found.axis() != nullptr ? found.axis()->tensor : found.integer();
  if (of != nullptr && known_.isWritten(of)) {
    found = itself; // a write changes the shape of `of`, so its size depends on the moment
  }
  return extents_.insert_or_assign(std::pair(tensor, axis), found).first->second;
}

// Only a number: an axis of another tensor could not be asked for by its place from the front.
std::optional<int64_t> Shapes::behind(const Value* tensor, int64_t axis) const {
  const auto [known, added] = extents_.emplace(std::pair(tensor, axis), Extent::ofAxis(tensor, axis));
  if (!added) {
    return known->second.number();
  }
  const auto found = sizeOfResult(tensor, axis, *this);
  auto number = found ? found->number() : std::nullopt;
  if (!number && axis == -1) {
    number = featuresRead(tensor);
  }
  if (number) {
    extents_.insert_or_assign(std::pair(tensor, axis), Extent::ofNumber(*number));
  }
  return number;
}

bool Shapes::isReducedOf(const Value* tensor, const Value* whole) const {
  while (source(tensor) != source(whole)) {
    tensor = source(tensor);
    if (reducedAxes(tensor->node()) != 0 || isWritten(tensor)) {
      return false;
    }
    tensor = mainOperand(tensor->node());
  }
  return true;
}

// The features that a linear layer demands of the tensor, if the layer runs whenever the tensor is computed.
std::optional<int64_t> Shapes::featuresRead(const Value* tensor) const {
  if (known_.isWritten(tensor)) {
    return std::nullopt; // a write may change the shape before the layer reads it
  }
  for (const Use& use : tensor->uses()) {
    if (use.offset != 0 || use.user->owningBlock() != tensor->node()->owningBlock()) {
      continue;
    }
    if (keepsShape(use.user)) {
      if (const auto features = featuresRead(use.user->output())) {
        return features;
      }
    }
    const auto weighted = weightedOperator(use.user);
    if (weighted && weighted->spatial_dims == 0) {
      if (const auto weight = known_.tensor(inputOf(use.user, "weight")); weight && weight->dim() == 2) {
        return weight->size(1);
      }
    }
  }
  return std::nullopt;
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

Extent Shapes::ofNumber(const Value* value) const {
  if (const auto known = numbers_.find(value); known != numbers_.end()) {
    return Extent::ofNumber(known->second);
  }
  const Extent found = findNumber(value);
  if (found.isNumber()) { // other answers may change once more ranks are known
    numbers_.emplace(value, *found.number());
  }
  return found;
}

Extent Shapes::findNumber(const Value* value) const {
  const Node* node = value->node();
  if (const auto constant = constantOf(value); constant && constant->isInt()) {
    return Extent::ofNumber(constant->toInt());
  }
  if (isConversion(node)) {
    return ofNumber(node->input());
  }
  if (const auto number = ofArithmetic(node)) {
    return Extent::ofNumber(*number);
  }
  const Extent held = Extent::ofInteger(value);
  if (node->kind() == aten::size && node->inputs().size() == 2) {
    const auto axis = constantOf(node, "dim");
    const bool known = axis && axis->isInt() && !known_.isWritten(value);
    return known ? ofAxis(inputOf(node, "self"), axis->toInt(), held) : held;
  }
  if (node->kind() == prim::ListUnpack) {
    return ofElement(node->input(), value->offset(), held);
  }
  const auto index = node->kind() == aten::__getitem__ ? constantOf(node->input(1)) : std::nullopt;
  return index && index->isInt() ? ofElement(mainOperand(node), index->toInt(), held) : held;
}

// The element of a list that holds the sizes of a tensor, or a slice of them. The index must exist.
Extent Shapes::ofElement(const Value* list, int64_t index, const Extent& otherwise) const {
  for (const Node* node = list->node(); !known_.isWritten(list); node = list->node()) {
    if (node->kind() == aten::size && node->inputs().size() == 1) {
      return ofAxis(inputOf(node, "self"), index, otherwise);
    }
    if (node->kind() != aten::slice || index < 0) {
      return otherwise;
    }
    const auto start =
        isNone(node, "start") ? std::optional<int64_t>(0) : wholeNumber(inputOf(node, "start"));
    if (!start || *start < 0 || wholeNumber(inputOf(node, "step")) != 1) {
      return otherwise;
    }
    index += *start, list = mainOperand(node);
  }
  return otherwise;
}

std::optional<std::pair<Extent, int64_t>> Shapes::asQuotient(const Extent& extent) const {
  const Node* node = extent.integer() != nullptr ? extent.integer()->node() : nullptr;
  if (node == nullptr || !isQuotient(node)) {
    return std::nullopt;
  }
  const auto divisor = wholeNumber(node->input(1));
  return divisor && *divisor > 0 ? std::optional(std::pair(ofNumber(mainOperand(node)), *divisor))
                                 : std::nullopt;
}

// The number of an expression such as `2 * (size // 4)`, also in the form that traced models have.
std::optional<int64_t> Shapes::ofArithmetic(const Node* node) const {
  static const auto sums = symbols({"aten::add", "aten::sub"});
  const bool divides = isQuotient(node), is_sum = sums.count(node->kind()) > 0;
  if ((!divides && !is_sum && node->kind() != aten::mul) || node->inputs().size() < 2 ||
      (is_sum && node->inputs().size() == 3 && wholeNumber(inputOf(node, "alpha")) != 1)) {
    return std::nullopt;
  }
  const auto numberOf = [&](const Value* value) -> std::optional<int64_t> {
    const auto number = ofNumber(value).number();
    return number ? number : wholeNumber(value);
  };
  const auto a = numberOf(node->input(0)), b = a ? numberOf(node->input(1)) : std::nullopt;
  if (!b || std::abs(*a) > kMostNumber || std::abs(*b) > kMostNumber) {
    return std::nullopt;
  }
  if (divides) { // trunc and floor agree for sizes, which are not negative
    return *a >= 0 && *b > 0 ? std::optional(*a / *b) : std::nullopt;
  }
  return node->kind() == aten::mul ? *a * *b : node->kind() == aten::add ? *a + *b : *a - *b;
}

// Follows sums and slices of lists, as in scripts: `x.shape[:-1] + [4, -1]`.
std::optional<std::vector<Extent>> Shapes::ofList(const Value* list) const {
  const Node* node = list->node();
  std::vector<Extent> sizes;
  if (known_.isWritten(list)) {
    return std::nullopt;
  }
  if (const auto constant = constantInts(list)) {
    for (const int64_t size : *constant) {
      sizes.push_back(Extent::ofNumber(size));
    }
    return sizes;
  }
  if (node->kind() == prim::ListConstruct) {
    for (const Value* size : node->inputs()) {
      sizes.push_back(ofNumber(size));
    }
    return sizes;
  }
  static const auto copies = symbol("aten::list");
  if (node->kind() == copies) {
    return ofList(node->input());
  }
  if (node->kind() == aten::size && node->inputs().size() == 1) {
    const auto own = rank(inputOf(node, "self"));
    for (int64_t axis = 0; axis < own.value_or(0); ++axis) {
      sizes.push_back(ofAxis(inputOf(node, "self"), axis));
    }
    return own ? std::optional(sizes) : std::nullopt;
  }
  const auto first =
      node->kind() == aten::add || node->kind() == aten::slice ? ofList(mainOperand(node)) : std::nullopt;
  if (!first) {
    return std::nullopt;
  }
  if (node->kind() == aten::add) {
    const auto second = ofList(node->input(1));
    if (second) {
      sizes = *first;
      sizes.insert(sizes.end(), second->begin(), second->end());
    }
    return second ? std::optional(sizes) : std::nullopt;
  }
  const int64_t count = first->size();
  const auto end = [&](const char* name, int64_t otherwise) -> std::optional<int64_t> {
    const Value* given = inputOf(node, name);
    const auto number = isNone(given) ? std::optional(otherwise) : wholeNumber(given);
    return number ? std::optional(std::clamp<int64_t>(*number < 0 ? *number + count : *number, 0, count))
                  : number;
  };
  const auto from = end("start", 0), to = end("end", count);
  return from && to && wholeNumber(inputOf(node, "step")) == 1
             ? std::optional(
                   std::vector<Extent>(first->begin() + *from, first->begin() + std::max(*from, *to)))
             : std::nullopt;
}

} // namespace jit_passes
