// Give in-place operators their functional form wherever nobody can tell the difference.
//
//   %y = aten::relu_(%x)   ->   %y = aten::relu(%x)     when no other name of %x is read later
//
// A value that an operator has just made has no other name, whatever becomes of it later; nor has a part of it that is
// all that anybody reads, such as the first channels of a concatenation. Else PyTorch's alias analysis
// decides, for which all that goes into a list or dict may share memory with all weights. A value of which neither can
// prove it stays in place, and later passes leave those values in float.
//
// Two kinds stay in place, because the functional form is not the same operator:
// - comparisons and logical operators, which then return bool;
// - random numbers, which have no derivative then.
//
// copy_ becomes what has a derivative, unlike aten::copy:
//
//   %y = aten::copy_(%x, %src, %b)   ->   %t = aten::type_as(%src, %x)
//                                         %e = aten::expand_as(%t, %x)
//                                         %y = aten::clone(%e, %none)
//
// PyTorch's analysis takes the result of dropout for a tensor of its own. In eval mode it is the operand, so what is
// written to on either side of a dropout that may be off stays in place too.
#include "facts/known_values.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool mayBeOff(const Node* node) {
  return isDropout(node) &&
         (constantNumber(node, "train") != 1.0 || constantNumber(node, "p").value_or(0) <= 0);
}

// Whether it may give back an operand, though PyTorch's analysis takes the result for a tensor of its own.
bool mayGiveBack(const Node* node) { return mayBeOff(node) || returnsHiddenAlias(node->kind()); }

// The value that the memory comes from: behind views, writes and what may give back its operand.
const Value* sourceOf(const Value* value) {
  while (!value->node()->inputs().empty() && (mayGiveBack(value->node()) || returnsAlias(value->node()))) {
    value = mainOperand(value->node());
  }
  return value;
}

// By name: overloads of an operator agree.
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

// Whether the result has memory of its own, not by what PyTorch declares: some operators give back their operand.
bool isFresh(const Node* node) {
  static const auto kinds = symbols(
      {"aten::_convolution", "aten::layer_norm", "aten::rms_norm", "aten::group_norm", "aten::cat",
       "aten::matmul", "aten::max_pool2d", "aten::avg_pool2d"});
  return node->outputs().size() == 1 && (weightedOperator(node) || isElementwise(node) ||
                                         isNormalization(node->kind()) || kinds.count(node->kind()) > 0);
}

// The operator that computes the same and takes the same operands, but writes to none of them.
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

// The list of parts that the value is one of, which have no element in common; else the value itself.
const Value* listOfParts(const Value* value) {
  static const auto cuts = symbols(
      {"aten::chunk", "aten::unsafe_chunk", "aten::split", "aten::unsafe_split", "aten::split_with_sizes",
       "aten::unsafe_split_with_sizes", "aten::unbind"});
  const Value* list = value->node()->kind() == prim::ListUnpack ? value->node()->input() : value;
  return cuts.count(list->node()->kind()) > 0 && list->uses().size() == 1 ? list : value;
}

// The value that this one is a part of, or itself: nobody reads it elsewhere, and nothing of the part is there twice.
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

// Whether no result is another name for what it reads, whatever PyTorch declares.
bool onlyComputes(const Node* node) {
  static const auto kinds = symbols({"aten::sum", "aten::mean", "aten::softmax", "aten::bmm"});
  return isFresh(node) || kinds.count(node->kind()) > 0;
}

// Whether an operand may make the result of the functional form wider than what is written to, which keeps its dtype.
bool widens(const KnownValues& known, const Node* node) {
  return std::ranges::any_of(node->inputs(), [&](const Value* operand) {
    const auto tensor = isTensor(operand) ? known.tensor(operand) : std::nullopt;
    return operand->type()->kind() == c10::TypeKind::ComplexType ||
           (tensor && tensor->dim() > 0 && (tensor->scalar_type() == at::kDouble || tensor->is_complex()));
  });
}

// Operators that write to a value of which nobody has another name, in the block where it is made.
bool replaceWritesToFresh(Graph& graph, const KnownValues& known) {
  return changeNodes(graph, [&](Node* node) {
    if (node->inputs().empty() || node->outputs().size() != 1 || isAnotherOperator(node) ||
        widens(known, node)) {
      return false;
    }
    Value* value = mainOperand(node);
    const bool alone = value->node()->owningBlock() == node->owningBlock() &&
                       isFresh(wholeOf(value)->node()) &&
                       std::ranges::all_of(value->uses(), [&](const Use& use) {
                         return use.user == node || node->isBefore(use.user) || onlyComputes(use.user);
                       });
    const auto kind = alone ? functionalForm(node) : std::nullopt;
    if (!kind) {
      return false;
    }
    Value* result = insertValue(node, *kind, node->inputs(), node, node->output()->type());
    value->replaceAllUsesAfterNodeWith(node, result);
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

bool replaceInplace(PassContext& context) {
  const auto graph = context.graph();
  const KnownValues known(context);
  const bool replaced = replaceWritesToFresh(*graph, known);
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
  const bool changed = torch::jit::RemoveTensorMutation(graph, [&](const Node* node) {
    return !isAnotherOperator(node) && !widens(known, node) &&
           (node->inputs().empty() || !dropped.count(sourceOf(mainOperand(node))));
  });
  return expandCopies(*graph) || changed || replaced;
}

const RegisterPass replace_inplace_pass{
    "replace_inplace", "Turn in-place operators into functional ones where aliasing allows it.",
    replaceInplace, needs("inlined")};

} // namespace
} // namespace jit_passes
