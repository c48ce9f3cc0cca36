#include "rewriter.h"

#include "module.h"
#include "operators.h"

namespace jit_passes {
namespace {

using NodeSet = std::unordered_set<const Node*>;

constexpr size_t kManyUses = 32; // the next walk looks at these users, once for all rewrites
constexpr size_t kTraining = 5;  // operand of a normalization

constexpr const char* kNoPlace = "one of its operands is computed after one of its results is used";

bool isBetween(const Node* node, const Node* from, const Node* to) {
  return node->isAfter(from) && node->isBefore(to);
}

struct Placement {
  Node* point;                // the replacement goes in front of it
  std::vector<Node*> hoisted; // after these have been moved there
};

bool assignsAttributes(Graph& graph) {
  bool found = false;
  forEachNode(graph, [&](const Node* node) { found |= node->kind() == c10::prim::SetAttr; });
  return found;
}

// Whether a value can be had earlier: constants, and attributes where none is assigned to.
bool canHoist(const Value* value, bool attributes) {
  const Node* node = value->node();
  return isConstant(value) || (attributes && node->kind() == c10::prim::GetAttr);
}

// In front of the first use of a result, and at the latest where the last matched node stands. Nothing
// when an operand is computed only after that.
std::optional<Placement> placementOf(const Match& match, const Pattern& pattern) {
  Placement placement{nullptr, {}};
  Node*& point = placement.point;
  NodeSet inside;
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
    if (node->kind() == c10::prim::Param || node->isBefore(point)) {
      return true;
    }
    attributes = attributes ? attributes : !assignsAttributes(*point->owningGraph());
    if (!canHoist(value, *attributes) || !std::all_of(node->inputs().begin(), node->inputs().end(), reach)) {
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

// What names with alternatives stand for in this match.
AliasClasses::Kinds kindsOf(const Rule& rule, const Match& match) {
  AliasClasses::Kinds kinds;
  for (const Node* wanted : rule.pattern.nodes()) {
    if (rule.pattern.alternatives.count(wanted->kind())) {
      kinds.emplace(wanted->kind(), match.nodes.at(wanted)->kind());
    }
  }
  return kinds;
}

// Says how memory that is written to makes a match wrong.
class AliasCheck {
 public:
  AliasCheck(AliasClasses& aliases, const Rule& rule, const Match& match, const Node* point)
      : aliases_(aliases),
        rule_(rule),
        match_(match),
        point_(point),
        within_(*rule.replacement, AliasClasses::Inputs::Distinct, kindsOf(rule, match)) {
    for (const auto& [wanted, node] : match.nodes) {
      inside_.insert(node);
    }
    for (const Value* input : rule.pattern.graph->inputs()) {
      named_[inputName(input)] = input;
      for (const Value* operand : match.operandsOf(input)) {
        inputs_.push_back(operand);
      }
    }
  }

  std::optional<std::string> refusal() {
    std::string reason;
    for (const Node* wanted : rule_.pattern.nodes()) {
      const Node* node = match_.nodes.at(wanted);
      for (const Value* operand : node->inputs()) {
        reason = reason.empty() ? checkReads(node, operand) : reason;
      }
    }
    for (const Value* input : inputs_) {
      reason = reason.empty() ? checkWrites(input) : reason;
    }
    reason = reason.empty() ? checkReplacement() : reason;
    reason = reason.empty() ? checkUses() : reason;
    reason = reason.empty() ? checkResults() : reason;
    return reason.empty() ? std::nullopt : std::optional(reason);
  }

 private:
  // Whether the replacement stands in front of the node, and the writer in between.
  bool overtaken(const Node* writer, const Node* node) const {
    if (!point_->isBefore(node)) {
      return false;
    }
    for (const Node* around = writer; around != nullptr; around = around->owningBlock()->owningNode()) {
      if (around == point_) {
        return true;
      }
    }
    return isBetween(writer, point_, node);
  }

  // Between the node and where its replacement will stand, nobody may write to what it reads.
  std::string checkReads(const Node* node, const Value* operand) {
    for (const Node* writer : aliases_.writersOf(operand)) {
      if (!inside_.count(writer) && (isBetween(writer, node, point_) || overtaken(writer, node))) {
        return describe(writer) + " writes to what " + describe(node) +
               " reads, between the matched operators";
      }
    }
    return "";
  }

  // What the pattern writes to must not be seen by others, who would miss it.
  std::string checkWrites(const Value* input) {
    for (const Node* writer : aliases_.writersOf(input)) {
      if (inside_.count(writer) &&
          (inside_.count(input->node()) || !aliases_.onlyWithin(input, inside_, point_))) {
        return describe(writer) + " writes to memory that others see, which the replacement would not";
      }
    }
    return "";
  }

  // Nor must what the replacement writes to.
  std::string checkReplacement() {
    for (const Value* input : rule_.replacement->inputs()) {
      const auto found = named_.find(inputName(input));
      for (const Node* writer : within_.writersOf(input)) {
        if (found == named_.end() || !trains(writer)) {
          continue;
        }
        for (const Value* operand : match_.operandsOf(found->second)) {
          if (!aliases_.onlyWithin(operand, inside_, point_)) {
            return describe(writer) + " of the replacement writes to memory that others see";
          }
        }
      }
    }
    return "";
  }

  // A normalization writes to its statistics if it trains, which the match may know.
  bool trains(const Node* writer) const {
    if (writer->kind() != c10::aten::batch_norm && writer->kind() != c10::aten::instance_norm) {
      return true;
    }
    std::vector<const Value*> operands;
    for (const Value* operand : writer->inputs()) {
      const bool bound = operand->node()->kind() == c10::prim::Param && named_.count(inputName(operand));
      if (!bound) {
        operands.push_back(operand);
        continue;
      }
      for (const Value* value : match_.operandsOf(named_.at(inputName(operand)))) {
        operands.push_back(value);
      }
    }
    return operands.size() <= kTraining || constantNumber(operands[kTraining]) != 0.0;
  }

  // A result that the pattern writes to must not have been read before that.
  std::string checkUses() {
    for (const Value* output : rule_.pattern.graph->outputs()) {
      const Value* result = match_.values.at(output);
      for (const Node* writer : aliases_.writersOf(result)) {
        for (const auto& use : result->uses()) {
          if (inside_.count(writer) && !inside_.count(use.user) && use.user->isBefore(writer)) {
            return describe(use.user) + " reads a result before " + describe(writer) + " writes to it";
          }
        }
      }
    }
    return "";
  }

  // A result that shares memory with an operand or another result, before or after, must not be written
  // to; where nobody else sees the operand, it does not matter.
  std::string checkResults() {
    const auto outputs = rule_.pattern.graph->outputs();
    const auto replacements = rule_.replacement->outputs();
    std::vector<const Value*> seen;
    std::copy_if(inputs_.begin(), inputs_.end(), std::back_inserter(seen), [&](const Value* input) {
      return !aliases_.onlyWithin(input, inside_, point_);
    });
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Value* result = match_.values.at(outputs[i]);
      bool shares = std::any_of(
          seen.begin(), seen.end(), [&](const Value* input) { return aliases_.mayAlias(result, input); });
      for (const Value* input : rule_.replacement->inputs()) {
        shares |= sees(input, seen) && within_.mayAlias(replacements[i], input);
      }
      for (size_t j = 0; j < outputs.size(); ++j) {
        shares |= j != i && (aliases_.mayAlias(result, match_.values.at(outputs[j])) ||
                             within_.mayAlias(replacements[i], replacements[j]));
      }
      if (!shares) {
        continue;
      }
      auto writers = aliases_.writersOf(result);
      for (const Value* input : inputs_) {
        const auto more = aliases_.writersOf(input);
        writers.insert(writers.end(), more.begin(), more.end());
      }
      const bool in_loop = point_->owningBlock()->owningNode() != nullptr;
      for (const Node* writer : writers) {
        if (!inside_.count(writer) && (in_loop || !writer->isBefore(point_))) {
          return describe(writer) + " writes to memory that the result shares with an operand, " +
                 "in the model or in the replacement";
        }
      }
    }
    return "";
  }

  // Whether an input of the replacement is among these values; computed ones are attributes, seen by all.
  bool sees(const Value* input, const std::vector<const Value*>& values) const {
    const auto found = named_.find(inputName(input));
    if (found == named_.end()) {
      return true;
    }
    const auto operands = match_.operandsOf(found->second);
    return std::any_of(operands.begin(), operands.end(), [&](const Value* operand) {
      return std::find(values.begin(), values.end(), operand) != values.end();
    });
  }

  AliasClasses& aliases_;
  const Rule& rule_;
  const Match& match_;
  const Node* point_;
  AliasClasses within_; // of the replacement
  NodeSet inside_;
  std::unordered_map<std::string, const Value*> named_;
  std::vector<const Value*> inputs_;
};

// Only where something writes, in the model or in what rules put there.
std::optional<AliasClasses> aliasesOf(PassContext& context, const std::vector<const Rule*>& rules) {
  const bool writes =
      anyMayWrite(*context.graph()) ||
      std::any_of(rules.begin(), rules.end(), [](auto* rule) { return anyMayWrite(*rule->replacement); });
  if (!writes) {
    return std::nullopt;
  }
  return AliasClasses(*context.graph(), context.hasModule() ? &context.module() : nullptr);
}

class Replacer {
 public:
  Replacer(PassContext& context, const Rule& rule, const Match& match, Node* point)
      : context_(context),
        rule_(rule),
        match_(match),
        point_(point),
        principal_(match.principal(rule.pattern)),
        kinds_(kindsOf(rule, match)) {
    for (const Value* input : rule.pattern.graph->inputs()) {
      if (input->hasUses()) {
        named_[inputName(input)] = input;
      }
    }
    for (const auto& [wanted, node] : match.nodes) {
      alive_.insert(node);
    }
  }

  // Returns the new nodes; the matched ones are destroyed.
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
      Value* result = values_.at(rule_.replacement->outputs().at(i));
      const auto made = c10::unshapedType(result->type()), wanted = c10::unshapedType(old->type());
      TORCH_CHECK(
          made->isSubtypeOf(*wanted) || wanted->isSubtypeOf(*made), "the replacement of rule '", rule_.name,
          "' gives ", made->annotation_str(), " at ", describe(principal_), ", where ",
          wanted->annotation_str(), " is used");
      if (made_set_.count(result->node())) {
        result->setType(old->type());
      }
      if (aliases != nullptr) {
        aliases->replace(old, result);
      }
      old->replaceAllUsesWith(result);
    }
    destroyMatched(aliases, on_destroy);
    return std::move(made_);
  }

 private:
  void bindInputs() {
    auto computed = rule_.compute && !rule_.computed.empty()
                        ? rule_.compute(MatchView{match_, rule_.pattern, context_})
                        : std::unordered_map<std::string, Computed>();
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
        const auto value = computed.find(name);
        TORCH_CHECK(
            value != computed.end(), "rule '", rule_.name, "': compute gave no value for '", name,
            "', which the replacement needs");
        values_[input] = insert(name, value->second);
      }
    }
  }

  // Where a whole number was matched as a float, the replacement gets a float.
  Value* asTyped(const Value* input, Value* value) {
    const auto number = constantNumber(value);
    if (!number || input->type()->kind() != c10::TypeKind::FloatType ||
        value->type()->kind() != c10::TypeKind::IntType) {
      return value;
    }
    Value* converted = insertConstant(point_, *number);
    made_.push_back(converted->node());
    return converted;
  }

  Value* insert(const std::string& name, const Computed& computed) {
    if (!computed.value.isTensor()) {
      Value* value = insertConstant(point_, computed.value);
      made_.push_back(value->node());
      return value;
    }
    const auto path = addTensorAttribute(
        context_.module(), moduleOf(principal_).first, attributeName(name), computed.value.toTensor(),
        computed.parameter);
    Value* value = readAttribute(*context_.graph(), point_, path);
    for (Value* part = value; part->node()->kind() == c10::prim::GetAttr; part = part->node()->input()) {
      made_.push_back(part->node());
    }
    return value;
  }

  static std::string attributeName(std::string name) { // IR text has names like %w.1
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
  }

  void emit(const Node* node) {
    std::vector<Value*> operands;
    for (const Value* input : node->inputs()) {
      if (isRest(input)) {
        const auto& rest = rests_.at(input);
        operands.insert(operands.end(), rest.begin(), rest.end());
      } else {
        operands.push_back(values_.at(input));
      }
    }
    const auto kind = kinds_.find(node->kind());
    Graph& graph = *context_.graph();
    Node* made = nullptr;
    if (!node->blocks().empty()) {
      made = graph.createClone(const_cast<Node*>(node), [&](Value* value) { return values_.at(value); });
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
    const auto* schema = made->maybeSchema(); // knows types that IR text cannot spell
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
    for (bool any = true; any;) { // from the last up: each one's uses are gone by then
      any = false;
      for (auto it = alive_.begin(); it != alive_.end();) {
        Node* node = *it;
        const bool used = std::any_of(
            node->outputs().begin(), node->outputs().end(),
            [](const Value* output) { return output->hasUses(); });
        if (used) {
          ++it;
          continue;
        }
        it = alive_.erase(it);
        if (aliases != nullptr) {
          aliases->remove(node);
        }
        on_destroy(node);
        node->destroy();
        any = true;
      }
    }
  }

  PassContext& context_;
  const Rule& rule_;
  const Match& match_;
  Node* point_;
  Node* principal_;
  std::unordered_map<std::string, const Value*> named_;
  std::unordered_map<const Value*, Value*> values_;
  std::unordered_map<const Value*, std::vector<Value*>> rests_;
  AliasClasses::Kinds kinds_;
  std::unordered_set<Node*> alive_; // the matched nodes that are not destroyed yet
  std::vector<Node*> made_;
  NodeSet made_set_;
};

using RulesByAnchor = std::unordered_map<c10::Symbol, std::vector<const Rule*>>;

RulesByAnchor indexByAnchor(const Rules& rules) {
  RulesByAnchor index;
  for (const auto& rule : rules) {
    const auto kind = rule->pattern.anchor()->kind();
    const auto found = rule->pattern.alternatives.find(kind);
    if (found == rule->pattern.alternatives.end()) {
      index[kind].push_back(rule.get());
    } else {
      for (const auto alternative : found->second) {
        index[alternative].push_back(rule.get());
      }
    }
  }
  return index;
}

// Which rules made a node, one out of the other's result: what a cycle is found by.
struct Origin {
  const Rule* rule;
  std::shared_ptr<const Origin> parent;
  size_t length;

  Origin(const Rule* rule, std::shared_ptr<const Origin> parent, size_t length)
      : rule(rule), parent(std::move(parent)), length(length) {}
  Origin(const Origin&) = delete;
  Origin& operator=(const Origin&) = delete;
  ~Origin() { // step by step: a chain is as long as the graph, and the stack is not
    for (auto next = std::move(parent); next && next.use_count() == 1;) {
      next = std::move(std::const_pointer_cast<Origin>(next)->parent);
    }
  }
};

class Rewriter {
 public:
  Rewriter(PassContext& context, const Rules& rules)
      : context_(context), graph_(context.graph()), index_(indexByAnchor(rules)), names_(nodeNames(*graph_)) {
    for (const auto& rule : rules) {
      reach_ = std::max(reach_, rule->pattern.nodes().size());
    }
    std::vector<const Rule*> all;
    std::transform(
        rules.begin(), rules.end(), std::back_inserter(all), [](const auto& r) { return r.get(); });
    aliases_ = aliasesOf(context, all);
    forEachNode(*graph_, [&](Node*) { ++bound_; });
  }

  std::vector<Rewrite> run() {
    // What a rewrite makes is looked at again right away; the last walk, which finds nothing, shows
    // that a further run would not either.
    for (bool changed = true; changed;) {
      changed = false;
      refused_.clear();
      std::vector<Node*> nodes;
      forEachNode(*graph_, [&](Node* node) {
        nodes.push_back(node);
        present_.insert(node);
      });
      std::deque<Node*> queue(nodes.begin(), nodes.end());
      while (!queue.empty()) {
        Node* node = queue.front();
        queue.pop_front();
        if (present_.count(node) && visit(node)) {
          changed = true;
          queue.insert(queue.begin(), again_.begin(), again_.end());
          again_.clear();
        }
      }
    }
    done_.insert(done_.end(), refused_.begin(), refused_.end());
    return std::move(done_);
  }

 private:
  bool visit(Node* node) {
    const auto candidates = index_.find(node->kind());
    if (candidates == index_.end()) {
      return false;
    }
    for (const Rule* rule : candidates->second) {
      const auto match = matchAt(rule->pattern, node);
      if (!match || (!rule->repeat && isOf(*match, rule))) {
        continue;
      }
      Node* principal = match->principal(rule->pattern);
      Rewrite record{rule->name, nameOf(principal), sourceLine(principal), ""};
      const auto placement = placementOf(*match, rule->pattern);
      if (auto reason = refusal(*rule, *match, placement)) {
        record.refused = *reason;
        refused_.push_back(record);
        continue;
      }
      apply(*rule, *match, *placement);
      done_.push_back(record);
      return true;
    }
    return false;
  }

  std::optional<std::string> refusal(
      const Rule& rule, const Match& match, const std::optional<Placement>& placement) {
    if (!placement) {
      return kNoPlace;
    }
    if (rule.check) {
      if (auto reason = rule.check(MatchView{match, rule.pattern, context_})) {
        return reason;
      }
    }
    return aliases_ ? AliasCheck(*aliases_, rule, match, placement->point).refusal() : std::nullopt;
  }

  void apply(const Rule& rule, const Match& match, const Placement& placement) {
    auto origin = std::make_shared<Origin>(&rule, nullptr, 1);
    std::vector<Value*> operands;
    for (const Node* wanted : rule.pattern.nodes()) {
      Node* node = match.nodes.at(wanted);
      const auto made_by = origins_.find(node);
      if (made_by != origins_.end() && made_by->second->length >= origin->length) {
        origin = std::make_shared<Origin>(&rule, made_by->second, made_by->second->length + 1);
      }
      operands.insert(operands.end(), node->inputs().begin(), node->inputs().end());
    }
    TORCH_CHECK(
        origin->length <= bound_, "rules rewrite each other's results without end at ",
        describe(match.principal(rule.pattern)), ": ", cycleOf(*origin),
        "; give one of them a check that refuses what another one makes, or repeat=False, so that it "
        "leaves alone what it has made itself");
    const auto name = nameOf(match.principal(rule.pattern));
    const auto forget = [&](Node* node) {
      present_.erase(node);
      origins_.erase(node);
      names_.erase(node);
      for (const Value* output : node->outputs()) {
        std::erase(operands, output);
      }
    };
    for (Node* hoisted : placement.hoisted) {
      if (hoisted->isAfter(placement.point)) {
        hoisted->moveBefore(placement.point);
      }
    }
    const auto made =
        Replacer(context_, rule, match, placement.point).run(aliases_ ? &*aliases_ : nullptr, forget);
    NodeSet seen;
    for (Node* node : made) {
      present_.insert(node);
      origins_[node] = origin;
      names_.emplace(node, name);
      lookAgain(node, seen, reach_);
    }
    for (Value* operand : operands) { // one use less may let another rule match
      if (!isConstant(operand) && operand->node()->kind() != c10::prim::Param &&
          operand->node()->kind() != c10::prim::GetAttr) {
        lookAgain(operand->node(), seen, reach_);
      }
    }
  }

  // The node and those that a pattern could reach it from.
  void lookAgain(Node* node, NodeSet& seen, size_t distance) {
    if (!seen.insert(node).second) {
      return;
    }
    again_.push_back(node);
    for (Value* output : distance > 1 ? node->outputs() : at::ArrayRef<Value*>()) {
      if (isConstant(output) || output->uses().size() > kManyUses) {
        continue;
      }
      for (const auto& use : output->uses()) {
        if (use.user->kind() != c10::prim::Return) {
          lookAgain(use.user, seen, distance - 1);
        }
      }
    }
  }

  std::string nameOf(const Node* node) const {
    const auto found = names_.find(node);
    return found == names_.end() ? "" : found->second;
  }

  // Whether one of the matched nodes was made by the rule, or out of what it made.
  bool isOf(const Match& match, const Rule* rule) const {
    return std::any_of(match.nodes.begin(), match.nodes.end(), [&](const auto& matched) {
      const auto found = origins_.find(matched.second);
      const Origin* origin = found == origins_.end() ? nullptr : found->second.get();
      while (origin != nullptr && origin->rule != rule) {
        origin = origin->parent.get();
      }
      return origin != nullptr;
    });
  }

  // "'a' -> 'b' -> 'a'": the shortest repetition at the end of the chain.
  static std::string cycleOf(const Origin& last) {
    std::vector<const Rule*> chain;
    for (const Origin* origin = &last; origin != nullptr; origin = origin->parent.get()) {
      chain.push_back(origin->rule);
    }
    size_t period = 1;
    const auto repeats = [&] {
      for (size_t i = 0; i + period < chain.size(); ++i) {
        if (chain[i] != chain[i + period]) {
          return false;
        }
      }
      return true;
    };
    while (period + 1 < chain.size() && !repeats()) {
      ++period;
    }
    std::string text;
    for (size_t i = std::min(period, chain.size() - 1) + 1; i-- > 0;) {
      text += (text.empty() ? "'" : " -> '") + chain[i]->name + "'";
    }
    return text;
  }

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  RulesByAnchor index_;
  NodeNames names_;
  std::optional<AliasClasses> aliases_;
  size_t reach_ = 1;   // no pattern has more nodes
  size_t bound_ = 100; // of a chain of rewrites: one that only shrinks the graph is shorter
  std::unordered_set<const Node*> present_;
  std::unordered_map<const Node*, std::shared_ptr<const Origin>> origins_;
  std::vector<Rewrite> refused_; // by the last walk, which meets every node once
  std::vector<Node*> again_;
  std::vector<Rewrite> done_;
};

} // namespace

std::optional<c10::IValue> MatchView::known(const Value* input) const {
  const auto found = match.values.find(input);
  if (found == match.values.end()) {
    return std::nullopt;
  }
  if (isConstant(found->second)) {
    return torch::jit::toIValue(found->second);
  }
  return context.hasModule() ? attributeOf(context.module(), found->second) : std::nullopt;
}

Rule::Rule(std::string name, Pattern pattern, std::shared_ptr<Graph> replacement)
    : name(std::move(name)), pattern(std::move(pattern)), replacement(std::move(replacement)) {
  checkReplacement();
  std::unordered_set<std::string> known;
  for (const Value* input : this->pattern.graph->inputs()) {
    if (input->hasUses()) { // others stand for nothing
      known.insert(inputName(input));
    }
  }
  for (const Value* input : this->replacement->inputs()) {
    if (input->hasUses() && !known.count(inputName(input))) {
      TORCH_CHECK(
          !isRest(input), "the pattern passes on no operands %", inputName(input),
          ", which the replacement passes on");
      computed.push_back(inputName(input));
    }
  }
}

void Rule::checkReplacement() {
  TORCH_CHECK(
      replacement->outputs().size() == pattern.graph->outputs().size(), "the pattern returns ",
      pattern.graph->outputs().size(), " values and the replacement ", replacement->outputs().size());
  checkRests(*replacement);
  forEachNode(*replacement, [&](const Node* node) {
    TORCH_CHECK(
        node->owningBlock() == replacement->block() || !pattern.alternatives.count(node->kind()),
        "a name with alternatives cannot stand in a branch or loop of the replacement");
  });
  for (const Node* node : replacement->nodes()) {
    TORCH_CHECK(
        node->kind() != c10::prim::CallFunction && node->kind() != c10::prim::CallMethod, describe(node),
        " cannot be part of a replacement: it calls what cannot be inlined");
    // A name with alternatives stands for what the pattern's node of that name was: there must be one.
    if (pattern.alternatives.count(node->kind())) {
      const auto times = std::count_if(
          pattern.nodes().begin(), pattern.nodes().end(),
          [&](const Node* wanted) { return wanted->kind() == node->kind(); });
      TORCH_CHECK(
          times > 0, "the replacement has ", node->kind().toQualString(),
          ", and no operator of the pattern says which of its alternatives it is");
      TORCH_CHECK(
          times == 1, "the pattern has ", node->kind().toQualString(), " ", times,
          " times, so the replacement's could be any of them: give them different names, match::a and "
          "match::b");
    }
  }
}

std::vector<Rewrite> rewrite(PassContext& context, const Rules& rules) {
  return Rewriter(context, rules).run();
}

std::vector<Explanation> explain(PassContext& context, const Rule& rule) {
  const auto graph = context.graph();
  const auto names = nodeNames(*graph);
  auto aliases = aliasesOf(context, {&rule});
  std::vector<Explanation> result;
  forEachNode(*graph, [&](Node* node) {
    if (!rule.pattern.mayAnchorAt(node->kind())) {
      return;
    }
    NearMiss miss;
    const auto match = matchAt(rule.pattern, node, &miss);
    if (match) {
      const auto placement = placementOf(*match, rule.pattern);
      miss.matched = match->nodes.size();
      if (!placement) {
        miss.reason = kNoPlace;
      } else {
        auto reason = rule.check ? rule.check(MatchView{*match, rule.pattern, context}) : std::nullopt;
        if (!reason && aliases) {
          reason = AliasCheck(*aliases, rule, *match, placement->point).refusal();
        }
        miss.reason = reason.value_or("");
      }
    }
    const auto found = names.find(node);
    result.push_back(
        {found == names.end() ? "" : found->second, sourceLine(node), miss.matched, miss.reason});
  });
  std::stable_sort(result.begin(), result.end(), [](const Explanation& a, const Explanation& b) {
    return std::pair(a.matched, a.reason.empty()) > std::pair(b.matched, b.reason.empty());
  });
  return result;
}

} // namespace jit_passes
