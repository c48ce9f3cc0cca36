#include "replacer.h"

#include "graph/module.h"
#include "graph/places.h"

namespace jit_passes {
namespace {

// Whether a value could be computed earlier: a constant, or an attribute where the graph assigns to none.
bool canHoist(const Value* value, bool attributes) {
  const Node* node = value->node();
  return isConstant(value) || (attributes && node->kind() == prim::GetAttr);
}

class Replacer {
 public:
  Replacer(const Rule& rule, const MatchView& view, Node* point)
      : rule_(rule),
        view_(view),
        match_(view.match),
        context_(view.context),
        point_(point),
        principal_(match_.principal(rule.pattern)),
        kinds_(kindsOf(rule, match_)) {
    for (const Value* input : rule.pattern.graph->inputs()) {
      if (input->hasUses()) {
        named_[inputName(input)] = input;
      }
    }
    for (const auto& [wanted, node] : match_.nodes) {
      alive_.insert(node);
    }
  }

  std::vector<Node*> run(AliasClasses* aliases, const std::function<void(Node*)>& on_destroy) {
    bindInputs();
    for (const Node* node : rule_.replacement->nodes()) {
      emit(node);
    }
    for (Node* made : made_) {
      if (aliases != nullptr) {
        aliases->add(made);
      }
    }
    const auto outputs = rule_.pattern.graph->outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      Value* old = match_.values.at(outputs[i]);
      Value* result = valueOf(rule_.replacement->outputs().at(i));
      const auto made = c10::unshapedType(result->type()), wanted = c10::unshapedType(old->type());
      TORCH_CHECK(
          made->isSubtypeOf(*wanted) || wanted->isSubtypeOf(*made), "the replacement of rule '", rule_.name,
          "' gives ", made->annotation_str(), " at ", describe(principal_), ", where ",
          wanted->annotation_str(), " is used");
      if (made_set_.count(result->node())) {
        result->setType(old->type());
        handOverPlace(old->node(), result->node());
      }
      if (aliases != nullptr) {
        aliases->replace(old, result);
      }
      view_.written.replace(old, result);
      old->replaceAllUsesWith(result);
    }
    destroyMatched(aliases, on_destroy);
    return std::move(made_);
  }

 private:
  void bindInputs() {
    if (rule_.compute && !rule_.computed.empty()) {
      computed_ = rule_.compute(view_);
    }
    for (const Value* input : rule_.replacement->inputs()) {
      if (!input->hasUses()) {
        continue;
      }
      const auto name = inputName(input);
      const auto found = named_.find(name);
      if (found != named_.end() && isRest(input)) {
        rests_[input] = match_.rests.at(found->second);
      } else if (found != named_.end()) {
        values_[input] = asTyped(input, match_.values.at(found->second));
      } else {
        TORCH_CHECK(
            computed_.count(name), "rule '", rule_.name, "': compute gave no value for '", name,
            "', which the replacement needs");
      }
    }
  }

  // A computed value is inserted before the first operator that reads it.
  Value* valueOf(const Value* wanted) {
    Value*& value = values_[wanted];
    if (value == nullptr) {
      const auto name = inputName(wanted);
      value = insert(name, computed_.at(name));
    }
    return value;
  }

  // Converts a value whose type is wider than the input's: a whole number becomes a float, and an attribute that may
  // be None gets the type of its content. The element of a constant list becomes a constant.
  Value* asTyped(const Value* input, Value* value) {
    if (isWholeForFloat(input, value)) {
      return note(insertConstant(point_, *constantNumber(value)));
    }
    if (value->owningGraph() != point_->owningGraph()) {
      return note(insertConstant(point_, *constantOf(value)));
    }
    const Value* wanted = named_.at(inputName(input));
    const bool may_be_none = value->type()->kind() == c10::TypeKind::OptionalType;
    const bool narrowed = rule_.pattern.isTyped(wanted) && !value->type()->isSubtypeOf(*wanted->type());
    if (!may_be_none || !narrowed || takesNone(input)) {
      return value;
    }
    return note(insertValue(point_, prim::unchecked_cast, {value}, principal_, wanted->type()));
  }

  Value* note(Value* value) {
    made_.push_back(value->node());
    return value;
  }

  // Whether all operators of the replacement that read the input take None too.
  static bool takesNone(const Value* input) {
    return std::ranges::all_of(input->uses(), [&](const auto& use) {
      const auto& overloads = torch::jit::getAllOperatorsFor(use.user->kind());
      return std::ranges::any_of(overloads, [&](const auto& overload) {
        const auto& arguments = overload->schema().arguments();
        return use.offset < arguments.size() &&
               arguments[use.offset].type()->kind() == c10::TypeKind::OptionalType;
      });
    });
  }

  Value* insert(const std::string& name, const Computed& computed) {
    if (!computed.value.isTensor() || computed.kind == Computed::Constant) {
      return note(insertConstant(point_, computed.value));
    }
    const auto path = addTensorAttribute(
        context_.module(), moduleOf(principal_).first, attributeName(name), computed.value.toTensor(),
        computed.kind == Computed::Parameter);
    Value* value = readAttribute(*context_.graph(), point_, path);
    for (Value* part = value; part->node()->kind() == prim::GetAttr; part = part->node()->input()) {
      made_.push_back(part->node());
    }
    return value;
  }

  static std::string attributeName(std::string name) { // IR text has names like %w.1
    std::ranges::replace(name, '.', '_');
    return name;
  }

  void emit(const Node* node) {
    std::vector<Value*> operands;
    for (const Value* input : node->inputs()) {
      if (isRest(input)) {
        const auto& rest = rests_.at(input);
        operands.insert(operands.end(), rest.begin(), rest.end());
      } else {
        operands.push_back(valueOf(input));
      }
    }
    const auto kind = kinds_.find(node->kind());
    Graph& graph = *context_.graph();
    Node* made = nullptr;
    if (!node->blocks().empty()) {
      made = graph.createClone(const_cast<Node*>(node), [&](Value* value) { return valueOf(value); });
    } else {
      made =
          graph.create(kind == kinds_.end() ? node->kind() : kind->second, operands, node->outputs().size());
      made->copyAttributes(*node);
    }
    made->insertBefore(point_);
    made->copyMetadata(principal_);
    for (Block* block : made->blocks()) {
      forEachNode(block, [&](Node* inner) { inner->copyMetadata(principal_); });
    }
    const auto* schema = made->maybeSchema(); // has types that IR text cannot express
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      const bool known =
          schema && i < schema->returns().size() && !schema->returns()[i].type()->hasFreeVariables();
      made->output(i)->setType(known ? schema->returns()[i].type() : node->output(i)->type());
      values_[node->output(i)] = made->output(i);
    }
    made_.push_back(made);
    made_set_.insert(made);
  }

  void destroyMatched(AliasClasses* aliases, const std::function<void(Node*)>& on_destroy) {
    for (bool any = true; any;) { // users first: a node can go once its users are gone
      any = false;
      for (auto it = alive_.begin(); it != alive_.end();) {
        Node* node = *it;
        const bool used =
            std::ranges::any_of(node->outputs(), [](const Value* output) { return output->hasUses(); });
        if (used) {
          ++it;
          continue;
        }
        it = alive_.erase(it);
        if (aliases != nullptr) {
          aliases->remove(node);
        }
        view_.written.remove(node);
        on_destroy(node);
        node->destroy();
        any = true;
      }
    }
  }

  const Rule& rule_;
  const MatchView& view_;
  const Match& match_;
  PassContext& context_;
  Node* point_;
  Node* principal_;
  std::unordered_map<std::string, const Value*> named_;
  std::unordered_map<const Value*, Value*> values_;
  std::unordered_map<std::string, Computed> computed_;
  std::unordered_map<const Value*, std::vector<Value*>> rests_;
  Kinds kinds_;
  std::unordered_set<Node*> alive_; // matched nodes, until they are destroyed
  std::vector<Node*> made_;
  std::unordered_set<const Node*> made_set_;
};

} // namespace

std::optional<Placement> placementOf(const Match& match, const Pattern& pattern) {
  Placement placement{nullptr, {}};
  Node*& point = placement.point;
  std::unordered_set<const Node*> inside;
  for (const auto& [wanted, node] : match.nodes) {
    inside.insert(node);
    point = point == nullptr || node->isAfter(point) ? node : point;
  }
  for (const Value* output : pattern.graph->outputs()) {
    for (const auto& use : match.values.at(output)->uses()) {
      Node* user = use.user;
      while (user->owningBlock() != point->owningBlock() && user->owningBlock()->owningNode() != nullptr) {
        user = user->owningBlock()->owningNode();
      }
      if (!inside.count(use.user) && user->owningBlock() == point->owningBlock() && user->isBefore(point)) {
        point = user;
      }
    }
  }
  std::optional<bool> attributes;
  const std::function<bool(Value*)> reach = [&](Value* value) {
    Node* node = value->node();
    const bool element = value->owningGraph() != point->owningGraph(); // of a constant list
    if (element || node->kind() == prim::Param || node->isBefore(point)) {
      return true;
    }
    attributes = attributes ? attributes : assignedAttributes(*point->owningGraph()).empty();
    if (!canHoist(value, *attributes) || !std::ranges::all_of(node->inputs(), reach)) {
      return false;
    }
    placement.hoisted.push_back(node);
    return true;
  };
  for (const Value* input : pattern.graph->inputs()) {
    for (Value* operand : match.operandsOf(input)) {
      if (!reach(operand)) {
        return std::nullopt;
      }
    }
  }
  return placement;
}

std::vector<Node*> replaceMatch(
    const Rule& rule, const MatchView& view, const Placement& placement, AliasClasses* aliases,
    const std::function<void(Node*)>& on_destroy) {
  for (Node* hoisted : placement.hoisted) {
    if (hoisted->isAfter(placement.point)) {
      hoisted->moveBefore(placement.point);
    }
  }
  return Replacer(rule, view, placement.point).run(aliases, on_destroy);
}

} // namespace jit_passes
