// How many axes tensors have at least, where nobody knows how many: traced models take tokens of any rank.
//
//   %h = aten::embedding(%table, %tokens)        one axis at least, as the tokens may be one number
//   %y = aten::linear(%h, %weight)
//   %t = aten::transpose(%y, 1, 2)               three at least: %h has the first two axes of %tokens
#include "graph/operators.h"
#include "shape_facts.h"
#include "shapes.h"

namespace jit_passes {
namespace {

// So that there is the axis of that number, from the first or from the last. A number alone has the axes 0 and -1, too.
int64_t holding(int64_t axis) { return axis < -1 ? -axis : axis > 0 ? axis + 1 : 0; }

// The same of axes that these operands number.
int64_t holding(const Node* node, std::initializer_list<size_t> operands) {
  int64_t least = 0;
  for (const size_t i : operands) {
    const auto number = i < node->inputs().size() ? constantNumber(node->input(i)) : std::nullopt;
    least = std::max(least, holding(static_cast<int64_t>(number.value_or(-1))));
  }
  return least;
}

// The same of those that it reduces.
int64_t holdingReduced(const Node* node) {
  const auto axes = constantInts(node, "dim");
  int64_t least = 0;
  for (const int64_t axis : axes.value_or(std::vector<int64_t>())) {
    least = std::max(least, holding(axis));
  }
  return least;
}

// Axes of images without a batch axis; 0 for operators that do not work on images.
int64_t leastOfImages(const Node* node) {
  const auto weighted = weightedOperator(node);
  const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node);
  return spatial > 0 ? spatial + 1 : 0;
}

} // namespace

int64_t Shapes::leastRank(const Value* tensor) const {
  if (!least_ranks_) {
    findLeastRanks();
  }
  const auto known = least_ranks_->find(tensor);
  return std::max(rank(tensor).value_or(0), known == least_ranks_->end() ? 0 : known->second);
}

// Operands tell of results, and results of operands, so both go on until nothing is new. Ranks that follow from sizes
// are left out: sizes follow from these.
void Shapes::findLeastRanks() const {
  least_ranks_.emplace();
  const std::vector<Node*> nodes = nodesInOrder(*graph_);
  bool changed = false;
  const auto raise = [&](const Value* tensor, int64_t least) {
    if (isTensor(tensor) && !isWritten(tensor) && least > leastKnown(tensor)) {
      (*least_ranks_)[tensor] = least;
      changed = true;
    }
  };
  do {
    changed = false;
    for (const Node* node : nodes) {
      if (node->outputs().size() == 1) {
        raise(node->output(), leastMade(node));
      }
    }
    for (size_t i = nodes.size(); i-- > 0;) {
      for (size_t operand = 0; operand < nodes[i]->inputs().size(); ++operand) {
        const Value* tensor = nodes[i]->input(operand);
        if (isTensor(tensor) && tensor->node()->owningBlock() == nodes[i]->owningBlock()) {
          raise(tensor, leastRead(nodes[i], operand)); // the reader runs whenever the tensor is there
        }
      }
    }
  } while (changed);
}

int64_t Shapes::leastKnown(const Value* tensor) const {
  const auto found = least_ranks_->find(tensor);
  return found == least_ranks_->end() ? known_.rank(tensor).value_or(0) : found->second;
}

// Whether it is a linear layer that gives as many axes as it reads.
bool Shapes::isLayer(const Node* node) const {
  const auto weighted = weightedOperator(node);
  return weighted && weighted->spatial_dims == 0 && known_.rank(inputOf(node, "weight")) == 2;
}

// Of a result, by the operands.
int64_t Shapes::leastMade(const Node* node) const {
  const auto of = [&](size_t operand) { return leastKnown(node->input(operand)); };
  if (const int64_t images = leastOfImages(node)) {
    return std::max(images, of(0));
  }
  if (weightedOperator(node)) {
    return of(0) - !isLayer(node);
  }
  if (node->kind() == aten::embedding) {
    return of(1) + 1;
  }
  if (node->kind() == aten::unsqueeze) {
    return of(0) + 1;
  }
  if (keepsShape(node) || node->kind() == aten::transpose || node->kind() == aten::slice ||
      node->kind() == aten::glu) {
    return of(0);
  }
  if (broadcasts(node)) {
    return std::max(of(0), of(1));
  }
  if (const auto fewer = reducedAxes(node)) {
    return of(0) - *fewer;
  }
  return 0;
}

// Of an operand, by an operator that refuses fewer axes, or by what it makes of it.
int64_t Shapes::leastRead(const Node* node, size_t operand) const {
  if (broadcasts(node)) {
    const Value *own = node->input(operand), *other = node->input(1 - operand);
    const int64_t least = leastKnown(node->output());
    return least > known_.rank(other).value_or(least) || isReducedOf(other, own) ? least : 0;
  }
  if (operand != 0) {
    return 0;
  }
  if (node->kind() == aten::transpose) {
    return holding(node, {1, 2});
  }
  if (node->kind() == aten::size || node->kind() == aten::select || node->kind() == aten::slice ||
      node->kind() == aten::flatten || node->kind() == aten::unflatten) {
    return holding(node, {1});
  }
  // All results of a reduction have as many axes.
  const int64_t made = node->outputs().empty() ? 0 : leastKnown(node->outputs()[0]);
  if (const int64_t images = leastOfImages(node)) {
    return std::max(images, made);
  }
  if (const auto fewer = reducedAxes(node)) {
    return std::max(holdingReduced(node), made + *fewer);
  }
  if (node->kind() == aten::glu) {
    return std::max(holding(node, {1}), made);
  }
  if (keepsShape(node) || isLayer(node)) {
    return std::max<int64_t>(isLayer(node), made);
  }
  return 0;
}

} // namespace jit_passes
