// Write operators that are made of others as these, for targets that have no form of their own.
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
//                                                   or of aten::size(%x), where nobody knows how many axes it has
//
//   %f = aten::flatten(%x, 0, 1)               ->   %x
//   %y = aten::reshape_as(%f, %x)
//
//   %y = aten::addcmul(%a, %b, %c, value=v)    ->   %p = aten::mul(%b, %c)
//                                                   %y = aten::add(%a, %p, v)
//
//   %y = aten::rsub(%x, number, 1)             ->   %n = aten::neg(%x)
//                                                   %y = aten::add(%n, number, 1)
//
//   %y = aten::rsub(%x, %a, alpha)             ->   %y = aten::sub(%a, %x, alpha)
//
//   %y = aten::std(%x, [-1], True, True)       ->   %m = aten::mean(%x, [-1], True, None)
//                                                   %d = aten::sub(%x, %m, 1)
//                                                   %l = aten::linalg_vector_norm(%d, 2, [-1], True, None)
//                                                   %y = aten::mul(%l, aten::pow(aten::size(%x, -1) - 1, -0.5))
//
//   %y = aten::var(%x, [-1], True, True)       ->   the sum of the squares of %d, divided by that number
//
//   %y = aten::baddbmm(%x, %a, %b, beta, alpha) -> %p = aten::mul(aten::bmm(%a, %b), alpha)
//                                                   %y = aten::add(%p, %x, beta)
//
//   %y = aten::selu(%x)                        ->   %e = aten::elu(%x, 1.673, 1, 1)
//                                                   %y = aten::mul(%e, 1.0507)
//
//   %y = aten::glu(%x, 1)   where x is [b, 2c] ->   %a = aten::slice(%x, 1, 0, c, 1)
//                                                   %b = aten::slice(%x, 1, c, 2c, 1)
//                                                   %s = aten::sigmoid(%b)
//                                                   %y = aten::mul(%a, %s)
//
// Rotary embeddings stack what they have turned, models repeat keys for the queries that share them, and vectors are
// divided by their lengths, which functional.normalize expands before. A product in addcmul is rounded before it is added.
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

const auto repeat_interleave_kind = symbol("aten::repeat_interleave");
const auto expand_as = symbol("aten::expand_as"), addcmul = symbol("aten::addcmul");
const auto rsub_kind = symbol("aten::rsub"), baddbmm = symbol("aten::baddbmm");

bool isComposite(const Node* node) {
  static const auto kinds = symbols(
      {"aten::stack", "aten::repeat_interleave", "aten::addcmul", "aten::rsub", "aten::glu", "aten::std",
       "aten::var", "aten::selu", "aten::baddbmm"});
  return kinds.count(node->kind()) > 0 || takesShape(node);
}

// One of them, and what is known of shapes before any edit.
struct Composite {
  Node* node;
  std::optional<int64_t> rank = {};  // of what is repeated, or of the tensor whose shape is taken
  bool is_broadcast = false;         // whether all that read it broadcast it to that tensor
  std::optional<int64_t> gated = {}; // how many elements of glu's operand lie along its axis
};

std::optional<int64_t> sizeGated(const Node* node, const Shapes& shapes) {
  const auto axis = node->kind() == aten::glu ? constantNumber(node, "dim") : std::nullopt;
  const auto size = axis ? shapes.ofAxis(inputOf(node, "self"), int64_t(*axis)).number() : std::nullopt;
  return size && *size > 0 && *size % 2 == 0 ? size : std::nullopt;
}

// Whether it has as many axes as a tensor, along whose axes it was reduced.
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

// A tensor without axes would give another dtype.
bool isBroadcastAnyway(const Node* expand, const Shapes& shapes) {
  const Value *tensor = inputOf(expand, "self"), *other = inputOf(expand, "other");
  const auto own = shapes.rank(tensor), rank = shapes.rank(other);
  const bool fits = own && rank ? *own > 0 && *own <= *rank : isAsLong(tensor, other);
  return fits && std::ranges::all_of(expand->output()->uses(), [&](const Use& use) {
           return broadcasts(use.user) && use.offset < 2 && use.user->input(1 - use.offset) == other;
         });
}

// The tensor whose shape is taken, if what takes it has nothing but its elements, in their order.
Value* sameElements(const Node* reshape) {
  static const auto kinds = symbols({"aten::flatten", "aten::reshape", "aten::unflatten"});
  Node* maker = inputOf(reshape, "self")->node();
  const bool same = reshape->kind() != expand_as && kinds.count(maker->kind()) > 0 &&
                    inputOf(maker, "self") == inputOf(reshape, "other");
  return same ? inputOf(maker, "self") : nullptr;
}

std::vector<Composite> compositesOf(const PassContext& context) {
  std::vector<Composite> found;
  const auto nodes = nodesWhere(*context.graph(), isComposite);
  if (nodes.empty()) { // shapes take time
    return found;
  }
  const Shapes shapes(context, /*batched=*/false);
  const auto is_written = [&](const Value* value) { return shapes.isWritten(value); };
  for (Node* node : nodes) {
    if (is_written(node->output()) || std::ranges::any_of(node->inputs(), is_written) ||
        (node->kind() == aten::stack &&
         std::ranges::any_of(inputOf(node, "tensors")->node()->inputs(), is_written))) {
      continue;
    }
    const size_t shaped = node->kind() == repeat_interleave_kind ? 0 : 1; // the operand whose rank counts
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

// Of a number for all elements, along an axis.
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

Value* spelledSum(Node* node) {
  Value* product = insertValue(node, aten::mul, {inputOf(node, "tensor1"), inputOf(node, "tensor2")}, node);
  return insertValue(node, aten::add, {inputOf(node, "self"), product, inputOf(node, "value")}, node);
}

// The second operand, from which the first is taken away, may be a number.
Value* spelledDifference(Node* node) {
  Value *taken = inputOf(node, "self"), *from = inputOf(node, "other");
  if (isTensor(from)) {
    return insertValue(node, aten::sub, {from, taken, inputOf(node, "alpha")}, node);
  }
  if (constantNumber(node, "alpha") != 1) {
    return nullptr;
  }
  return insertValue(
      node, aten::add, {insertValue(node, aten::neg, {taken}, node), from, inputOf(node, "alpha")}, node);
}

// The front half, times the sigmoid of the other.
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

// Rounded before it is added, where the fused operator may not be. With a beta of 0 nobody reads what is added, which is
// often a tensor that was never filled.
Value* spelledProduct(Node* node) {
  const auto beta = constantNumber(node->input(3)); // by position: another overload has a dtype there
  if (!beta) {
    return nullptr;
  }
  Value* product = insertValue(node, aten::bmm, {inputOf(node, "batch1"), inputOf(node, "batch2")}, node);
  product = insertValue(node, aten::mul, {product, node->input(4)}, node);
  return *beta == 0 ? product
                    : insertValue(node, aten::add, {product, inputOf(node, "self"), node->input(3)}, node);
}

// Klambauer et al., "Self-Normalizing Neural Networks", 2017, https://arxiv.org/abs/1706.02515, equation 2.
Value* spelledSelu(Node* node) {
  constexpr double alpha = 1.6732632423543772848170429916717, scale = 1.0507009873554804934193349852946;
  Value *x = inputOf(node, "self"), *one = insertConstant(node, int64_t{1});
  Value* elu = insertValue(node, aten::elu, {x, insertConstant(node, alpha), one, one}, node);
  return insertValue(node, aten::mul, {elu, insertConstant(node, scale)}, node);
}

// Along one axis. The mean is taken away first, as the difference of large sums would have few digits.
Value* spelledDeviation(Node* node) {
  const auto axes = node->inputs().size() == 4 ? constantInts(node, "dim") : std::nullopt;
  const auto known = constantOf(node->input(node->inputs().size() > 2 ? 2 : 0));
  if (!axes || axes->size() != 1 || !known || !(known->isNone() || known->isBool() || known->isInt())) {
    return nullptr;
  }
  const int64_t correction = known->isInt() ? known->toInt() : known->isNone() || known->toBool();
  const auto insert = [&](c10::Symbol kind, const std::vector<Value*>& operands) {
    return insertValue(node, kind, operands, node);
  };
  const auto number = [&](c10::Symbol kind, const std::vector<Value*>& operands, const c10::TypePtr& type) {
    return insertValue(node, kind, operands, node, type);
  };
  Value *x = inputOf(node, "self"), *along = inputOf(node, "dim"), *keeps = inputOf(node, "keepdim");
  Value *none = insertConstant(node, c10::IValue()), *one = insertConstant(node, int64_t{1});
  Value* mean = insert(aten::mean, {x, along, insertConstant(node, true), none});
  Value* difference = insert(aten::sub, {x, mean, one});
  Value* count = number(aten::size, {x, insertConstant(node, axes->front())}, c10::IntType::get());
  count = number(aten::sub, {count, insertConstant(node, correction)}, c10::IntType::get());
  if (node->kind() == aten::var) {
    Value* sum = insert(aten::sum, {insert(aten::square, {difference}), along, keeps, none});
    return insert(aten::div, {sum, count});
  }
  static const auto vector_norm = symbol("aten::linalg_vector_norm");
  Value* length = insert(vector_norm, {difference, insertConstant(node, int64_t{2}), along, keeps, none});
  Value* factor = number(aten::pow, {count, insertConstant(node, -0.5)}, c10::FloatType::get());
  return insert(aten::mul, {length, factor});
}

// Of the shape that another tensor has, of that rank, if it is known.
Value* spelledShape(Node* node, std::optional<int64_t> rank) {
  Value *tensor = inputOf(node, "self"), *other = inputOf(node, "other");
  std::vector<Value*> sizes;
  for (int64_t axis = 0; axis < rank.value_or(0); ++axis) {
    Value* of = insertConstant(node, axis);
    sizes.push_back(insertValue(node, aten::size, {other, of}, node, c10::IntType::get()));
  }
  const auto ints = c10::ListType::ofInts();
  Value* list = rank ? listOf(sizes, node, ints) : insertValue(node, aten::size, {other}, node, ints);
  if (node->kind() == expand_as) {
    return insertValue(node, aten::expand, {tensor, list, insertConstant(node, false)}, node);
  }
  return insertValue(node, aten::reshape, {tensor, list}, node);
}

// Null where the node stays.
Value* spelled(const Composite& composite) {
  Node* node = composite.node;
  if (node->kind() == aten::stack) {
    return spelledStack(node);
  }
  if (node->kind() == repeat_interleave_kind) {
    return spelledRepeat(node, composite.rank);
  }
  if (node->kind() == addcmul) {
    return spelledSum(node);
  }
  if (node->kind() == rsub_kind) {
    return spelledDifference(node);
  }
  if (node->kind() == aten::glu) {
    return composite.gated ? spelledGate(node, *composite.gated) : nullptr;
  }
  if (node->kind() == baddbmm) {
    return spelledProduct(node);
  }
  if (node->kind() == aten::selu) {
    return spelledSelu(node);
  }
  if (node->kind() == aten::std || node->kind() == aten::var) {
    return spelledDeviation(node);
  }
  if (composite.is_broadcast) {
    return inputOf(node, "self");
  }
  if (Value* same = sameElements(node)) {
    return same;
  }
  return spelledShape(node, composite.rank);
}

bool spellOutComposites(PassContext& context) {
  bool changed = false;
  for (const Composite& composite : compositesOf(context)) {
    if (Value* replacement = spelled(composite)) {
      replaceNode(composite.node, replacement);
      changed = true;
    }
  }
  return changed;
}

const RegisterPass spell_out_composites_pass{
    "spell_out_composites", "Write operators that are made of others as these: stack, addcmul, glu, ...",
    spellOutComposites, needs("inlined")};

} // namespace
} // namespace jit_passes
