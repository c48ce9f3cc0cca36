// How many axes tensors have.
#include "graph/operators.h"
#include "shape_facts.h"
#include "shapes.h"

namespace jit_passes {
namespace {

// The rank that unpacking `sizes[:-1]` tells.
std::optional<int64_t> countedBut(const Node* slice) {
  if (slice->kind() != aten::slice || !isNone(slice->input(1)) || constantNumber(slice->input(3)) != 1.0) {
    return std::nullopt;
  }
  const auto end = constantNumber(slice->input(2));
  for (const Use& use : slice->output()->uses()) {
    if (use.user->kind() == prim::ListUnpack && end && *end < 0 &&
        use.user->owningBlock() == slice->owningBlock()) {
      return int64_t(use.user->outputs().size()) - static_cast<int64_t>(*end);
    }
  }
  return std::nullopt;
}

// One of the parts into which chunk, split or the like cuts a tensor; null for other operators, and for unbind.
const Value* partOf(const Node* list) {
  const bool cuts = !isTensor(list->output()) && list->kind() != aten::unbind;
  const auto& uses = list->output()->uses();
  const bool unpacked = cuts && uses.size() == 1 && uses[0].user->kind() == prim::ListUnpack &&
                        uses[0].user->owningBlock() == list->owningBlock();
  return unpacked && !uses[0].user->outputs().empty() ? uses[0].user->output(0) : nullptr;
}

} // namespace

std::optional<int64_t> Shapes::rank(const Value* tensor) const {
  const auto [known, added] = ranks_.emplace(tensor, std::nullopt);
  if (added) {
    const auto found = findRank(tensor);
    return ranks_[tensor] = found;
  }
  return known->second;
}

std::optional<int64_t> Shapes::findRank(const Value* tensor) const {
  const Node* node = tensor->node();
  if (known_.isWritten(tensor)) {
    return std::nullopt;
  }
  if (const auto known = known_.rank(tensor)) {
    return known;
  }
  if (const auto sizes = node->kind() == aten::reshape ? ofList(inputOf(node, "shape")) : std::nullopt) {
    return sizes->size();
  }
  if (const auto own = rankReadBehind(tensor)) {
    return own;
  }
  if (const auto own = rankMade(tensor)) {
    return own;
  }
  if (const auto own = rankCounted(tensor)) {
    return own;
  }
  for (const Use& use : tensor->uses()) {
    const auto weighted = weightedOperator(use.user);
    const bool keeps =
        keepsShape(use.user) || (weighted && weighted->spatial_dims == 0 && weightRank(use.user) != 1);
    const bool here = use.offset == 0 && use.user->owningBlock() == node->owningBlock();
    if (const auto own = here && keeps ? rank(use.user->output()) : std::nullopt) {
      return own;
    }
    const auto* part = here && movesData(use.user) ? partOf(use.user) : nullptr;
    if (const auto own = part != nullptr ? rankReadDirectly(part) : std::nullopt) {
      return own;
    }
  }
  return std::nullopt;
}

// The rank that a reader tells.
std::optional<int64_t> Shapes::rankReadDirectly(const Value* tensor) const {
  for (const Use& use : tensor->uses()) {
    if (use.user->kind() == aten::size && use.user->inputs().size() == 1) {
      for (const Use& list : use.user->output()->uses()) {
        // It is unpacked whenever the tensor is there.
        if (list.user->kind() == prim::ListUnpack &&
            list.user->owningBlock() == tensor->node()->owningBlock()) {
          return list.user->outputs().size();
        }
        if (const auto more = countedBut(list.user);
            more && list.user->owningBlock() == tensor->node()->owningBlock()) {
          return more;
        }
      }
    }
    if (const auto own = rankRead(use)) {
      return own;
    }
    const bool listed = use.user->kind() == prim::ListConstruct && use.user->output()->uses().size() == 1;
    const Node* product = listed ? use.user->output()->uses()[0].user : nullptr;
    const bool here = product != nullptr && product->owningBlock() == tensor->node()->owningBlock();
    if (const auto labels = here ? einsumLabels(product) : std::nullopt) {
      return (use.offset == 0 ? labels->a : labels->b).size();
    }
  }
  return std::nullopt;
}

// The same, or that of what convolutions, pools and other operators that keep the rank make of it.
std::optional<int64_t> Shapes::rankReadBehind(const Value* tensor) const {
  if (!read_) {
    read_.emplace();
    std::vector<Node*> nodes = nodesInOrder(*graph_);
    for (size_t i = nodes.size(); i-- > 0;) {
      const Node* node = nodes[i];
      if (node->outputs().size() != 1 || node->inputs().empty() || isWritten(node->output())) {
        continue;
      }
      const auto weighted = weightedOperator(node);
      const bool keeps = keepsShape(node) || (weighted && weighted->spatial_dims > 0) || spatialOf(node) > 0;
      if (keeps && node->owningBlock() == mainOperand(node)->node()->owningBlock()) {
        const auto behind = read_->find(node->output());
        const auto own =
            behind != read_->end() ? std::optional(behind->second) : rankReadDirectly(node->output());
        if (own) {
          read_->emplace(mainOperand(node), *own);
        }
      }
    }
  }
  const auto behind = read_->find(tensor);
  return behind != read_->end() ? std::optional(behind->second) : rankReadDirectly(tensor);
}

// The rank that follows from the operands of the operator that makes it.
std::optional<int64_t> Shapes::rankMade(const Value* tensor) const {
  const Node* node = tensor->node();
  const auto weighted = weightedOperator(node);
  if (const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node)) {
    const auto own = batched_ ? std::optional(spatial + 2) : rank(mainOperand(node));
    return own || leastRank(tensor) <= spatial + 1 ? own : std::optional(spatial + 2);
  }
  if (weighted) {
    const auto own = rank(inputOf(node, "input"));
    return own ? std::optional(*own - (weightRank(node) == 1)) : std::nullopt;
  }
  static const auto pad = symbol("aten::pad");
  if (keepsShape(node) || node->kind() == aten::transpose || node->kind() == aten::slice ||
      node->kind() == aten::glu || node->kind() == pad) {
    return rank(mainOperand(node));
  }
  if (isAttention(node)) {
    std::optional<int64_t> most = 0;
    for (const Value* operand : node->inputs().slice(0, 3)) {
      const auto own = rank(operand);
      most = own && most ? std::optional(std::max(*own, *most)) : std::nullopt;
    }
    return most;
  }
  if (node->kind() == aten::permute) {
    const auto axes = constantInts(node, "dims");
    return axes ? std::optional<int64_t>(axes->size()) : rank(inputOf(node, "self"));
  }
  if (node->kind() == aten::embedding) {
    const auto own = rank(inputOf(node, "indices"));
    return own ? std::optional(*own + 1) : std::nullopt;
  }
  if (takesShape(node)) {
    return rank(inputOf(node, "other"));
  }
  if (const auto fewer = reducedAxes(node)) {
    const auto own = rank(mainOperand(node));
    return own ? std::optional(*own - *fewer) : std::nullopt;
  }
  if (isCount(node)) {
    return 1;
  }
  if (node->kind() == prim::NumToTensor) {
    return 0;
  }
  if (const Value* made = sizesMade(node)) {
    const auto sizes = ofList(made);
    return sizes ? std::optional<int64_t>(sizes->size()) : std::nullopt;
  }
  if (isRecurrentLayer(node)) {
    return 3; // the states, too
  }
  if (const auto labels = einsumLabels(node)) {
    return labels->result.size();
  }
  if (node->kind() == aten::unsqueeze) {
    const auto own = rank(inputOf(node, "self"));
    return own ? std::optional(*own + 1) : std::nullopt;
  }
  if (const auto axis = squeezed(node)) {
    return *rank(inputOf(node, "self")) - 1;
  }
  if (node->kind() == aten::expand) {
    const auto sizes = ofList(inputOf(node, "size"));
    return sizes ? std::optional<int64_t>(sizes->size()) : std::nullopt;
  }
  if (node->kind() == aten::select || isUnbound(node)) {
    const auto own = rank(mainOperand(isUnbound(node) ? node->input()->node() : node));
    return own ? std::optional(*own - 1) : std::nullopt;
  }
  if (node->kind() == aten::matmul || broadcasts(node)) {
    const auto a = rank(node->input(0)), b = rank(node->input(1));
    const bool whole = a && b && (node->kind() != aten::matmul || std::min(*a, *b) >= 2);
    return whole ? std::optional(std::max(*a, *b)) : std::nullopt;
  }
  if (node->kind() == aten::cat || node->kind() == prim::ListUnpack) {
    const Node* list = mainOperand(node)->node();
    const bool made = node->kind() == aten::cat ? list->kind() == prim::ListConstruct : movesData(list);
    for (const Value* element : made ? list->inputs() : at::ArrayRef<const Value*>()) {
      const auto own = isTensor(element) ? rank(element) : std::nullopt;
      if (own && (*own > 1 || node->kind() != aten::cat)) { // one of no numbers, [0], goes with any rank
        return own;
      }
    }
  }
  if (node->kind() == aten::flatten || node->kind() == aten::unflatten) {
    const auto change = split(node);
    const auto own = change ? rank(inputOf(node, "self")) : std::nullopt;
    if (change && !own && node->kind() == aten::flatten && constantOf(node, "end_dim")->toInt() == -1) {
      return change->axis + 1;
    }
    return own ? std::optional(*own + change->second - change->first) : std::nullopt;
  }
  return std::nullopt;
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

// The rank that a reader takes.
std::optional<int64_t> Shapes::rankRead(const Use& use) const {
  const Node* reader = use.user;
  if (use.offset != 0 || (reader->kind() != aten::permute && reader->kind() != aten::unflatten)) {
    return std::nullopt;
  }
  if (reader->owningBlock() != inputOf(reader, "self")->node()->owningBlock()) {
    return std::nullopt; // it need not run whenever the tensor is there
  }
  const auto numbers = constantInts(reader->inputs().back());
  if (!numbers || reader->kind() == aten::permute) {
    return numbers ? std::optional<int64_t>(numbers->size()) : std::nullopt;
  }
  const auto split = rank(reader->output());
  return split ? std::optional<int64_t>(*split + 1 - int64_t(numbers->size())) : std::nullopt;
}

std::optional<Shapes::Split> Shapes::split(const Node* node) const {
  const auto one = constantOf(node->input(1)), two = constantOf(node->input(2));
  const auto parts = node->kind() == aten::unflatten ? ofList(inputOf(node, "sizes")) : std::nullopt;
  if (!one || !one->isInt() || (!parts && (!two || !two->isInt()))) {
    return std::nullopt;
  }
  const auto own = rank(inputOf(node, "self"));
  if (own == 0) { // flatten makes an axis of none
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
    return Split{first, 1, 1}; // up to the last axis, wherever that is: none is behind
  }
  return last >= 0 ? std::optional(Split{first, last - first + 1, 1}) : std::nullopt;
}

} // namespace jit_passes
