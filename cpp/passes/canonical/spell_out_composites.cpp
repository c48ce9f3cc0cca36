// Replace composite operators by their parts, for targets that lack the composite ones.
//
//   %y = aten::stack([%a, %b], -1)             ->   %c = aten::unsqueeze(%a, -1)
//                                                   %d = aten::unsqueeze(%b, -1)
//                                                   %y = aten::cat([%c, %d], -1)
//
//   %y = aten::repeat_interleave(%x, %n, 1)    ->   %u = aten::unsqueeze(%x, 2)
//                                                   %e = aten::expand(%u, [-1, -1, %n, -1], False)
//                                                   %y = aten::flatten(%e, 1, 2)
//
//   %e = aten::expand_as(%a, %x)               ->   %y = aten::div(%x, %a)
//   %y = aten::div(%x, %e)
//
//   %y = aten::reshape_as(%a, %x)              ->   %y = aten::reshape(%a, [aten::size(%x, 0), aten::size(%x, 1)]),
//                                                   or to aten::size(%x), if the rank is not known
//
//   %f = aten::flatten(%x, 0, 1)               ->   %x
//   %y = aten::reshape_as(%f, %x)
//
//   %y = aten::layer_norm(%x, [4, 6], %w, %b, %eps, ...)
//                                              ->   %u = aten::unflatten(%x, -1, [6]), which checks the size
//                                                   %f = aten::flatten(%u, -2, -1)
//                                                   %n = aten::layer_norm(%f, [24], %v, %c, %eps, ...), of flat weights
//                                                   %y = aten::unflatten(%n, -1, [4, 6])
//
// Rotary embeddings stack rotated halves, models repeat keys for the queries that share them, and
// functional.normalize divides vectors by their expanded lengths. The rules below handle operators that need no
// facts about shapes. The product in addcmul and baddbmm is rounded before the addition, unlike perhaps in the fused
// operator.
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "rewriting/rewriter.h"

namespace jit_passes {
namespace {

const auto repeat_interleave_kind = symbol("aten::repeat_interleave");
const auto expand_as = symbol("aten::expand_as");

// The correction of std and var, which divide by the number of elements along the axis minus the correction.
std::optional<int64_t> correctionOf(const MatchView& match) {
  const auto axes = constantInts(match.value("axes"));
  const auto given = match.known("given");
  if (!axes || axes->size() != 1 || !given || !(given->isNone() || given->isBool() || given->isInt())) {
    return std::nullopt;
  }
  return given->isInt() ? given->toInt() : given->isNone() || given->toBool();
}

// std or var over one axis. The mean is subtracted first, since the difference of large sums would lose digits.
RuleText deviation(const char* kind, const std::string& replacement) {
  return {
      "aten::" + std::string(kind) + "(%x, %axes : int[], %given, %keeps)",
      "%difference = aten::sub(%x, aten::mean(%x, %axes, True, None), 1) "
      "%count = aten::sub(aten::size(%x, %axis), %correction) " +
          replacement,
      [](const auto& match) { return onlyIf(correctionOf(match).has_value()); },
      [](const auto& match) {
        return std::unordered_map<std::string, Computed>{
            {"axis", {constantInts(match.value("axes"))->front()}}, {"correction", {*correctionOf(match)}}};
      }};
}

const Rules& compositeRules() {
  static const Rules rules = rulesOf(
      "spell_out_composites",
      {{"aten::addcmul(%x, %a, %b, %factor)", "aten::add(%x, aten::mul(%a, %b), %factor)"},
       {"aten::rsub(%x, %from : Tensor, %factor)", "aten::sub(%from, %x, %factor)"},
       {"aten::rsub(%x, %from : Scalar, 1)", "aten::add(aten::neg(%x), %from, 1)"},
       // With beta 0, %x is not read. %x is often an uninitialized tensor then.
       {"aten::baddbmm(%x, %a, %b, 0, %alpha)", "aten::mul(aten::bmm(%a, %b), %alpha)"},
       {"aten::baddbmm(%x, %a, %b, %beta, %alpha)",
        "aten::add(aten::mul(aten::bmm(%a, %b), %alpha), %x, %beta)",
        [](const auto& match) { return onlyIf(match.number("beta").has_value()); }},
       // Klambauer et al., "Self-Normalizing Neural Networks", 2017, https://arxiv.org/abs/1706.02515, equation 2.
       {"aten::selu(%x)",
        "aten::mul(aten::elu(%x, 1.6732632423543772848170429916717, 1, 1), "
        "1.0507009873554804934193349852946)"},
       deviation("var", "aten::div(aten::sum(aten::square(%difference), %axes, %keeps, None), %count)"),
       deviation(
           "std",
           "aten::mul(aten::linalg_vector_norm(%difference, 2, %axes, %keeps, None), aten::pow(%count, "
           "-0.5))")});
  return rules;
}

// The shape of a layer norm over several axes, which are the operand's last ones; nothing for other operators.
std::optional<std::vector<int64_t>> normalizedShape(const Node* node) {
  const auto shape = node->kind() == aten::layer_norm ? constantInts(node, "normalized_shape") : std::nullopt;
  return shape && shape->size() > 1 ? shape : std::nullopt;
}

bool dependsOnShapes(const Node* node) {
  static const auto kinds = symbols({"aten::stack", "aten::repeat_interleave", "aten::glu"});
  return kinds.count(node->kind()) > 0 || takesShape(node);
}

// A composite operator, with facts about shapes from before any edit.
struct Composite {
  Node* node;
  std::optional<int64_t> rank = {};  // of the repeated tensor, or of the tensor whose shape is taken
  bool is_broadcast = false;         // whether all readers broadcast it to that tensor anyway
  std::optional<int64_t> gated = {}; // the size of the axis of glu's operand
};

std::optional<int64_t> sizeGated(const Node* node, const Shapes& shapes) {
  const auto axis = node->kind() == aten::glu ? constantNumber(node, "dim") : std::nullopt;
  const auto size = axis ? shapes.ofAxis(inputOf(node, "self"), int64_t(*axis)).number() : std::nullopt;
  return size && *size > 0 && *size % 2 == 0 ? size : std::nullopt;
}

// Whether the value has the rank of a tensor that it is a reduction of.
bool isAsLong(const Value* value, const Value* tensor) {
  for (const Node* node = value->node(); node->kind() != prim::Param; node = mainOperand(node)->node()) {
    if (const auto reduced = reducedAxes(node)) {
      return *reduced == 0 && mainOperand(node) == tensor;
    }
    if (!keepsShape(node)) {
      return false;
    }
  }
  return false;
}

// Whether all readers of an expand_as broadcast its operand anyway. The operand must have axes: without them it
// would not count for the dtype of the result.
bool isBroadcastAnyway(const Node* expand, const Shapes& shapes) {
  const Value *tensor = inputOf(expand, "self"), *other = inputOf(expand, "other");
  const auto own = shapes.rank(tensor), rank = shapes.rank(other);
  const bool fits = own && rank ? *own > 0 && *own <= *rank : isAsLong(tensor, other);
  return fits && std::ranges::all_of(expand->output()->uses(), [&](const Use& use) {
           return broadcasts(use.user) && use.offset < 2 && use.user->input(1 - use.offset) == other;
         });
}

// The tensor whose shape a reshape_as takes, if the reshaped tensor is a flatten or reshape of this tensor.
Value* sameElements(const Node* reshape) {
  static const auto kinds = symbols({"aten::flatten", "aten::reshape", "aten::unflatten"});
  Node* maker = inputOf(reshape, "self")->node();
  const bool same = reshape->kind() != expand_as && kinds.count(maker->kind()) > 0 &&
                    inputOf(maker, "self") == inputOf(reshape, "other");
  return same ? inputOf(maker, "self") : nullptr;
}

std::vector<Composite> compositesOf(const PassContext& context) {
  std::vector<Composite> found;
  const auto nodes = nodesWhere(*context.graph(), dependsOnShapes);
  if (nodes.empty()) { // shapes take time
    return found;
  }
  const Shapes shapes(context, Images::Unknown);
  const auto is_written = [&](const Value* value) { return shapes.isWritten(value); };
  for (Node* node : nodes) {
    if (is_written(node->output()) || std::ranges::any_of(node->inputs(), is_written) ||
        (node->kind() == aten::stack &&
         std::ranges::any_of(inputOf(node, "tensors")->node()->inputs(), is_written))) {
      continue;
    }
    const size_t shaped = node->kind() == repeat_interleave_kind ? 0 : 1; // the operand whose rank is needed
    const bool has_rank = node->inputs().size() > shaped && isTensor(node->input(shaped));
    const auto rank = has_rank ? shapes.rank(node->input(shaped)) : std::nullopt;
    const bool is_broadcast = node->kind() == expand_as && isBroadcastAnyway(node, shapes);
    found.push_back({node, rank, is_broadcast, sizeGated(node, shapes)});
  }
  return found;
}

Value* listOf(const std::vector<Value*>& elements, Node* at, const c10::TypePtr& type) {
  return insertValue(at, prim::ListConstruct, elements, at, type);
}

Value* spelledStack(Node* node) {
  Node* list = inputOf(node, "tensors")->node();
  if (list->kind() != prim::ListConstruct) {
    return nullptr;
  }
  std::vector<Value*> elements;
  for (Value* element : list->inputs()) {
    elements.push_back(insertValue(node, aten::unsqueeze, {element, inputOf(node, "dim")}, node));
  }
  Value* all = listOf(elements, node, c10::ListType::ofTensors());
  return insertValue(node, aten::cat, {all, inputOf(node, "dim")}, node);
}

// repeat_interleave with one number for all elements, along an axis.
Value* spelledRepeat(Node* node, std::optional<int64_t> rank) {
  if (node->inputs().size() != 4 || isTensor(inputOf(node, "repeats"))) {
    return nullptr;
  }
  const auto given = constantNumber(node, "dim");
  const bool fails = constantNumber(node, "repeats").value_or(0) < 0;
  if (!rank || !given || *given < -*rank || *given >= *rank || fails) {
    return nullptr;
  }
  const int64_t axis = static_cast<int64_t>(*given) + (*given < 0 ? *rank : 0);
  Value *first = insertConstant(node, axis), *second = insertConstant(node, axis + 1);
  std::vector<Value*> sizes(*rank + 1, insertConstant(node, int64_t{-1}));
  sizes[axis + 1] = inputOf(node, "repeats");
  Value* more = insertValue(node, aten::unsqueeze, {inputOf(node, "self"), second}, node);
  Value* list = listOf(sizes, node, c10::ListType::ofInts());
  Value* repeated = insertValue(node, aten::expand, {more, list, insertConstant(node, false)}, node);
  return insertValue(node, aten::flatten, {repeated, first, second}, node);
}

// glu: the first half, times the sigmoid of the second.
Value* spelledGate(Node* node, int64_t size) {
  const auto part = [&](int64_t start) {
    Value *begin = insertConstant(node, start), *end = insertConstant(node, start + size / 2);
    Value* step = insertConstant(node, int64_t{1});
    return insertValue(
        node, aten::slice, {inputOf(node, "self"), inputOf(node, "dim"), begin, end, step}, node);
  };
  Value *front = part(0), *gate = insertValue(node, aten::sigmoid, {part(size / 2)}, node);
  return insertValue(node, aten::mul, {front, gate}, node);
}

// A layer norm over one axis: the last axes, joined. An unflatten before checks all sizes but the first, since 6
// times 4 elements are as many as 4 times 6. The unflatten after checks the first size.
Value* spelledNorm(Node* node, const std::vector<int64_t>& shape) {
  const auto number = [&](int64_t value) { return insertConstant(node, value); };
  const auto join = [&](Value* tensor) {
    Value *first = number(-int64_t(shape.size())), *last = number(-1);
    return insertValue(node, aten::flatten, {tensor, first, last}, node);
  };
  std::vector<Value*> operands = node->inputs().vec();
  for (size_t behind = 1; behind < shape.size(); ++behind) {
    Value* size = insertConstant(node, std::vector{shape[shape.size() - behind]});
    operands[0] = insertValue(node, aten::unflatten, {operands[0], number(-int64_t(behind)), size}, node);
  }
  operands[0] = join(operands[0]);
  operands[1] = insertConstant(node, std::vector{c10::multiply_integers(shape)});
  for (const size_t weight : {2, 3}) {
    if (const auto constant = constantTensor(operands[weight])) {
      operands[weight] = insertConstant(node, constant->flatten());
    } else if (!isNone(operands[weight])) {
      operands[weight] = join(operands[weight]);
    }
  }
  Value* normalized = insertValue(node, aten::layer_norm, operands, node);
  return insertValue(node, aten::unflatten, {normalized, number(-1), insertConstant(node, shape)}, node);
}

// The list of sizes of a tensor. `rank` is its rank, if known.
Value* sizesOf(Value* tensor, std::optional<int64_t> rank, Node* before) {
  if (const auto constant = constantTensor(tensor)) {
    return insertConstant(before, constant->sizes().vec());
  }
  const auto ints = c10::ListType::ofInts();
  if (!rank) {
    return insertValue(before, aten::size, {tensor}, before, ints);
  }
  std::vector<Value*> sizes;
  for (int64_t axis = 0; axis < *rank; ++axis) {
    Value* of = insertConstant(before, axis);
    sizes.push_back(insertValue(before, aten::size, {tensor, of}, before, c10::IntType::get()));
  }
  return listOf(sizes, before, ints);
}

// reshape_as and expand_as, with the sizes of the other tensor. `rank` is its rank, if known.
Value* spelledShape(Node* node, std::optional<int64_t> rank) {
  Value *tensor = inputOf(node, "self"), *list = sizesOf(inputOf(node, "other"), rank, node);
  if (node->kind() == expand_as) {
    return insertValue(node, aten::expand, {tensor, list, insertConstant(node, false)}, node);
  }
  return insertValue(node, aten::reshape, {tensor, list}, node);
}

// The value that replaces the node; null if the node stays.
Value* spelled(const Composite& composite) {
  Node* node = composite.node;
  if (node->kind() == aten::stack) {
    return spelledStack(node);
  }
  if (node->kind() == repeat_interleave_kind) {
    return spelledRepeat(node, composite.rank);
  }
  if (node->kind() == aten::glu) {
    return composite.gated ? spelledGate(node, *composite.gated) : nullptr;
  }
  if (composite.is_broadcast) {
    return inputOf(node, "self");
  }
  Value* same = sameElements(node);
  return same != nullptr ? same : spelledShape(node, composite.rank);
}

bool spellOutComposites(PassContext& context) {
  bool changed = false;
  for (const Composite& composite : compositesOf(context)) {
    if (Value* replacement = spelled(composite)) {
      replaceNode(composite.node, replacement);
      changed = true;
    }
  }
  changed |= replaceNodes(*context.graph(), [](Node* node) {
    const auto shape = normalizedShape(node);
    return shape ? spelledNorm(node, *shape) : nullptr;
  });
  return passOf(compositeRules())(context) || changed;
}

const RegisterPass spell_out_composites_pass{
    "spell_out_composites", "Replace composite operators by their parts: stack, addcmul, glu, ...",
    spellOutComposites, needs("inlined")};

} // namespace
} // namespace jit_passes
