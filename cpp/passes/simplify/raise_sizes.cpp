// Where a model makes tensors of sizes, compute these sizes from the model's inputs rather than from results of
// layers.
//
//   %y = aten::conv2d(%x, %w, %b, [2, 2], [1, 1], ...)       windows of 3x3
//   %h : int = aten::size(%y, 2)                        ->   %n : int = aten::size(%x, 2)
//   %m = aten::zeros([%h, %h], ...)                          %h : int = (%n - 1) // 2 + 1
//
// Masks of windows and positions depend on sizes alone. A region cannot give a tensor and take a mask made from that
// tensor's size: it would have to end in between. So the mask is made in front of the region. Numbers that only
// layers read stay as they are: a region knows the sizes of its own tensors.
//
// An operator makes a tensor of sizes if all tensors that it reads are constants, arguments of the model, or made of
// sizes themselves. `new_zeros` and the like read a tensor only for its dtype and device. Where constant weights
// tell both, they get a small constant as operand.
//
// Convolutions and pools also take data without a batch axis, so only certain ranks count.
#include "ask_earlier.h"
#include "facts/dtypes.h"
#include "facts/shape_facts.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "graph/registry.h"
#include "size_formulas.h"

namespace jit_passes {
namespace {

bool isInteger(const Value* value) { return value->type()->kind() == c10::TypeKind::IntType; }

// Whether the result has the dtype and device of the first operand, and sizes of its own.
bool isLikeAnother(const Node* node) { return sizesMade(node) != nullptr && isTensor(mainOperand(node)); }

// Whether the node is a layer, or an operator that computes on results of layers rather than on masks.
bool isLayered(const Node* node) {
  static const auto kinds = symbols(
      {"aten::embedding", "aten::embedding_bag", "aten::layer_norm", "aten::group_norm", "aten::matmul",
       "aten::bmm", "aten::batch_norm", "aten::instance_norm"});
  return weightedOperator(node) || spatialOf(node) > 0 || isAttention(node) || isRecurrentLayer(node) ||
         kinds.count(node->kind()) > 0 || !node->blocks().empty();
}

// The tensors of the top level that depend on no layer.
class Early {
 public:
  explicit Early(Graph& graph) {
    for (const Value* input : graph.inputs()) {
      early_.insert(input);
    }
    for (const Node* node : graph.block()->nodes()) {
      if (!isLayered(node) && std::ranges::all_of(node->inputs(), [&](const Value* v) { return has(v); })) {
        early_.insert(node->outputs().begin(), node->outputs().end());
      }
    }
  }

  // Numbers count as early: Raising looks at their operands.
  bool has(const Value* value) const {
    return early_.count(value) > 0 || isConstant(value) || isInteger(value);
  }
  void add(const Value* value) { early_.insert(value); }

 private:
  std::unordered_set<const Value*> early_;
};

// Whether the node compares numbers, for a check or a branch.
bool comparesNumbers(const Node* node) {
  static const auto kinds = symbols({"aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge"});
  return kinds.count(node->kind()) > 0 && std::ranges::all_of(node->inputs(), isInteger);
}

class Raising {
 public:
  explicit Raising(const PassContext& context)
      : graph_(context.graph()),
        shapes_(context, Images::Unknown),
        dtypes_(context),
        early_(*graph_),
        formulas_(shapes_, [this](const Value* tensor) { return isTensor(tensor) && early_.has(tensor); }) {
    for (Node* node : nodesInOrder(*graph_)) {
      dtypes_.add(node);
      const bool weighted = weightedOperator(node) && constantTensor(node, "weight");
      if (weight_ == nullptr && weighted && dtypes_.isFloat(inputOf(node, "weight"))) {
        weight_ = inputOf(node, "weight");
      }
    }
  }

  bool run() {
    bool changed = false;
    const std::vector<Node*> nodes(graph_->block()->nodes().begin(), graph_->block()->nodes().end());
    for (Node* node : nodes) {
      const bool like = isLikeAnother(node) && !early_.has(mainOperand(node));
      const bool gives = std::ranges::any_of(node->outputs(), isTensor);
      const bool makes =
          gives && (like ? isKnown(mainOperand(node)) && makesEarly(node, 1) : makesEarly(node, 0));
      if (!makes && !comparesNumbers(node)) {
        continue;
      }
      const Raised raised = raise(node);
      if (raised == Raised::No) {
        continue;
      }
      if (like) {
        const at::Tensor weight = *constantTensor(weight_);
        node->replaceInput(0, insertConstant(node, at::zeros({1}, weight.options().requires_grad(false))));
      }
      changed |= like || raised == Raised::Yes;
      for (const Value* output : node->outputs()) {
        if (isTensor(output)) {
          early_.add(output);
        }
      }
    }
    formulas_.removeUnused();
    return changed;
  }

 private:
  // Whether all tensor operands from number `from` on are early.
  bool makesEarly(const Node* node, size_t from) const {
    return !isLayered(node) && !asksForShape(node) && node->kind() != aten::size &&
           std::all_of(node->inputs().begin() + from, node->inputs().end(), [&](const Value* operand) {
             const Node* list = operand->node();
             return early_.has(operand) ||
                    (list->kind() == prim::ListConstruct &&
                     std::ranges::all_of(list->inputs(), [&](const Value* v) { return early_.has(v); }));
           });
  }

  // Whether the tensor has the dtype and device of a constant weight.
  bool isKnown(const Value* tensor) const {
    return weight_ != nullptr && dtypes_.isFloat(tensor) && dtypes_.areOnOneDevice(tensor, tensor);
  }

  enum class Raised { Yes, No, Nothing };

  // Replaces numbers and lists of numbers among the operands, either all of them or none.
  Raised raise(Node* node) {
    std::vector<std::pair<size_t, std::vector<Value*>>> found;
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const std::vector<Value*> late = numbersOf(node->input(i));
      if (std::ranges::none_of(late, [&](Value* number) { return formulas_.isLate(number); })) {
        continue;
      }
      std::vector<Value*> raised;
      for (Value* number : late) {
        raised.push_back(formulas_.ofNumber(number, node));
        if (raised.back() == nullptr) {
          return Raised::No;
        }
      }
      found.emplace_back(i, std::move(raised));
    }
    for (const auto& [operand, numbers] : found) {
      Node* list = node->input(operand)->node();
      const bool one = isInteger(node->input(operand));
      node->replaceInput(
          operand, one ? numbers.front()
                       : insertValue(node, prim::ListConstruct, numbers, list, c10::ListType::ofInts()));
    }
    return found.empty() ? Raised::Nothing : Raised::Yes;
  }

  // An operand that is a number, or the numbers of a list that no node changes.
  std::vector<Value*> numbersOf(Value* operand) const {
    if (isInteger(operand)) {
      return {operand};
    }
    Node* list = operand->node();
    const bool listed = list->kind() == prim::ListConstruct && !shapes_.isWritten(operand) &&
                        std::ranges::all_of(list->inputs(), isInteger);
    return listed ? list->inputs().vec() : std::vector<Value*>();
  }

  std::shared_ptr<Graph> graph_;
  Shapes shapes_;
  Dtypes dtypes_;
  Early early_;
  SizeFormulas formulas_;
  const Value* weight_ = nullptr;
};

bool raiseSizes(PassContext& context) {
  const auto asks = [](const Node* node) { return node->kind() == aten::size || isLikeAnother(node); };
  if (nodesWhere(*context.graph(), asks).empty()) {
    return false;
  }
  const bool asked = askEarlier(context);
  if (!Raising(context).run()) {
    return asked;
  }
  removeDeadNodes(context.graph());
  return true;
}

const RegisterPass raise_sizes_pass{
    "raise_sizes", "Compute sizes of new tensors from sizes of the model's inputs.", raiseSizes,
    needs("inlined")};

} // namespace
} // namespace jit_passes
