// Replace an activation that a model writes as several operators by one, for targets that have it.
//
//   %p = aten::pow(%x, 3)
//   %a = aten::add(%x, aten::mul(%p, 0.044715), 1)
//   %t = aten::tanh(aten::mul(%a, 0.7978845608))
//   %y = aten::mul(aten::mul(%x, 0.5), aten::add(%t, 1, 1))     ->   %y = aten::gelu(%x, "tanh")
//
//   %y = aten::div(aten::mul(%x, aten::relu6(aten::add(%x, 3, 1))), 6)     ->   %y = aten::hardswish(%x)
//
// An activation is recognized by its values rather than its operators. The operators between a tensor and a product
// or quotient must work element by element, on that tensor and numbers alone. The pass runs them in float64, and an
// activation that agrees everywhere replaces them: Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415,
// section 2, for both forms of gelu; Howard et al., 2019, https://arxiv.org/abs/1905.02244, section 5.2, for
// hardswish.
//
// The single operator rounds at other places, so this is no part of the canonical form.
#include "facts/dtypes.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "graph/registry.h"
#include "norm_rules.h"

namespace jit_passes {
namespace {

// Constants in models have six digits or more. The two forms of gelu differ by 5e-4.
constexpr double kTolerance = 1e-5;
constexpr size_t kMostNodes = 16;

const auto div_kind = symbol("aten::div");

struct Activation {
  c10::Symbol kind;
  std::vector<c10::IValue> options;
  at::Tensor values; // at points()
};

// Points near the bends of activations, and far from them.
const at::Tensor& points() {
  static const auto numbers =
      at::cat({at::linspace(-12, 12, 193, at::kDouble), at::tensor({-1e4, -100.0, 100.0, 1e4}, at::kDouble)});
  return numbers;
}

const std::vector<Activation>& activations() {
  static const std::vector<Activation> all{
      {symbol("aten::gelu"), {"none"}, at::gelu(points())},
      {symbol("aten::gelu"), {"tanh"}, at::gelu(points(), "tanh")},
      {symbol("aten::silu"), {}, at::silu(points())},
      {symbol("aten::mish"), {}, at::mish(points())},
      {symbol("aten::hardswish"), {}, at::hardswish(points())},
      {symbol("aten::hardsigmoid"), {}, at::hardsigmoid(points())}};
  return all;
}

// Whether the operand is a number, or a tensor without axes, as in traces.
bool isPlainNumber(const Value* operand) {
  const auto tensor = constantTensor(operand);
  return isConstant(operand) && (!tensor || (tensor->dim() == 0 && !tensor->is_complex()));
}

// The operators that compute a node's result from one tensor, element by element.
class Spelled {
 public:
  Spelled(Node* last, const KnownValues& known) : known_(known), block_(last->owningBlock()) {
    pending_.insert(last->output());
  }

  // Goes back to the next single tensor that the result depends on. Null if there is none, or a value is written to.
  Value* next() {
    while (nodes_.size() < kMostNodes && !pending_.empty()) {
      Value* value = *pending_.begin(); // the last value, whose readers have all been seen
      Node* node = value->node();
      if (!isElementwise(node) || known_.isWritten(value)) {
        return nullptr;
      }
      pending_.erase(pending_.begin());
      nodes_.push_back(node);
      for (Value* operand : node->inputs()) {
        if (isPlainNumber(operand)) {
          continue;
        }
        if (!isTensor(operand)) {
          return nullptr;
        }
        const bool outside =
            operand->node()->kind() == prim::Param || operand->node()->owningBlock() != block_;
        if (outside) {
          given_.insert(operand);
        } else {
          pending_.insert(operand);
        }
      }
      if (pending_.size() + given_.size() == 1) {
        Value* of = given_.empty() ? *pending_.begin() : *given_.begin();
        return known_.isWritten(of) ? nullptr : of;
      }
    }
    return nullptr;
  }

  // Whether one of the operators is more than a sum or product of powers.
  bool bends() const {
    static const auto bending = symbols(
        {"aten::tanh", "aten::erf", "aten::sigmoid", "aten::relu6", "aten::hardtanh", "aten::clamp",
         "aten::exp", "aten::softplus", "aten::relu", "aten::hardsigmoid"});
    return std::ranges::any_of(nodes_, [&](const Node* node) { return bending.count(node->kind()) > 0; });
  }

  // The results at points(). Undefined if an operator refuses float64.
  at::Tensor values(const Value* of) const {
    const at::NoGradGuard no_gradients;
    std::unordered_map<const Value*, c10::IValue> values{{of, points()}};
    for (size_t i = nodes_.size(); i-- > 0;) {
      try {
        values[nodes_[i]->output()] = computed(nodes_[i], values);
      } catch (const c10::Error&) { // for example, it takes integers only
        return at::empty({0}, at::kDouble);
      }
    }
    return values.at(nodes_.front()->output()).toTensor();
  }

  const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  struct Later {
    bool operator()(const Value* a, const Value* b) const {
      return a->node() == b->node() ? a->offset() > b->offset() : b->node()->isBefore(a->node());
    }
  };

  const KnownValues& known_;
  const Block* block_;
  std::vector<Node*> nodes_; // the last one first
  std::set<Value*, Later> pending_;
  std::set<Value*> given_; // values of other blocks
};

struct Found {
  Node* last;
  Value* of;
  const Activation* activation;
};

std::optional<Found> spelledBy(Node* last, const Dtypes& dtypes, const KnownValues& known) {
  const bool scales = last->kind() == aten::mul || last->kind() == div_kind;
  if (!scales) {
    return std::nullopt;
  }
  Spelled spelled(last, known);
  while (Value* of = spelled.next()) {
    if (spelled.nodes().size() < 2 || !spelled.bends() || !dtypes.isFloat(of)) {
      continue;
    }
    const at::Tensor values = spelled.values(of);
    for (const Activation& activation : activations()) {
      if (values.sizes() == points().sizes() && values.scalar_type() == at::kDouble &&
          at::allclose(values, activation.values, kTolerance, kTolerance)) {
        return Found{last, of, &activation};
      }
    }
  }
  return std::nullopt;
}

bool gatherActivations(PassContext& context) {
  const auto graph = context.graph();
  Dtypes dtypes(context);
  const KnownValues known(context);
  const std::vector<Node*> nodes = nodesInOrder(*graph);
  for (const Node* node : nodes) {
    dtypes.add(node);
  }
  std::vector<Found> found; // the last one first, since it may read the result of another one
  for (size_t i = nodes.size(); i-- > 0;) {
    if (const auto one = spelledBy(nodes[i], dtypes, known)) {
      found.push_back(*one);
    }
  }
  for (const auto& [last, of, activation] : found) {
    std::vector<Value*> operands{of};
    for (const c10::IValue& option : activation->options) {
      operands.push_back(insertConstant(last, option));
    }
    replaceNode(last, insertValue(last, activation->kind, operands, last, last->output()->type()));
  }
  if (!found.empty()) {
    removeDeadNodes(graph);
  }
  return !found.empty();
}

bool gatherOperators(PassContext& context) {
  const bool norms = passOf(rulesOfNorms())(context);
  return gatherActivations(context) || norms;
}

const RegisterPass gather_operators_pass{
    "gather_operators",
    "Write activations and root-mean-square norms that a model spells out as one operator.", gatherOperators,
    needs("inlined")};

} // namespace
} // namespace jit_passes
