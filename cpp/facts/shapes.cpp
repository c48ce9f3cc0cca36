#include "shapes.h"

#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
namespace {

const auto to_kind = symbol("aten::to");

// The sizes of two operands that broadcast: an axis of both has one size, or one of them 1.
Extent broadcast(const Extent& a, const Extent& b, const Extent& otherwise) {
  const auto is_one = [](const Extent& extent) { return extent.number() == 1; };
  const auto is_more = [](const Extent& extent) { return extent.number().value_or(0) > 1; };
  return a == b || is_one(a) || is_more(b) ? b : is_one(b) || is_more(a) ? a : otherwise;
}

} // namespace

bool isAttention(const Node* node) {
  static const auto kind = symbol("aten::scaled_dot_product_attention");
  return node->kind() == kind;
}

bool isRecurrentLayer(const Node* node) {
  static const auto kinds = symbols({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"});
  return kinds.count(node->kind()) && operandOf(node, "batch_sizes") == nullptr;
}

// Numbers of prelu are those of channels, of axis 1.
bool broadcasts(const Node* node) {
  return isElementwise(node) && node->kind() != aten::prelu &&
         std::ranges::none_of(node->inputs(), mayBeTensor) &&
         std::count_if(node->inputs().begin(), node->inputs().end(), isTensor) == 2 &&
         isTensor(node->input(0)) && isTensor(node->input(1));
}

std::optional<int64_t> reducedAxes(const Node* node) {
  const bool other = node->inputs().size() < 3 || !isTensor(node->input(0)) || isTensor(node->input(1));
  if (other || node->maybeSchema() == nullptr) { // quantiles may have an axis more
    return std::nullopt;
  }
  const Value *dims = operandOf(node, "dim"), *keeps = operandOf(node, "keepdim");
  if (dims == nullptr || keeps == nullptr || !constantNumber(keeps)) {
    return std::nullopt;
  }
  if (constantNumber(keeps) != 0.0) {
    return 0;
  }
  const auto axes = constantInts(dims);
  if (axes && !axes->empty()) { // else it goes over all
    return axes->size();
  }
  return constantNumber(dims) ? std::optional<int64_t>(1) : std::nullopt;
}

bool takesShape(const Node* node) {
  static const auto kinds = symbols({"aten::expand_as", "aten::reshape_as", "aten::view_as"});
  return kinds.count(node->kind()) > 0;
}

const Value* sizesMade(const Node* node) {
  static const auto kinds = symbols(
      {"aten::zeros", "aten::ones", "aten::full", "aten::empty", "aten::new_zeros", "aten::new_ones",
       "aten::new_full", "aten::new_empty"});
  return kinds.count(node->kind()) > 0 ? inputOf(node, "size") : nullptr;
}

bool isCount(const Node* node) {
  return node->kind() == aten::arange &&
         (node->inputs().size() == 5 || (node->inputs().size() == 6 && constantNumber(node, "start") == 0.0));
}

bool isUnbound(const Node* node) {
  return node->kind() == prim::ListUnpack && node->input()->node()->kind() == aten::unbind;
}

bool isToFloat(const Node* node) {
  const auto* schema = node->kind() == to_kind ? node->maybeSchema() : nullptr;
  return schema != nullptr && schema->overload_name() == "dtype" &&
         constantNumber(node, "dtype") == static_cast<double>(at::kFloat);
}

const Ranks& Shapes::ranks() const {
  if (!ranks_) { // asked by itself, too, as ranks follow from sizes that follow from other ranks
    ranks_ = std::make_unique<Ranks>(*graph_, known_, *this);
    ranks_->settle(batched_);
  }
  return *ranks_;
}

void Shapes::forgetSizes() const {
  extents_.clear();
  numbers_.clear();
  not_negative_.clear();
}

// The axis of size 1 that squeeze takes away, counted from the first.
std::optional<int64_t> Shapes::squeezed(const Node* node) const {
  static const auto squeeze = symbol("aten::squeeze");
  const bool takes_one = node->kind() == squeeze && node->inputs().size() == 2;
  const int64_t own = takes_one ? rank(inputOf(node, "self")).value_or(0) : 0;
  const auto given = own > 0 ? constantOf(node, "dim") : std::nullopt;
  if (!given || !given->isInt()) {
    return std::nullopt;
  }
  const int64_t axis = given->toInt() + (given->toInt() < 0 ? own : 0);
  const bool is_one = axis >= 0 && axis < own && ofAxis(inputOf(node, "self"), axis) == Extent::ofNumber(1);
  return is_one ? std::optional(axis) : std::nullopt;
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
    const auto linear = weightedOperator(tensor->node());
    if (!own && axis == -1 && linear && linear->spatial_dims == 0) {
      const auto weight = known_.tensor(inputOf(tensor->node(), "weight"));
      return weight && weight->dim() == 2 ? Extent::ofNumber(weight->size(0)) : opaque;
    }
    if (!own || axis + *own < 0) {
      return opaque;
    }
    axis += *own;
  }
  const Extent itself = Extent::ofAxis(tensor, axis);
  const auto [known, added] = extents_.emplace(std::pair(tensor, axis), itself);
  if (!added) {
    return known->second;
  }
  Extent found = findExtent(tensor, axis);
  if (!found.isNumber() && rank(tensor) == axis + 1) {
    if (const auto features = featuresRead(tensor)) {
      found = Extent::ofNumber(*features);
    }
  }
  const Value* of = found.axis() != nullptr ? found.axis()->tensor : found.integer();
  if (of != nullptr && known_.isWritten(of)) {
    found = itself; // of a shape that is another one before the write, and behind it
  }
  return extents_.insert_or_assign(std::pair(tensor, axis), found).first->second;
}

Extent Shapes::findExtent(const Value* tensor, int64_t axis) const {
  const Node* node = tensor->node();
  const Extent itself = Extent::ofAxis(tensor, axis);
  const Value* from = node->inputs().empty() ? nullptr : mainOperand(node);
  if (const auto constant = known_.tensor(tensor); constant && axis < constant->dim()) {
    return Extent::ofNumber(constant->size(axis));
  }
  if (keepsShape(node)) {
    return ofAxis(from, axis);
  }
  if (const auto labels = einsumLabels(node); labels && axis < int64_t(labels->result.size())) {
    return ofLabel(tensor, axis, *labels);
  }
  if (isCount(node)) {
    const Extent end = ofNumber(node->input(node->inputs().size() - 5));
    const Value* integer = end.integer();
    const bool known = integer != nullptr ? integer->type()->kind() == c10::TypeKind::IntType
                                          : end.number().value_or(0) >= 0;
    return known ? end : itself;
  }
  if (const Value* made = sizesMade(node)) {
    const auto sizes = ofList(made);
    return sizes && axis < int64_t(sizes->size()) ? (*sizes)[axis] : itself;
  }
  if (isRecurrentLayer(node) && tensor == node->output(0) && axis < 2) {
    return ofAxis(from, axis);
  }
  if (const auto given = ofGiven(tensor, axis)) {
    return *given;
  }
  if (node->kind() == aten::flatten || node->kind() == aten::unflatten) {
    const auto change = split(node);
    if (change && axis < change->axis) {
      return ofAxis(from, axis);
    }
    if (change && axis >= change->axis + change->second) {
      return ofAxis(from, axis - change->second + change->first);
    }
    return ofRest(itself, 1).value_or(itself);
  } else if (const auto moved = ofMoved(tensor, axis)) {
    return *moved;
  } else if (const auto own = rank(tensor)) {
    const auto weighted = weightedOperator(node);
    const auto weight = weighted ? known_.tensor(inputOf(node, "weight")) : std::nullopt;
    const bool is_vector = weight && weight->dim() == 1; // of a linear layer, and the result has no channels
    const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node),
                  channels = *own - 1 - spatial;
    if ((weighted || spatial) && (axis < channels || ((!weighted || is_vector) && axis == channels))) {
      return ofAxis(from, axis);
    }
    if (weight && axis == channels && !weighted->transposed) {
      return Extent::ofNumber(weight->size(0));
    }
    if (node->kind() == aten::embedding) {
      const auto rows = known_.tensor(from);
      const Value* indices = inputOf(node, "indices");
      return axis < *own - 1 ? ofAxis(indices, axis) : rows ? Extent::ofNumber(rows->size(1)) : itself;
    }
    if (node->kind() == aten::matmul || isAttention(node) || broadcasts(node)) {
      return ofProduct(tensor, axis, *own);
    }
  } else {
    return ofFrontAxis(tensor, axis);
  }
  return itself;
}

// Of a tensor whose rank is not known: of an axis that is not among the last ones.
Extent Shapes::ofFrontAxis(const Value* tensor, int64_t axis) const {
  const Node* node = tensor->node();
  const auto weighted = weightedOperator(node);
  const bool layer = weighted && weighted->spatial_dims == 0 && weightRank(node) == 2;
  const int64_t least = leastRank(tensor);
  if (axis < least - 1 && (layer || node->kind() == aten::embedding)) {
    return ofAxis(node->input(layer ? 0 : 1), axis);
  }
  if (!broadcasts(node)) {
    return Extent::ofAxis(tensor, axis);
  }
  for (const size_t operand : {0, 1}) {
    const Value *whole = node->input(operand), *other = node->input(1 - operand);
    const auto own = rank(other); // of numbers for the last axes
    if ((own && axis < least - *own) || isReducedOf(other, whole)) {
      return ofAxis(whole, axis);
    }
  }
  return Extent::ofAxis(tensor, axis);
}

// Whether it is made of the other tensor element by element, and by going over axes that stay, of size 1.
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

// Of an axis of an einsum, which broadcasts.
Extent Shapes::ofLabel(const Value* tensor, int64_t axis, const EinsumLabels& labels) const {
  const auto operands = inputOf(tensor->node(), "tensors")->node()->inputs();
  const auto sizeIn = [&](size_t operand) {
    const size_t own = (operand == 0 ? labels.a : labels.b).find(labels.result[axis]);
    return own == std::string::npos ? Extent::ofNumber(1) : ofAxis(operands[operand], int64_t(own));
  };
  return broadcast(sizeIn(0), sizeIn(1), Extent::ofAxis(tensor, axis));
}

// Of matrix products, attention, and what broadcasts.
Extent Shapes::ofProduct(const Value* tensor, int64_t axis, int64_t rank_of_result) const {
  const Node* node = tensor->node();
  const int64_t behind = axis - rank_of_result; // below 0
  const bool is_matrix = node->kind() == aten::matmul || isAttention(node);
  const Value *left = node->input(0), *right = node->input(isAttention(node) ? 2 : 1);
  if (is_matrix && behind >= -2) { // a vector has one axis, and the result one less
    const bool matrices = isAttention(node) || std::min(rank(left).value_or(1), rank(right).value_or(1)) >= 2;
    return matrices ? ofAxis(behind == -2 ? left : right, behind) : Extent::ofAxis(tensor, axis);
  }
  const Value* grouped = isAttention(node) ? operandOf(node, "enable_gqa") : nullptr;
  if (grouped != nullptr && behind == -3 &&
      constantNumber(grouped) != 0.0) { // heads of the query share those of keys
    return ofAxis(left, behind);
  }
  std::optional<Extent> size;
  for (const Value* operand : node->inputs().slice(0, isAttention(node) ? 3 : 2)) {
    const auto own = rank(operand);
    if (!own) {
      return Extent::ofAxis(tensor, axis);
    }
    const Extent next = *own + behind < 0 ? Extent::ofNumber(1) : ofAxis(operand, behind);
    size = size ? broadcast(*size, next, Extent::ofAxis(tensor, axis)) : next;
  }
  return *size;
}

// The features of a value, if a linear layer reads them whenever it is there.
std::optional<int64_t> Shapes::featuresRead(const Value* tensor) const {
  if (known_.isWritten(tensor)) {
    return std::nullopt; // of another shape, perhaps, when it is read
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

} // namespace jit_passes
