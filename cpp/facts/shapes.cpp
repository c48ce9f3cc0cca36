#include "shapes.h"

#include "graph/operators.h"
#include "shape_facts.h"

namespace jit_passes {
bool isAttention(const Node* node) {
  static const auto kind = symbol("aten::scaled_dot_product_attention");
  return node->kind() == kind;
}

bool isRecurrentLayer(const Node* node) {
  static const auto kinds = symbols({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"});
  return kinds.count(node->kind()) && operandOf(node, "batch_sizes") == nullptr;
}

// prelu is none of them: its second operand belongs to axis 1.
bool broadcasts(const Node* node) {
  return isElementwise(node) && node->kind() != aten::prelu &&
         std::ranges::none_of(node->inputs(), mayBeTensor) &&
         std::count_if(node->inputs().begin(), node->inputs().end(), isTensor) == 2 &&
         isTensor(node->input(0)) && isTensor(node->input(1));
}

std::optional<int64_t> reducedAxes(const Node* node) {
  const bool other = node->inputs().size() < 3 || !isTensor(node->input(0)) || isTensor(node->input(1));
  if (other || node->maybeSchema() == nullptr) { // quantiles may add an axis
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
  if (axes && !axes->empty()) { // without axes it reduces all of them
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

const Value* sizesTaken(const Node* node) {
  static const std::unordered_map<c10::Symbol, const char*> lists{
      {aten::reshape, "shape"}, {aten::expand, "size"}, {aten::unflatten, "sizes"}};
  const auto found = lists.find(node->kind());
  return found == lists.end() ? sizesMade(node) : inputOf(node, found->second);
}

bool isCount(const Node* node) {
  return node->kind() == aten::arange &&
         (node->inputs().size() == 5 || (node->inputs().size() == 6 && constantNumber(node, "start") == 0.0));
}

bool isToFloat(const Node* node) {
  const auto* schema = node->kind() == aten::to ? node->maybeSchema() : nullptr;
  return schema != nullptr && schema->overload_name() == "dtype" &&
         constantNumber(node, "dtype") == static_cast<double>(at::kFloat);
}

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

std::map<int64_t, int64_t> operandRanks(const torch::jit::Module& module, const std::string& method) {
  const Options no_options;
  const PassContext context(module, method, no_options);
  const Shapes shapes(context);
  std::map<int64_t, int64_t> found;
  int64_t number = 0;
  for (const Node* node : nodesInOrder(*context.graph())) {
    const bool reads = !node->inputs().empty() && isTensor(node->input(0));
    if (const auto rank = reads ? shapes.rank(node->input(0)) : std::nullopt) {
      found.emplace(number, *rank);
    }
    ++number;
  }
  return found;
}

} // namespace jit_passes
