#include "ranks.h"

#include "counted_ranks.h"
#include "results.h"
#include "shape_facts.h"

namespace jit_passes {

Ranks::Ranks(Graph& graph, const KnownValues& known, const SizeFacts& shapes)
    : known_(known), shapes_(shapes), nodes_(nodesInOrder(graph)) {}

void Ranks::settle(Images images) {
  do {
    propagate();
  } while (askSizes());
  if (images != Images::Unknown) { // the axes of results are assumed, and tell nothing of operands
    assumed_ = images;
    do {
      propagate();
    } while (askSizes());
  }
}

void Ranks::propagate() {
  do {
    changed_ = false;
    for (const Node* node : nodes_) {
      for (const Value* output : node->outputs()) {
        if (isTensor(output)) {
          narrow(output, made(output));
        }
      }
      if (node->kind() == prim::Loop) { // the first argument of its block is the number of the round
        const Block* block = node->blocks()[0];
        for (size_t i = 1; i < block->inputs().size(); ++i) {
          if (isTensor(block->inputs()[i])) {
            narrow(block->inputs()[i], anyOf(carriedBy(node, i - 1)));
          }
        }
      }
    }
    for (size_t i = nodes_.size(); i-- > 0;) {
      read(nodes_[i]);
    }
  } while (changed_);
}

bool Ranks::askSizes() {
  shapes_.forgetSizes();
  bool found = false;
  for (const Node* node : nodes_) {
    const Value* list = sizesTaken(node);
    if (list != nullptr && !length(list)) {
      if (const auto sizes = shapes_.ofList(list)) {
        lengths_.emplace(list, sizes->size());
        found = true;
      }
    }
    if (!squeezes(node) && shapes_.squeezed(node)) {
      squeezing_.insert(node);
      found = true;
    }
    const auto counted = node->kind() == aten::reshape ? countedIn(node, shapes_) : std::nullopt;
    if (counted && axes(counted->first).exact() != counted->second) {
      changed_ = false;
      narrow(counted->first, {counted->second, counted->second});
      found |= changed_;
    }
  }
  shapes_.forgetSizes();
  return found;
}

std::optional<int64_t> Ranks::length(const Value* list) const {
  const auto found = lengths_.find(list);
  return found != lengths_.end() ? std::optional(found->second) : known_.length(list);
}

AxisRange Ranks::axes(const Value* tensor) const {
  if (known_.isWritten(tensor)) {
    return {}; // a write may change the shape
  }
  const auto found = ranges_.find(tensor);
  if (found != ranges_.end()) {
    return found->second;
  }
  const auto rank = known_.rank(tensor);
  return rank ? AxisRange{*rank, *rank} : AxisRange();
}

AxisRange Ranks::made(const Value* tensor) const {
  const Node* node = tensor->node();
  if (node->kind() == prim::If || node->kind() == prim::Loop) {
    return anyOf(carriedBy(node, tensor->offset()));
  }
  const auto row = axesOfResult(tensor, *this);
  if (row && assumed_ != Images::Unknown && row->images.least > 0) {
    const int64_t axes = assumed_ == Images::Batched ? row->images.most : row->images.least;
    return {axes, axes};
  }
  return row ? rangeOf(*row, *this) : AxisRange();
}

// A loop whose rounds keep the shape of a value gives it the shape that it has before the first round.
std::vector<const Value*> Ranks::carriedBy(const Node* node, size_t result) const {
  std::vector<const Value*> values;
  const bool loops = node->kind() == prim::Loop; // its block returns first whether to go on
  for (const Block* block : node->blocks()) {
    const Value* returned = block->outputs()[result + loops];
    if (!loops || shapes_.source(returned) != block->inputs()[result + 1]) {
      values.push_back(returned);
    }
  }
  if (loops) {
    values.push_back(node->input(result + 2));
  }
  return values;
}

AxisRange Ranks::anyOf(const std::vector<const Value*>& tensors) const {
  AxisRange range{kMostAxes, 0};
  for (const Value* tensor : tensors) {
    const AxisRange own = axes(tensor);
    range = {std::min(range.least, own.least), std::max(range.most, own.most)};
  }
  return range;
}

// Narrows the operands' ranges, by the demands of the node and by its results.
void Ranks::read(const Node* node) {
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    if (isTensor(node->input(i))) {
      demand(node, node->input(i), axesOfOperand(Use(const_cast<Node*>(node), i)));
    }
  }
  for (const Value* output : node->outputs()) {
    const auto row = isTensor(output) ? axesOfResult(output, *this) : std::nullopt;
    if (!row || (assumed_ != Images::Unknown && row->images.least > 0)) {
      continue;
    }
    const AxisRange result = axes(output);
    const AxisRange whole{result.least - row->more, result.most - row->more};
    for (const Value* operand : row->of) {
      bool decides = true; // whether the result has this operand's axes for certain
      for (const Value* other : row->of) {
        decides &= other == operand || row->as == ResultAxes::As::Each || axes(other).most < whole.least ||
                   shapes_.isReducedOf(other, operand);
      }
      demand(node, operand, {decides ? whole.least : 0, whole.most});
    }
  }
}

// Only for a reader in the tensor's block, which runs whenever the tensor is computed.
void Ranks::demand(const Node* reader, const Value* tensor, const AxisRange& range) {
  if (reader->owningBlock() == tensor->node()->owningBlock()) {
    narrow(tensor, range);
  }
}

// An empty range tells nothing: the code raises an error when it runs.
void Ranks::narrow(const Value* tensor, const AxisRange& range) {
  const AxisRange known = axes(tensor);
  const AxisRange both{std::max(known.least, range.least), std::min(known.most, range.most)};
  const bool narrower = both.least > known.least || both.most < known.most;
  if (narrower && both.least <= both.most && !known_.isWritten(tensor)) {
    ranges_[tensor] = both;
    changed_ = true;
  }
}

} // namespace jit_passes
