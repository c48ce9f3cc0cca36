// Fold branches whose condition an earlier check implies.
//
//   %a : bool = prim::is_nested(%x)                    %a : bool = prim::is_nested(%x)
//   %b : bool = prim::is_nested(%x)                     = prim::If(%a)
//    = prim::If(%a)                              ->        block0(): prim::RaiseException(...)
//     block0(): prim::RaiseException(...)                  block1():
//     block1():                                        %c : bool = prim::Constant[value=0]()
//   %c : bool = prim::If(%b)
//     block0(): -> (True)
//     block1(): -> (%b)
//
// Known ranks decide questions about the number of axes. A question that is asked twice has one answer. A result has
// the device of its operands, and is nested only if they are. Inside a branch its condition is known, and after a
// check that raises an error the check has not failed. If a known condition compares a number with a constant, the
// number is known too, such as the rank that `interpolate` checks. A branch's result with one value on both sides
// becomes this value, and a result that is true on one side and false on the other becomes the condition. The
// propagation of constants handles branches on constants.
//
// Scripted transformers repeat all their checks in each layer.
#include "facts/assumed_ranks.h"
#include "facts/known_values.h"
#include "facts/shape_facts.h"
#include "graph/alias.h"
#include "graph/keys.h"
#include "graph/operators.h"
#include "simplify.h"

namespace jit_passes {
namespace {

const auto is_nested = symbol("prim::is_nested");

// Whether the answer depends on the operands alone: tensors that no node writes to, and scalars. `is` and `is not`
// depend on the identity of their operands alone.
bool isQuestion(const Node* node, const KnownValues& known) {
  static const auto kinds = symbols(
      {"aten::dim", "aten::size", "prim::is_nested", "prim::device", "prim::dtype", "prim::type", "aten::eq",
       "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::__not__"});
  if (node->outputs().size() != 1 || mayShareMemory(node->output())) {
    return false;
  }
  const bool compares = node->kind() == aten::__is__ || node->kind() == aten::__isnot__;
  return compares ||
         (kinds.count(node->kind()) > 0 && std::ranges::all_of(node->inputs(), [&](const Value* operand) {
            return !mayShareMemory(operand) || (isTensor(operand) && !known.isWritten(operand));
          }));
}

std::string keyOfQuestion(const Node* node) {
  std::string key = node->kind().toQualString();
  for (const Value* operand : node->inputs()) {
    const auto constant = constantOf(operand);
    if (constant && (constant->isInt() || constant->isNone())) { // equal constants may be several values
      key += constant->isNone() ? "|none" : "|int" + std::to_string(constant->toInt());
    } else {
      const size_t number = operand->unique();
      key += '|';
      appendBytes(key, &number, sizeof(number));
    }
  }
  return key;
}

using Asked = std::map<std::string, Value*>; // a map, since its iterators stay valid

// Replaces a question by an earlier equal one whose answer is visible there.
bool mergeQuestions(Block* block, const KnownValues& known, Asked& asked) {
  bool changed = false;
  std::vector<Asked::iterator> here; // questions whose answers are not visible after the block
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    Node* node = *it++;
    for (Block* inner : node->blocks()) {
      changed |= mergeQuestions(inner, known, asked);
    }
    if (!isQuestion(node, known)) {
      continue;
    }
    const auto [first, added] = asked.emplace(keyOfQuestion(node), node->output());
    if (added) {
      here.push_back(first);
    } else {
      node->output()->replaceAllUsesWith(first->second);
      node->destroy();
      changed = true;
    }
  }
  for (const auto& question : here) {
    asked.erase(question);
  }
  return changed;
}

bool isWithin(const Node* node, const Block* block) {
  for (const Block* own = node->owningBlock(); own != nullptr;) {
    if (own == block) {
      return true;
    }
    own = own->owningNode() != nullptr ? own->owningNode()->owningBlock() : nullptr;
  }
  return false;
}

using Fact = std::pair<Value*, c10::IValue>;

// The fact about an operand that follows from the node's result. Known are the negated condition, or the number that
// the node compares with a constant or adds a constant to.
std::optional<Fact> factBehind(const Node* node, const c10::IValue& result) {
  if (node->kind() == aten::__not__) {
    return Fact(const_cast<Value*>(node->input()), !result.toBool());
  }
  const auto isWhole = [](const Value* value) { return value->type()->kind() == c10::TypeKind::IntType; };
  const bool two = node->inputs().size() == 2 && std::ranges::all_of(node->inputs(), isWhole);
  const size_t other = two && isConstant(node->input(0)) && node->kind() != aten::sub ? 0 : 1;
  const auto constant = two ? constantOf(node->input(other)) : std::nullopt;
  if (!constant) {
    return std::nullopt;
  }
  auto* number = const_cast<Value*>(node->input(1 - other));
  if ((node->kind() == aten::eq && result.toBool()) || (node->kind() == aten::ne && !result.toBool())) {
    return Fact(number, *constant);
  }
  if (node->kind() == aten::add || node->kind() == aten::sub) {
    const int64_t sign = node->kind() == aten::add ? -1 : 1;
    return Fact(number, result.toInt() + sign * constant->toInt());
  }
  return std::nullopt;
}

// The condition and the facts that follow from it.
std::vector<Fact> factsOf(Value* condition, bool holds) {
  std::vector<Fact> facts{{condition, holds}};
  while (const auto behind = factBehind(facts.back().first->node(), facts.back().second)) {
    facts.push_back(*behind);
  }
  return facts;
}

// For each tensor, the tensor that it is computed from by operators whose operands are on one device.
class Origins {
 public:
  Value* of(Value* tensor) {
    const auto [known, added] = found_.emplace(tensor, tensor);
    return added ? found_[tensor] = find(tensor) : known->second;
  }

 private:
  Value* find(Value* tensor) {
    Node* node = tensor->node();
    if (node->kind() == prim::If) {
      Value* origin = of(node->blocks()[0]->outputs()[tensor->offset()]);
      return origin == of(node->blocks()[1]->outputs()[tensor->offset()]) ? origin : tensor;
    }
    const bool computes =
        weightedOperator(node) || keepsShape(node) || movesData(node) || spatialOf(node) > 0;
    const bool moves = node->kind() == aten::to || node->kind() == aten::type_as; // perhaps to another device
    return computes && !moves ? of(mainOperand(node)) : tensor;
  }

  std::unordered_map<Value*, Value*> found_;
};

bool askOrigins(Graph& graph) {
  Origins origins;
  return changeNodes(graph, [&](Node* node) {
    Value* origin = node->kind() == prim::device ? origins.of(node->input()) : nullptr;
    if (origin == nullptr || origin == node->input()) {
      return false;
    }
    node->replaceInput(0, origin);
    return true;
  });
}

// Tensors that are not nested, found in program order: results of convolutions and embeddings, and tensors that are
// computed from them.
class Strided {
 public:
  explicit Strided(const KnownValues& known) : known_(known) {}

  bool has(const Value* value) const {
    const auto held = known_.tensor(value);
    return found_.count(value) > 0 || !isTensor(value) || (held && !held->is_nested());
  }

  void add(const Node* node) {
    if (node->kind() == prim::If) {
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        const auto on_side = [&](const Block* block) { return has(block->outputs()[i]); };
        if (isTensor(node->output(i)) && std::ranges::all_of(node->blocks(), on_side)) {
          found_.insert(node->output(i));
        }
      }
    } else if (node->outputs().size() == 1 && isTensor(node->output()) && computes(node)) {
      found_.insert(node->output());
    }
  }

 private:
  bool computes(const Node* node) const {
    static const auto refuse = symbols({"aten::embedding", "aten::_convolution"});
    const auto weighted = weightedOperator(node);
    if ((weighted && weighted->spatial_dims > 0) || refuse.count(node->kind()) > 0) {
      return true;
    }
    if (node->kind() == aten::cat) {
      const Node* list = inputOf(node, "tensors")->node();
      return list->kind() == prim::ListConstruct &&
             std::ranges::all_of(list->inputs(), [&](const Value* element) { return has(element); });
    }
    const bool known = weighted || isElementwise(node) || keepsShape(node) || movesData(node) ||
                       isAttention(node) || node->kind() == aten::matmul;
    return known && std::ranges::all_of(node->inputs(), [&](const Value* operand) { return has(operand); });
  }

  const KnownValues& known_;
  std::unordered_set<const Value*> found_;
};

bool decideNested(const PassContext& context) {
  const auto asks = [](const Node* node) { return node->kind() == is_nested; };
  if (nodesWhere(*context.graph(), asks).empty()) {
    return false;
  }
  const KnownValues known(context);
  Strided strided(known);
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    strided.add(node);
    return asks(node) && isTensor(node->input()) && strided.has(node->input()) ? insertConstant(node, false)
                                                                               : nullptr;
  });
}

// Decides branches by known ranks.
bool decideByRanks(const PassContext& context) {
  const Shapes shapes(context, Images::Unknown);
  AssumedRanks known(shapes, {});
  std::vector<std::pair<Node*, bool>> found; // all before the first edit: facts hold for the unedited graph
  for (Node* branch :
       nodesWhere(*context.graph(), [](const Node* node) { return node->kind() == prim::If; })) {
    const auto number = isConstant(branch->input()) ? std::nullopt : known.number(branch->input());
    if (number) {
      found.emplace_back(branch, *number != 0);
    }
  }
  for (const auto& [branch, holds] : found) {
    branch->replaceInput(0, insertConstant(branch, holds));
  }
  return !found.empty();
}

class Branches {
 public:
  explicit Branches(Graph& graph) : graph_(graph) {}

  bool run() {
    forEachNode(graph_, [&](Node* node) {
      if (node->kind() == prim::If && !isConstant(node->input())) {
        decideWithin(node);
        decideBehind(node);
        mergeResults(node);
      }
    });
    return changed_;
  }

 private:
  void decide(const std::vector<Fact>& facts, Node* before, const std::function<bool(const Node*)>& covers) {
    for (const auto& [value, holds] : facts) {
      if (isConstant(value)) {
        continue;
      }
      Value* answer = nullptr;
      const std::vector<Use> uses = value->uses();
      for (const Use& use : uses) {
        if (covers(use.user)) {
          answer = answer != nullptr ? answer : insertConstant(before, holds);
          use.user->replaceInput(use.offset, answer);
          changed_ = true;
        }
      }
    }
  }

  void decideWithin(Node* branch) {
    for (const size_t side : {0, 1}) {
      Block* block = branch->blocks()[side];
      const auto within = [&](const Node* user) { return isWithin(user, block); };
      Node* first =
          block->nodes().begin() == block->nodes().end() ? block->return_node() : *block->nodes().begin();
      decide(factsOf(branch->input(), side == 0), first, within);
    }
  }

  void decideBehind(Node* branch) {
    for (const size_t side : {0, 1}) {
      if (alwaysRaises(branch->blocks()[side]) && !alwaysRaises(branch->blocks()[1 - side])) {
        const auto behind = [&](const Node* user) {
          return isWithin(user, branch->owningBlock()) && user->isAfter(branch);
        };
        decide(factsOf(branch->input(), side == 1), branch->next(), behind);
      }
    }
  }

  void mergeResults(Node* branch) {
    for (Value* output : branch->outputs()) {
      Value* then = branch->blocks()[0]->outputs()[output->offset()];
      Value* otherwise = branch->blocks()[1]->outputs()[output->offset()];
      if (!output->hasUses()) {
        continue;
      }
      Value* merged = then == otherwise ? then : nullptr;
      const auto yes = constantOf(then), no = constantOf(otherwise);
      if (merged == nullptr && yes && no && yes->isBool() && no->isBool()) {
        merged = *yes == *no ? insertConstant(branch, *yes)
                 : yes->toBool()
                     ? branch->input()
                     : insertValue(branch, aten::__not__, {branch->input()}, branch, c10::BoolType::get());
      }
      if (merged != nullptr && merged->type()->isSubtypeOf(*output->type())) {
        output->replaceAllUsesWith(merged);
        changed_ = true;
      }
    }
  }

  Graph& graph_;
  bool changed_ = false;
};

} // namespace

bool settleBranches(PassContext& context) {
  if (nodesWhere(*context.graph(), [](const Node* node) { return node->kind() == prim::If; }).empty()) {
    return askOrigins(*context.graph());
  }
  bool changed = decideNested(context);
  changed |= askOrigins(*context.graph());
  changed |= decideByRanks(context);
  const KnownValues known(context);
  Asked asked;
  changed |= mergeQuestions(context.graph()->block(), known, asked);
  changed |= Branches(*context.graph()).run();
  if (changed) {
    removeDeadNodes(context.graph());
  }
  return changed;
}

} // namespace jit_passes
