// Replace a branch on the number of axes by one computation with a batch axis. Both sides of the branch have this
// computation, and one side adds the batch axis to its data first.
//
// PyTorch's instance norms also take images without a batch axis, and ask for the rank:
//
//   %n : int = aten::dim(%x)                           %u = aten::unsqueeze(%x, 0)
//   %b : bool = aten::eq(%n, 3)                        %f = aten::flatten(%u, 0, -4)
//   %y = prim::If(%b)                                  %g = aten::instance_norm(%f, ...)
//     block0():                                  ->    %y = aten::reshape(%g, aten::size(%x))
//       %u = aten::unsqueeze(%x, 0)
//       %g = aten::instance_norm(%u, ...)
//       -> (aten::squeeze(%g, 0))
//     block1():
//       -> (aten::instance_norm(%x, ...))
//
// The tensor must have one of the two ranks for certain, as the result of a convolution has, and the result must
// have the tensor's shape.
#include "lift_branches.h"

#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

bool isFirstAxis(const Node* node, c10::Symbol kind) {
  return node->kind() == kind && node->inputs().size() == 2 && constantNumber(node, "dim") == 0.0;
}

// The sides of a branch, without and with the batch axis.
struct Sides {
  Value* tensor;
  int64_t rank; // with the axis
  Block *without, *with;
};

std::optional<Sides> sidesOf(const Node* branch) {
  const Node* asks = branch->input()->node();
  const bool equal = asks->kind() == aten::eq;
  const auto rank = (equal || asks->kind() == aten::ne) && asks->inputs().size() == 2 &&
                            mainOperand(asks)->node()->kind() == aten::dim
                        ? constantNumber(asks->input(1))
                        : std::nullopt;
  if (!rank) {
    return std::nullopt;
  }
  const auto blocks = const_cast<Node*>(branch)->blocks();
  Block *named = blocks[equal ? 0 : 1], *other = blocks[equal ? 1 : 0];
  const auto lacks = [](const Block* block) {
    return isFirstAxis(block->outputs()[0]->node(), aten::squeeze);
  };
  Value* tensor = mainOperand(mainOperand(asks)->node());
  const auto whole = static_cast<int64_t>(*rank);
  return lacks(named) ? Sides{tensor, whole + 1, named, other} : Sides{tensor, whole, other, named};
}

// Compares two blocks. Values of the first stand for values of the second.
class Comparison {
 public:
  void add(const Value* value, const Value* other) { other_[value] = other; }

  bool equal(const Value* a, const Value* b) const {
    if (const auto known = other_.find(a); known != other_.end()) {
      return known->second == b;
    }
    const auto constant = constantOf(a), other = constantOf(b);
    if (!constant || !other) {
      return a == b && !stands_.count(a);
    }
    return constant->isTensor() ? constant->is(*other) : !other->isTensor() && *constant == *other;
  }

  // Makes this value equal only to a value that `add` names, and not to itself.
  void replace(const Value* value) { stands_.insert(value); }

  // Without the nodes `left_out` of the first block.
  bool equal(const Block* a, const Block* b, const std::vector<const Node*>& left_out) {
    const auto nodesOf = [](const Block* block) {
      std::vector<const Node*> nodes;
      std::ranges::copy_if(block->nodes(), std::back_inserter(nodes), [](const Node* node) {
        return node->kind() != prim::Constant;
      });
      return nodes;
    };
    auto nodes = nodesOf(a);
    std::erase_if(nodes, [&](const Node* node) { return std::ranges::count(left_out, node) > 0; });
    const auto others = nodesOf(b);
    return std::ranges::equal(
        nodes, others, [&](const Node* one, const Node* other) { return equal(one, other); });
  }

 private:
  bool equal(const Node* a, const Node* b) {
    const bool alike = a->kind() == b->kind() && a->attributeNames().empty() && b->attributeNames().empty() &&
                       a->outputs().size() == b->outputs().size() && a->blocks().size() == b->blocks().size();
    if (!alike || !equal(a->inputs(), b->inputs())) {
      return false;
    }
    for (size_t i = 0; i < a->blocks().size(); ++i) {
      const Block *own = a->blocks()[i], *other = b->blocks()[i];
      if (own->inputs().size() != other->inputs().size()) {
        return false;
      }
      for (size_t k = 0; k < own->inputs().size(); ++k) {
        add(own->inputs()[k], other->inputs()[k]);
      }
      if (!equal(own, other, {}) || !equal(own->outputs(), other->outputs())) {
        return false;
      }
    }
    for (size_t i = 0; i < a->outputs().size(); ++i) {
      add(a->output(i), b->output(i));
    }
    return true;
  }

  bool equal(at::ArrayRef<const Value*> a, at::ArrayRef<const Value*> b) const {
    return std::ranges::equal(a, b, [&](const Value* one, const Value* other) { return equal(one, other); });
  }

  std::unordered_map<const Value*, const Value*> other_;
  std::unordered_set<const Value*> stands_;
};

bool computesTheSame(const Sides& sides) {
  Comparison comparison;
  const Node* squeezes = sides.without->outputs()[0]->node();
  std::vector<const Node*> left_out{squeezes};
  for (const Node* node : sides.without->nodes()) {
    if (isFirstAxis(node, aten::unsqueeze) && mainOperand(node) == sides.tensor) {
      left_out.push_back(node);
      comparison.add(node->output(), sides.tensor);
    }
  }
  comparison.replace(sides.tensor);
  return squeezes->owningBlock() == sides.without && comparison.equal(sides.without, sides.with, left_out) &&
         comparison.equal(mainOperand(squeezes), sides.with->outputs()[0]);
}

// Whether the result of a side has the shape of the tensor.
bool hasShape(const Value* result, const Sides& sides) {
  while (result != sides.tensor && result->node()->owningBlock() == sides.with &&
         keepsShape(result->node())) {
    result = mainOperand(result->node());
  }
  return result == sides.tensor;
}

bool isLifted(const Node* branch, const Shapes& shapes) {
  if (branch->kind() != prim::If || branch->outputs().size() != 1 || !isTensor(branch->output())) {
    return false;
  }
  const auto sides = sidesOf(branch);
  if (!sides || shapes.isWritten(sides->tensor) || shapes.isWritten(branch->output())) {
    return false;
  }
  const AxisRange axes = shapes.axes(sides->tensor);
  return axes.least >= sides->rank - 1 && axes.most <= sides->rank && computesTheSame(*sides) &&
         hasShape(sides->with->outputs()[0], *sides);
}

void replaceWithin(Node* node, const Value* value, Value* by) {
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    if (node->input(i) == value) {
      node->replaceInput(i, by);
    }
  }
  for (Block* block : node->blocks()) {
    for (Node* inner : block->nodes()) {
      replaceWithin(inner, value, by);
    }
    replaceWithin(block->return_node(), value, by);
  }
}

void lift(Node* branch) {
  const Sides sides = *sidesOf(branch);
  const auto number = [&](int64_t value) { return insertConstant(branch, value); };
  Value* one = insertValue(branch, aten::unsqueeze, {sides.tensor, number(0)}, branch);
  Value* batched = insertValue(
      branch, aten::flatten, {one, number(0), number(-sides.rank)}, branch,
      c10::TensorType::get()->withDim(sides.rank));
  Value* result = sides.with->outputs()[0];
  const std::vector<Node*> nodes(sides.with->nodes().begin(), sides.with->nodes().end());
  for (Node* node : nodes) {
    node->moveBefore(branch);
    replaceWithin(node, sides.tensor, batched);
  }
  Value* sizes = insertValue(branch, aten::size, {sides.tensor}, branch, c10::ListType::ofInts());
  Value* restored = insertValue(branch, aten::reshape, {result, sizes}, branch, branch->output()->type());
  branch->output()->replaceAllUsesWith(restored);
  branch->destroy();
}

} // namespace

bool liftBranches(PassContext& context) {
  const auto graph = context.graph();
  const auto decides = [](const Node* node) { return node->kind() == prim::If && node->hasUses(); };
  if (nodesWhere(*graph, decides).empty()) {
    return false;
  }
  std::vector<Node*> lifted;
  {
    const Shapes shapes(context, Images::Unknown);
    lifted = nodesWhere(*graph, [&](const Node* node) { return isLifted(node, shapes); });
  }
  std::ranges::for_each(lifted, lift);
  return !lifted.empty();
}

} // namespace jit_passes
