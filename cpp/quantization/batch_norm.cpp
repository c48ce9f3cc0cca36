#include "batch_norm.h"

#include "facts/shape_facts.h"

namespace jit_passes {
namespace {

// Whether the value is a matrix for every input. A batch norm after linear normalizes axis 1, which is the axis of
// features only for a matrix.
bool isMatrix(const Value* value) {
  for (const Node* node = value->node(); node->kind() != prim::Param; node = mainOperand(node)->node()) {
    if (node->kind() == aten::flatten) {
      return constantNumber(node, "start_dim") == 1.0 && constantNumber(node, "end_dim") == -1.0;
    }
    if (node->kind() == aten::view || node->kind() == aten::reshape) {
      const Node* shape = node->input(1)->node();
      const auto constant = constantInts(node->input(1));
      return (shape->kind() == prim::ListConstruct && shape->inputs().size() == 2) ||
             (constant && constant->size() == 2);
    }
    const bool keeps_rank = node->kind() == aten::linear || node->kind() == aten::relu ||
                            node->kind() == aten::clamp || isBatchNorm(node);
    if (!keeps_rank) {
      return false;
    }
  }
  return false;
}

std::optional<int64_t> groupsOf(const Node* node, const WeightedOperator& op) {
  if (op.spatial_dims == 0) {
    return 1;
  }
  const auto groups = constantNumber(node, "groups");
  return groups ? std::optional<int64_t>(*groups) : std::nullopt;
}

// Whether the node joins all axes of a tensor but the last one.
bool joinsRows(const Node* node, const Shapes& shapes) {
  if (node->kind() != aten::flatten || constantNumber(node, "start_dim") != 0.0) {
    return false;
  }
  const auto rank = shapes.rank(inputOf(node, "self")), last = wholeNumber(inputOf(node, "end_dim"));
  return rank && last && *rank == *last + (*last < 0 ? *rank : 0) + 2;
}

// Whether only this reader uses the values of the result. The shape does not change, so other nodes may ask for it:
// scripted modules check the rank of their input, and some operators give the shape to another tensor.
bool alone(const Node* reader, const Value* result) {
  return std::ranges::all_of(result->uses(), [&](const Use& use) {
    return use.user == reader || asksForShape(use.user) || (takesShape(use.user) && use.offset == 1);
  });
}

// Whether the result of a convolution has no batch axis, by its rank or by the check of a scripted module behind it.
// Axis 1 is then an axis of space rather than of channels.
bool hasNoBatchAxis(const Value* result, const WeightedOperator& op, std::optional<int64_t> known) {
  if (known) {
    return *known != op.spatial_dims + 2;
  }
  std::vector<double> ranks;
  for (const auto& use : result->uses()) {
    for (const auto& asked :
         use.user->kind() == aten::dim ? use.user->output()->uses() : std::vector<Use>()) {
      const auto rank = asked.user->kind() == aten::eq || asked.user->kind() == aten::ne
                            ? constantNumber(asked.user->input(1 - asked.offset))
                            : std::nullopt;
      if (rank) {
        ranks.push_back(*rank);
      }
    }
  }
  return !ranks.empty() && std::ranges::count(ranks, static_cast<double>(op.spatial_dims + 2)) == 0;
}

} // namespace

bool isBatchNorm(const Node* node) { return node->kind() == aten::batch_norm || isDeferredBatchNorm(node); }

bool isDeferredBatchNorm(const Node* node) {
  static const auto deferred = symbol("jit_passes::deferred_batch_norm");
  return node->kind() == deferred;
}

void replaceDeferred(Node* norm) {
  constexpr size_t operands = 9; // of aten::batch_norm
  const auto inputs = norm->inputs().slice(0, operands);
  replaceNode(norm, insertValue(norm, aten::batch_norm, inputs, norm, norm->output()->type()));
}

bool hasStatistics(const KnownValues& known, const Node* norm) {
  return !known.isNone(norm->input(kRunningMean));
}

void copyName(Value* folded, const Value* original) {
  if (!isNone(original) && original->hasDebugName()) {
    folded->setDebugName(original->debugName());
  }
}

void nameBias(Value* bias, const Value* weight) {
  static const std::string ending = "weight";
  if (isNone(bias) || bias->hasDebugName() || !weight->hasDebugName()) {
    return;
  }
  const std::string name = weight->debugName();
  if (name.size() >= ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0) {
    bias->setDebugName(name.substr(0, name.size() - ending.size()) + "bias");
  }
}

NormalizedRanks normalizedRanks(const PassContext& context) {
  const Shapes certain(context, Images::Unknown);
  NormalizedRanks ranks;
  for (const Node* norm : nodesWhere(*context.graph(), isBatchNorm)) {
    ranks[norm] = certain.rank(inputOf(norm, "input"));
  }
  return ranks;
}

std::optional<NormalizedOperator> normalizedOperator(
    const Node* norm, const NormalizedRanks& ranks, const Shapes* shapes) {
  Node* producer = inputOf(norm, "input")->node();
  const Node* reader = norm;
  const bool joined = shapes != nullptr && joinsRows(producer, *shapes);
  if (joined) {
    if (!alone(norm, producer->output())) {
      return std::nullopt;
    }
    reader = producer;
    producer = inputOf(producer, "self")->node();
  }
  const auto op = weightedOperator(producer);
  if (!op || !alone(reader, producer->output()) || producer->owningBlock() != norm->owningBlock()) {
    return std::nullopt;
  }
  const bool apart = op->spatial_dims == 0
                         ? !joined && !isMatrix(producer->output()) && ranks.at(norm) != 2
                         : joined || hasNoBatchAxis(producer->output(), *op, ranks.at(norm));
  if (apart) { // axis 1 may not be the axis of channels
    return std::nullopt;
  }
  const auto groups = groupsOf(producer, *op);
  return groups ? std::optional(NormalizedOperator{producer, *op, *groups}) : std::nullopt;
}

} // namespace jit_passes
