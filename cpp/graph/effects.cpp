#include "effects.h"

#include "calls.h"
#include "operators.h"

namespace jit_passes {
namespace {

// Whether the overload writes to an operand other than `out`.
bool writesToOperand(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite() && !argument.kwarg_only() &&
           argument.name() != "out";
  });
}

// Compiled regions and plans never write to their operands. Of opaque modules the graph tells.
bool callMayWrite(const Node* call) {
  const auto type = objectOf(call)->type()->cast<c10::ClassType>();
  if (!type || isCompiledRegion(type) ||
      type->annotation_str() == "__torch__.torch.classes.jit_passes.Plan") {
    return !type;
  }
  torch::jit::Function* method = isOpaque(type) ? type->findMethod(call->s(attr::name)) : nullptr;
  auto* function = method == nullptr ? nullptr : torch::jit::tryToGraphFunction(*method);
  return function == nullptr || anyMayWrite(*function->graph());
}

} // namespace

bool anyOverload(
    const Node* node, c10::Symbol kind, const std::function<bool(const c10::FunctionSchema&)>& test) {
  const auto& overloads = torch::jit::getAllOperatorsFor(kind);
  return std::ranges::any_of(overloads, [&](const auto& overload) {
    const auto& schema = overload->schema();
    return (schema.is_varret() || schema.returns().size() == node->outputs().size()) && test(schema);
  });
}

// An operator without a schema belongs to the language, and some of these call code that is not visible here; or it
// stands in a pattern, where the types of operands are not known.
bool mayWrite(const Node* node, c10::Symbol kind) {
  if (isNormalization(kind) && node->inputs().size() > kTraining) {
    const bool has_statistics = !isNone(node->input(kRunningMean)) || !isNone(node->input(kRunningVar));
    return has_statistics && constantNumber(node->input(kTraining)) != 0.0; // if it trains, it moves them
  }
  if (const auto* schema = kind == node->kind() ? node->maybeSchema() : nullptr) {
    return schema->is_mutable();
  }
  if (!torch::jit::getAllOperatorsFor(kind).empty()) {
    return isNormalization(kind) || anyOverload(node, kind, writesToOperand);
  }
  static const std::unordered_set<c10::Symbol> harmless{
      prim::Constant,      prim::GetAttr,      prim::If,         prim::Loop,
      prim::ListConstruct, prim::ListUnpack,   prim::TupleIndex, prim::TupleConstruct,
      prim::TupleUnpack,   prim::DictConstruct};
  return kind == prim::CallMethod ? callMayWrite(node) : !harmless.count(kind);
}

bool mayWrite(const Node* node) { return mayWrite(node, node->kind()); }

bool mayShareMemory(const Value* value) {
  switch (value->type()->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::NoneType:
    case c10::TypeKind::DeviceObjType: return false;
    default: return true;
  }
}

bool returnsAlias(const Node* node) {
  const auto* schema = node->maybeSchema();
  return schema != nullptr && !schema->returns().empty() && schema->returns()[0].alias_info() != nullptr;
}

bool returnsHiddenAlias(c10::Symbol kind) {
  static const auto kinds = symbols(
      {"aten::dropout",
       "aten::feature_dropout",
       "aten::alpha_dropout",
       "aten::feature_alpha_dropout",
       "aten::atleast_1d",
       "aten::atleast_2d",
       "aten::atleast_3d",
       "aten::einsum",
       "aten::sum_to_size",
       "aten::meshgrid",
       "aten::broadcast_tensors",
       "aten::chain_matmul",
       "aten::cartesian_prod",
       "aten::type_as",
       "aten::conj_physical",
       "aten::dequantize",
       "aten::to_dense",
       "aten::data",
       "aten::lift",
       "aten::_cast_Float",
       "aten::_cast_Double",
       "aten::_cast_Half",
       "aten::_unsafe_view",
       "aten::flatten_dense_tensors",
       "aten::unsafe_chunk",
       "aten::unsafe_split",
       "aten::unsafe_split_with_sizes"});
  return kinds.count(kind) > 0;
}

bool anyMayWrite(Graph& graph) {
  bool found = false;
  forEachNode(graph, [&](const Node* node) { found = found || mayWrite(node); });
  return found;
}

} // namespace jit_passes
