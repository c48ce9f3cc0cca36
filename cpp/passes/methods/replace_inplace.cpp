// Replace in-place operators by their functional form where the result of the model does not change.
//
//   %y = aten::relu_(%x)   ->   %y = aten::relu(%x)     if no other value that shares memory with %x is read later
//
// A value that an operator has just made shares memory with no earlier value. A part of it does not either, if no
// other part is read, such as the first channels of a concatenation. Otherwise PyTorch's alias analysis decides,
// which assumes that values in a list or dict may share memory with all weights. If neither proves it, the operator
// stays in place, and later passes leave its values in float.
//
// Operators stay in place if their functional form is another one:
// - comparisons and logical operators, whose functional form returns bool;
// - random numbers, whose functional form has no derivative;
// - arithmetic with an operand that is float64 for certain, which would give the functional form its dtype.
//
// copy_ becomes operators with a derivative, which aten::copy lacks:
//
//   %y = aten::copy_(%x, %src, %b)   ->   %t = aten::type_as(%src, %x)
//                                         %e = aten::expand_as(%t, %x)
//                                         %y = aten::clone(%e, %none)
//
// PyTorch's analysis takes the result of dropout for a new tensor. In eval mode it is the operand, so writes to the
// operand or the result of a dropout that may be off stay in place too.
#include "facts/known_values.h"
#include "facts/results.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool mayBeOff(const Node* node) {
  return isDropout(node) &&
         (constantNumber(node, "train") != 1.0 || constantNumber(node, "p").value_or(0) <= 0);
}

// Whether the node may return an operand, though PyTorch's analysis takes the result for a new tensor.
bool mayGiveBack(const Node* node) { return mayBeOff(node) || returnsHiddenAlias(node->kind()); }

// The value whose memory this one may have, through views, writes, and operators that may return their operand.
const Value* sourceOf(const Value* value) {
  while (!value->node()->inputs().empty() && (mayGiveBack(value->node()) || returnsAlias(value->node()))) {
    value = mainOperand(value->node());
  }
  return value;
}

// Whether the functional form is another operator. The name decides for all overloads.
bool isAnotherOperator(const Node* node) {
  static const auto kinds = symbols(
      {"aten::eq_",
       "aten::ne_",
       "aten::lt_",
       "aten::le_",
       "aten::gt_",
       "aten::ge_",
       "aten::not_equal_",
       "aten::less_",
       "aten::less_equal_",
       "aten::greater_",
       "aten::greater_equal_",
       "aten::logical_and_",
       "aten::logical_not_",
       "aten::logical_or_",
       "aten::logical_xor_",
       "aten::bernoulli_",
       "aten::cauchy_",
       "aten::exponential_",
       "aten::geometric_",
       "aten::log_normal_",
       "aten::random_",
       "aten::uniform_"});
  return kinds.count(node->kind()) > 0;
}

// Whether the result has memory of its own. Schemas do not tell, since some operators return their operand
// undeclared.
bool hasOwnMemory(const Node* node) {
  static const auto kinds = symbols(
      {"aten::_convolution", "aten::layer_norm", "aten::rms_norm", "aten::group_norm", "aten::cat",
       "aten::matmul", "aten::max_pool2d", "aten::avg_pool2d"});
  return node->outputs().size() == 1 && (weightedOperator(node) || isElementwise(node) ||
                                         isNormalization(node->kind()) || kinds.count(node->kind()) > 0);
}

// The functional form: an operator with equal operands and results that writes to none of them.
std::optional<c10::Symbol> functionalForm(const Node* node) {
  const std::string name = node->kind().toQualString();
  const auto* schema = name.back() == '_' && name[name.size() - 2] != '_' ? node->maybeSchema() : nullptr;
  if (schema == nullptr || schema->arguments().empty() || schema->returns().size() != 1) {
    return std::nullopt;
  }
  const auto* written = schema->arguments()[0].alias_info();
  if (written == nullptr || !written->isWrite() || schema->returns()[0].alias_info() == nullptr) {
    return std::nullopt;
  }
  const auto kind = symbol(name.substr(0, name.size() - 1));
  for (const auto& found : torch::jit::getAllOperatorsFor(kind)) {
    const auto& other = found->schema();
    const bool same = other.overload_name() == schema->overload_name() &&
                      std::ranges::equal(
                          other.arguments(), schema->arguments(),
                          [](const auto& a, const auto& b) { return *a.type() == *b.type(); });
    if (same && other.returns().size() == 1) {
      return kind;
    }
  }
  return std::nullopt;
}

// The list of disjoint parts that the value belongs to, or the value itself.
const Value* listOfParts(const Value* value) {
  static const auto cuts = symbols(
      {"aten::chunk", "aten::unsafe_chunk", "aten::split", "aten::unsafe_split", "aten::split_with_sizes",
       "aten::unsafe_split_with_sizes", "aten::unbind"});
  const Value* list = value->node()->kind() == prim::ListUnpack ? value->node()->input() : value;
  return cuts.count(list->node()->kind()) > 0 && list->uses().size() == 1 ? list : value;
}

// The value that this one is a part of, through views whose operand has no other reader; or the value itself. Views
// that repeat elements do not count.
const Value* wholeOf(const Value* value) {
  static const auto views = symbols(
      {"aten::slice", "aten::select", "aten::narrow", "aten::transpose", "aten::permute", "aten::unsqueeze",
       "aten::squeeze", "aten::view", "aten::reshape", "aten::flatten", "aten::unflatten"});
  while (isTensor(value)) {
    const Node* cut = listOfParts(value)->node();
    const bool part = cut != value->node() || views.count(cut->kind()) > 0;
    if (!part || mainOperand(cut)->uses().size() != 1 ||
        mainOperand(cut)->node()->owningBlock() != value->node()->owningBlock()) {
      break;
    }
    value = mainOperand(cut);
  }
  return value;
}

// Whether no result shares memory with an operand, even if the schema says so.
bool onlyComputes(const Node* node) {
  static const auto kinds = symbols({"aten::sum", "aten::mean", "aten::softmax", "aten::bmm"});
  return hasOwnMemory(node) || kinds.count(node->kind()) > 0;
}

// Which values are float64 or complex for certain: constants with axes, and casts, also behind operators. Answers are
// kept, since operators in a row would ask for all of those behind them.
class WideValues {
 public:
  explicit WideValues(const KnownValues& known) : known_(known) {}

  bool contains(const Value* value) {
    std::vector<const Value*> equal;
    bool wide = false;
    while (isTensor(value)) {
      if (const auto kept = kept_.find(value); kept != kept_.end()) {
        wide = kept->second;
        break;
      }
      equal.push_back(value);
      if (const auto tensor = known_.tensor(value)) {
        wide = tensor->dim() > 0 && (tensor->scalar_type() == at::kDouble || tensor->is_complex());
        break;
      }
      const auto row = dtypeOfResult(value);
      if (!row || row->of.empty() || row->of.front() != mainOperand(value->node())) {
        wide = row && row->dtype == at::kDouble;
        break;
      }
      value = row->of.front();
    }
    for (const Value* one : equal) {
      kept_[one] = wide;
    }
    return wide;
  }

  // For a value that is about to be removed.
  void forget(const Value* value) { kept_.erase(value); }

 private:
  const KnownValues& known_;
  std::unordered_map<const Value*, bool> kept_;
};

// Whether an operand gives the functional form a wider dtype. The in-place form keeps the dtype of its first operand.
bool widens(WideValues& wide, const Node* node) {
  const bool first = !node->inputs().empty() && wide.contains(mainOperand(node));
  return std::ranges::any_of(node->inputs(), [&](const Value* operand) {
    return operand->type()->kind() == c10::TypeKind::ComplexType || (!first && wide.contains(operand));
  });
}

// Replaces writes to a value that shares memory with no other value, in the block where it is made.
bool replaceWritesToFresh(Graph& graph, const KnownValues& known) {
  WideValues wide(known);
  return changeNodes(graph, [&](Node* node) {
    const auto kind = functionalForm(node);
    if (!kind || node->inputs().empty() || node->outputs().size() != 1 || isAnotherOperator(node) ||
        widens(wide, node)) {
      return false;
    }
    Value* value = mainOperand(node);
    const bool alone = value->node()->owningBlock() == node->owningBlock() &&
                       hasOwnMemory(wholeOf(value)->node()) &&
                       std::ranges::all_of(value->uses(), [&](const Use& use) {
                         return use.user == node || node->isBefore(use.user) || onlyComputes(use.user);
                       });
    if (!alone) {
      return false;
    }
    Value* result = insertValue(node, *kind, node->inputs(), node, node->output()->type());
    value->replaceAllUsesAfterNodeWith(node, result);
    wide.forget(node->output());
    replaceNode(node, result);
    return true;
  });
}

bool expandCopies(Graph& graph) {
  return replaceNodes(graph, [](Node* node) -> Value* {
    if (node->kind() != aten::copy || !isTensor(node->output())) {
      return nullptr;
    }
    Value* self = inputOf(node, "self");
    Value* typed = insertValue(node, aten::type_as, {inputOf(node, "src"), self}, node);
    Value* expanded = insertValue(node, aten::expand_as, {typed, self}, node);
    return insertValue(node, aten::clone, {expanded, insertConstant(node, {})}, node);
  });
}

// Replaces writes where PyTorch's analysis allows it.
bool replaceWrites(const std::shared_ptr<Graph>& graph, const KnownValues& known) {
  std::unordered_set<const Value*> dropped;
  forEachNode(*graph, [&](const Node* node) {
    if (!mayGiveBack(node)) {
      return;
    }
    for (const Value* operand : node->inputs()) {
      if (isTensor(operand)) {
        dropped.insert(sourceOf(operand));
      } else if (operand->node()->kind() == prim::ListConstruct) {
        for (const Value* element : operand->node()->inputs()) {
          dropped.insert(sourceOf(element));
        }
      }
    }
  });
  return torch::jit::RemoveTensorMutation(graph, [&](const Node* node) {
    WideValues wide(known); // nodes are removed between two questions
    return mayWrite(node) && !isAnotherOperator(node) && !widens(wide, node) &&
           (node->inputs().empty() || !dropped.count(sourceOf(mainOperand(node))));
  });
}

// A result of a write that was replaced is fresh, so writes to its parts may follow.
bool replaceInplace(PassContext& context) {
  const auto graph = context.graph();
  const KnownValues known(context);
  bool changed = false, again = true;
  while (again) {
    again = replaceWritesToFresh(*graph, known);
    again |= replaceWrites(graph, known);
    again |= expandCopies(*graph);
    changed |= again;
  }
  return changed;
}

const RegisterPass replace_inplace_pass{
    "replace_inplace", "Turn in-place operators into functional ones where aliasing allows it.",
    replaceInplace, needs("inlined")};

} // namespace
} // namespace jit_passes
