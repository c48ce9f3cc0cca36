// Write a root-mean-square norm (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467, equation 4) that a model
// spells out as one operator, for targets that have it.
//
//   %h = aten::to(%x, float32, ...)                   one or none
//   %p = aten::pow(%h, 2)                             or aten::square(%h), aten::mul(%h, %h)
//   %v = aten::mean(%p, [-1], True, None)
//   %r = aten::rsqrt(aten::add(%v, eps, 1))
//   %n = aten::mul(%x, %r)                            of %x or %h; or a quotient by aten::sqrt
//   %y = aten::mul(%weight, aten::to(%n, float32, ...))
//     ->
//   %y = aten::rms_norm(%h, [channels], %weight, eps)
//
// The weight is a constant with one axis, which says how many channels there are. The operator rounds in other places,
// so this is no part of the canonical form.
#include "facts/shapes.h"
#include "graph/alias.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// Tracing makes a tensor without axes of a number that it adds.
double numberOr0(const Value* value) {
  const auto tensor = constantTensor(value);
  return tensor ? (tensor->dim() == 0 ? tensor->to(at::kDouble).item<double>() : 0)
                : constantNumber(value).value_or(0);
}

bool is(const Value* value, c10::Symbol kind) { return value->node()->kind() == kind; }

// The only node that reads it.
Node* onlyReader(const Value* value) { return value->uses().size() == 1 ? value->uses()[0].user : nullptr; }

Value* behindCasts(Value* value) { return isToFloat(value->node()) ? inputOf(value->node(), "self") : value; }

// Of a sum or a product of a value and a constant: both.
std::optional<std::pair<Value*, Value*>> withConstant(const Node* node) {
  Value *a = node->input(0), *b = node->input(1);
  if (isConstant(a) == isConstant(b)) {
    return std::nullopt;
  }
  return isConstant(a) ? std::pair(b, a) : std::pair(a, b);
}

// The operand that is squared.
Value* squaredBy(const Node* node) {
  static const auto pow = symbol("aten::pow"), square = symbol("aten::square");
  const bool by_number = node->kind() == pow && constantNumber(node, "exponent") == 2.0;
  const bool by_itself = node->kind() == aten::mul && inputOf(node, "self") == inputOf(node, "other");
  return by_number || by_itself || node->kind() == square ? inputOf(node, "self") : nullptr;
}

bool isMeanOfRows(const Node* node) {
  static const auto mean = symbol("aten::mean");
  if (node->kind() != mean || node->inputs().size() < 4) {
    return false;
  }
  const auto keeps = constantOf(node, "keepdim");
  return constantInts(node, "dim") == std::vector<int64_t>{-1} && keeps && keeps->isBool() &&
         keeps->toBool() && (isNone(node, "dtype") || constantNumber(node, "dtype") == double(at::kFloat));
}

struct Norm {
  Node *last, *square;
  double eps;
  at::Tensor weight;
};

// Of the root or its inverse, what is below it: mean of squares and number.
std::optional<Norm> rootOf(const Value* root) {
  const Node* sum = root->node()->input()->node();
  if (sum->kind() != aten::add || onlyReader(root) == nullptr || onlyReader(sum->output()) == nullptr) {
    return std::nullopt;
  }
  const auto terms = withConstant(sum);
  const double eps = terms ? numberOr0(terms->second) : 0;
  const bool plain = sum->inputs().size() < 3 || constantNumber(sum, "alpha") == 1.0;
  if (!(eps > 0) || !plain || !isMeanOfRows(terms->first->node()) || onlyReader(terms->first) == nullptr) {
    return std::nullopt;
  }
  Value* squares = inputOf(terms->first->node(), "self");
  const bool found = onlyReader(squares) != nullptr && squaredBy(squares->node()) != nullptr;
  return found ? std::optional(Norm{nullptr, squares->node(), eps, {}}) : std::nullopt;
}

// The value divided by its root mean square, where the node does that.
std::optional<Norm> normalizedBy(Node* node) {
  static const auto rsqrt = symbol("aten::rsqrt"), sqrt = symbol("aten::sqrt"), div = symbol("aten::div");
  if (node->kind() != aten::mul && !(node->kind() == div && node->inputs().size() == 2)) {
    return std::nullopt;
  }
  const bool divides = node->kind() == div;
  for (const size_t i : {1, 0}) {
    if (!is(node->input(i), divides ? sqrt : rsqrt) || (divides && i == 0)) {
      continue;
    }
    auto norm = rootOf(node->input(i));
    if (norm && behindCasts(inputOf(norm->square, "self")) == behindCasts(node->input(1 - i))) {
      norm->last = node;
      return norm;
    }
  }
  return std::nullopt;
}

// With the product by the weight behind it.
std::optional<Norm> weighted(Norm norm) {
  Node* reader = onlyReader(norm.last->output());
  if (reader != nullptr && isToFloat(reader)) {
    reader = onlyReader(reader->output());
  }
  const auto factors = reader != nullptr && reader->kind() == aten::mul ? withConstant(reader) : std::nullopt;
  const auto weight = factors ? constantTensor(factors->second) : std::nullopt;
  if (!weight || weight->dim() != 1 || weight->scalar_type() != at::kFloat || weight->numel() == 0) {
    return std::nullopt;
  }
  norm.last = reader;
  norm.weight = weight->detach();
  return norm;
}

bool gatherRmsNorm(PassContext& context) {
  const auto graph = context.graph();
  std::vector<Norm> found;
  for (Node* node : nodesInOrder(*graph)) {
    const auto norm = normalizedBy(node);
    if (const auto whole = norm ? weighted(*norm) : std::nullopt) {
      found.push_back(*whole);
    }
  }
  if (found.empty()) { // shapes take time
    return false;
  }
  const Shapes shapes(context);
  std::erase_if(found, [&](const Norm& norm) {
    Value* of = inputOf(norm.square, "self");
    const auto values = {of, behindCasts(of), norm.last->output()};
    const bool written = std::ranges::any_of(values, [&](auto* value) { return shapes.isWritten(value); });
    if (written) {
      context.remark(
          norm.last, "it is not written as one norm: something writes to its operand or its result");
    }
    return written;
  });
  static const auto rms_norm = symbol("aten::rms_norm");
  for (const Norm& norm : found) {
    const auto insert = [&](const c10::IValue& value) { return insertConstant(norm.last, value); };
    Value* of = inputOf(norm.square, "self"); // perhaps the result of a norm by now
    const auto operands = {
        of, insert(std::vector<int64_t>{norm.weight.numel()}), insert(norm.weight), insert(norm.eps)};
    replaceNode(
        norm.last, insertValue(norm.last, rms_norm, operands, norm.last, norm.last->output()->type()));
  }
  if (found.empty()) {
    return false;
  }
  removeDeadNodes(graph);
  return true;
}

const RegisterPass gather_rms_norm_pass{
    "gather_rms_norm", "Write a root-mean-square norm that is spelled out as one operator.", gatherRmsNorm,
    needs("inlined")};

} // namespace
} // namespace jit_passes
