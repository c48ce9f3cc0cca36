// Compute with a batch axis in place of branches on whether the data have one.
//
// PyTorch's attention and recurrent layers take data of rank 3, or of rank 2 without a batch. In scripted models
// each of them asks for the rank, and has a branch before it and after it:
//
//   %n : int = aten::dim(%x)
//   %b : bool = aten::eq(%n, 3)
//   %q = prim::If(%b)                          %u = aten::unsqueeze(%x, 0)
//     block0(): -> (aten::transpose(%x, 0, 1)) %f = aten::flatten(%u, 0, -3)    with a batch, whatever %x has
//     block1(): -> (aten::unsqueeze(%x, 1))    %q = aten::permute(%f, [1, 0, 2])
//   %a = ... of %q                        ->   %a = ... of %q
//   %y = prim::If(%b)                          %y = aten::permute(%a, [1, 0, 2])
//     block0(): -> (aten::transpose(%a, 0, 1))
//     block1(): -> (aten::squeeze(%a, 1))
//
// The value after the branch lacks the axis if %x does. Operators that treat all places in front of the last axis
// alike take the value with the axis instead, up to the next layer. If another operator reads the value, a branch
// removes the axis again.
//
// If the sides of a branch do more than move axes, see lift_branches.cpp, which runs first.
//
// The pass shows node by node that both sides compute equal values except for this axis, and that the model raises
// an error for tensors of any other rank.
#include "batch_forms.h"
#include "graph/alias.h"
#include "lift_branches.h"

namespace jit_passes {
namespace {

// Whether the answer does not depend on the number of axes.
bool asksForOther(const Node* node) {
  static const auto kinds =
      symbols({"prim::dtype", "prim::requires_grad", "prim::layout", "aten::is_floating_point"});
  return kinds.count(node->kind()) > 0;
}

// Whether the answer is equal for a tensor and the values computed from it.
bool asksForOrigin(const Node* node) {
  static const auto kinds = symbols({"aten::dim", "prim::device", "prim::is_nested"});
  return kinds.count(node->kind()) > 0;
}

class BatchAxis {
 public:
  explicit BatchAxis(PassContext& context)
      : graph_(context.graph()), block_(graph_->block()), forms_(context) {}

  bool run() {
    const std::vector<Value*>& values = forms_.values();
    for (Value* value : values) {
      lifted_[value] = lift(value);
    }
    for (size_t i = values.size(); i-- > 0;) {
      if (values[i] != forms_.find(values[i])->root) {
        replace(values[i]);
      }
    }
    if (!values.empty()) {
      removeDeadNodes(graph_);
    }
    return !values.empty();
  }

 private:
  // The value with a batch axis.
  Value* lift(Value* value) {
    const Form& form = *forms_.find(value);
    Node* node = value->node();
    const auto ranked = c10::TensorType::get()->withDim(kBatched);
    if (value == form.root) {
      Node* before = node->kind() == prim::Param ? *block_->nodes().begin() : node->next();
      Value* one = insertValue(before, aten::unsqueeze, {value, insertConstant(before, form.axis)}, before);
      Value *first = insertConstant(before, form.axis), *last = insertConstant(before, form.axis - kBatched);
      return insertValue(before, aten::flatten, {one, first, last}, before, ranked);
    }
    if (node->kind() != prim::If) {
      Node* clone = graph_->createClone(node, [&](Value* operand) {
        const auto found = lifted_.find(operand);
        return found == lifted_.end() ? operand : found->second;
      });
      clone->insertAfter(node);
      clone->output()->setType(ranked);
      return clone->output();
    }
    const auto& [base, order] = forms_.moved(value);
    const auto lifted = lifted_.find(base);
    Value* given = lifted == lifted_.end() ? base : lifted->second;
    if (std::ranges::is_sorted(order)) {
      return given;
    }
    Value*& moved = permuted_[{given, order}];
    if (moved == nullptr) {
      Node* next = node->next();
      moved = insertValue(next, aten::permute, {given, insertConstant(next, order)}, node, ranked);
    }
    return moved;
  }

  void replace(Value* value) {
    const Form& form = *forms_.find(value);
    Value* lifted = lifted_.at(value);
    Node* node = value->node();
    if (!form.lacks) {
      value->replaceAllUsesWith(lifted);
    }
    Value* restored = nullptr;
    const std::vector<Use> uses = value->uses();
    for (const Use& use : uses) {
      if (asksForOrigin(use.user)) {
        use.user->replaceInput(use.offset, form.root);
      } else if (asksForOther(use.user)) {
        use.user->replaceInput(use.offset, lifted);
      } else if (use.user->kind() == aten::size && use.user->inputs().size() == 1) {
        replaceNode(use.user, restoreSizes(value, use.user));
      } else {
        const bool inside = use.user->owningBlock() != block_; // a block that may not run
        Value* own = inside ? restore(value, use.user) : nullptr;
        if (own == nullptr && restored == nullptr) {
          Node* last = lifted->node()->isBefore(node) ? node : lifted->node();
          restored = restore(value, last->next());
        }
        use.user->replaceInput(use.offset, inside ? own : restored);
      }
    }
    if (node->kind() != prim::If) {
      node->destroy();
      return;
    }
    for (const size_t side : {0, 1}) {
      const auto moves = movesOf(value, side).second;
      node->blocks()[side]->eraseOutput(value->offset());
      for (size_t i = moves.size(); i-- > 0 && !moves[i]->hasUses();) {
        moves[i]->destroy();
      }
    }
    node->eraseOutput(value->offset());
  }

  // Inserts a branch on the rank: `with_batch` if there is a batch, else the value that `without` makes.
  Value* choose(
      Value* value, Value* with_batch, Node* before, const std::function<Value*(Node* end)>& without) {
    const Node* like = value->node();
    Value* rank = insertValue(before, aten::dim, {forms_.find(value)->root}, like, c10::IntType::get());
    Value* batched = insertConstant(before, kBatched);
    Value* has = insertValue(before, aten::eq, {rank, batched}, like, c10::BoolType::get());
    Node* branch = insertNode(before, prim::If, {has}, like);
    branch->addBlock()->registerOutput(with_batch);
    Block* otherwise = branch->addBlock();
    otherwise->registerOutput(without(otherwise->return_node()));
    return branch->output();
  }

  // The value in the form of the model: without the axis if the root lacks it.
  Value* restore(Value* value, Node* before) {
    Value *lifted = lifted_.at(value), *axis = insertConstant(before, forms_.find(value)->axis);
    return choose(
               value, lifted, before,
               [&](Node* end) { return insertValue(end, aten::squeeze, {lifted, axis}, value->node()); })
        ->setType(value->type());
  }

  // The sizes of the value in the form of the model. These sizes do not need the value itself.
  Value* restoreSizes(Value* value, Node* size) {
    Value* lifted = lifted_.at(value);
    const auto ints = c10::ListType::ofInts();
    Value* all = insertValue(size, aten::size, {lifted}, size, ints);
    return choose(
               value, all, size,
               [&](Node* end) {
                 std::vector<Value*> rest;
                 for (int64_t i = 0; i < kBatched; ++i) {
                   if (i != forms_.find(value)->axis) {
                     rest.push_back(insertValue(
                         end, aten::size, {lifted, insertConstant(end, i)}, size, c10::IntType::get()));
                   }
                 }
                 return insertValue(end, prim::ListConstruct, rest, size, ints);
               })
        ->setType(ints);
  }

  std::shared_ptr<Graph> graph_;
  Block* block_;
  BatchForms forms_;
  std::unordered_map<const Value*, Value*> lifted_;
  std::map<std::pair<const Value*, std::vector<int64_t>>, Value*> permuted_;
};

bool settleBatchAxis(PassContext& context) {
  const auto decides = [](const Node* node) {
    return node->kind() == prim::If && std::ranges::any_of(node->outputs(), isTensor);
  };
  bool changed = liftBranches(context);
  // A layer may tell the batch axis of another tensor, so this repeats, at most once for each branch.
  for (size_t left = nodesWhere(*context.graph(), decides).size(); left > 0; --left) {
    if (!BatchAxis(context).run()) {
      break;
    }
    changed = true;
  }
  return changed;
}

const RegisterPass settle_batch_axis_pass{
    "settle_batch_axis", "Compute with a batch axis in place of branches on whether there is one.",
    settleBatchAxis, needs("inlined")};

} // namespace
} // namespace jit_passes
