#include "matcher.h"

#include "alias.h"
#include "operators.h"

namespace jit_passes {
namespace {

class Matcher {
 public:
  Matcher(const Pattern& pattern, Node* anchor, NearMiss* miss)
      : pattern_(pattern), anchor_(anchor), miss_(miss) {}

  std::optional<Match> run() {
    if (matchNode(pattern_.anchor(), anchor_) && matchOthers()) {
      return std::move(match_);
    }
    return std::nullopt;
  }

 private:
  // Of all failures the one that came furthest is kept; the text is made only when asked for.
  template <typename Reason>
  bool fail(Reason reason) {
    if (miss_ != nullptr && (miss_->reason.empty() || match_.nodes.size() > miss_->matched)) {
      miss_->matched = match_.nodes.size();
      miss_->reason = reason();
    }
    return false;
  }

  bool matchNode(const Node* wanted, Node* node) {
    if (const auto known = match_.nodes.find(wanted); known != match_.nodes.end()) {
      return known->second == node || fail([&] {
               return describe(node) + " stands where " + describe(known->second) + " was matched";
             });
    }
    if (!pattern_.mayBe(wanted, node->kind())) {
      return fail([&] { return "it has " + describe(node) + " where the pattern has " + nameOf(wanted); });
    }
    if (node->owningBlock() != anchor_->owningBlock()) {
      return fail([&] { return describe(node) + " stands in another block"; });
    }
    if (wanted->outputs().size() != node->outputs().size() || !node->blocks().empty()) {
      return fail([&] { return describe(node) + " has another number of results than the pattern"; });
    }
    if (taken(node) && (node->isNondeterministic() || mayWrite(node))) {
      return fail([&] { return describe(node) + " cannot stand for two operators of the pattern"; });
    }
    match_.nodes.emplace(wanted, node);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      match_.values.emplace(wanted->output(i), node->output(i));
    }
    return matchOperands(wanted, node);
  }

  bool matchOperands(const Node* user, Node* node) {
    const auto wanted = user->inputs();
    const auto operands = node->inputs();
    const bool rest = !wanted.empty() && isRest(wanted.back());
    const size_t count = wanted.size() - (rest ? 1 : 0);
    if (rest ? operands.size() < count : operands.size() != count) {
      return fail([&] {
        return describe(node) + " has " + std::to_string(operands.size()) +
               " operands where the pattern has " + (rest ? "at least " : "") + std::to_string(count);
      });
    }
    for (size_t i = 0; i < count; ++i) {
      if (!matchValue(wanted[i], operands[i], node, i)) {
        return false;
      }
    }
    if (!rest) {
      return true;
    }
    const auto tail = operands.slice(count).vec();
    const auto [known, inserted] = match_.rests.emplace(wanted.back(), tail);
    return inserted || known->second == tail ||
           fail([&] { return describe(node) + " has other remaining operands"; });
  }

  bool matchValue(const Value* wanted, Value* value, const Node* user, size_t operand) {
    const auto place = [&] { return "operand " + std::to_string(operand) + " of " + describe(user); };
    if (const auto known = match_.values.find(wanted); known != match_.values.end()) {
      return known->second == value || sameConstant(known->second, value) ||
             fail([&] { return place() + " is not the %" + inputName(wanted) + " matched before"; });
    }
    if (wanted->node()->kind() == c10::prim::Param) {
      if (pattern_.isTyped(wanted) && !fitsType(wanted, value)) {
        return fail([&] {
          return place() + " is of type " + value->type()->annotation_str() + ", not " +
                 wanted->type()->annotation_str();
        });
      }
      match_.values.emplace(wanted, value);
      return true;
    }
    if (isConstant(wanted)) {
      const bool both_none = isNone(wanted) && isNone(value);
      match_.values.emplace(wanted, value);
      return both_none || sameConstant(wanted, value) || fail([&] {
               return place() + " is " + textOf(value) + ", not " + textOf(const_cast<Value*>(wanted));
             });
    }
    if (value->node()->kind() == c10::prim::Param) {
      return fail(
          [&] { return place() + " is an argument where the pattern has " + nameOf(wanted->node()); });
    }
    if (wanted->offset() != value->offset()) {
      return fail([&] { return place() + " is another result of " + describe(value->node()); });
    }
    return matchNode(wanted->node(), value->node());
  }

  // A whole number counts as a float, as it does in PyTorch's operators.
  static bool fitsType(const Value* wanted, const Value* value) {
    return value->type()->isSubtypeOf(*wanted->type()) ||
           (isConstant(value) && wanted->type()->kind() == c10::TypeKind::FloatType &&
            value->type()->kind() == c10::TypeKind::IntType);
  }

  // Nodes that no operand leads to: users of what has been matched, tried in program order.
  bool matchOthers() {
    const Node* missing = nullptr;
    for (const Node* wanted : pattern_.nodes()) {
      if (match_.nodes.count(wanted)) {
        continue;
      }
      missing = wanted;
      for (size_t i = 0; i < wanted->inputs().size(); ++i) {
        const auto bound = match_.values.find(wanted->input(i));
        if (bound != match_.values.end() && !isConstant(bound->second)) {
          return tryUsers(wanted, bound->second, i);
        }
      }
    }
    if (missing != nullptr) {
      return false; // not connected: Pattern refuses these
    }
    return interiorStaysInside();
  }

  bool tryUsers(const Node* wanted, Value* value, size_t operand) {
    std::vector<Node*> users;
    for (const auto& use : value->uses()) {
      if (use.offset == operand && use.user->owningBlock() == anchor_->owningBlock() && !taken(use.user)) {
        users.push_back(use.user);
      }
    }
    std::sort(users.begin(), users.end(), [](Node* a, Node* b) { return a->isBefore(b); });
    if (users.empty()) {
      return fail([&] { return "no further user of the value fits " + nameOf(wanted); });
    }
    const Match saved = match_;
    for (Node* user : users) {
      if (matchNode(wanted, user) && matchOthers()) {
        return true;
      }
      match_ = saved;
    }
    return false;
  }

  bool taken(const Node* node) const {
    return std::any_of(
        match_.nodes.begin(), match_.nodes.end(), [&](const auto& pair) { return pair.second == node; });
  }

  static bool sameConstant(const Value* a, const Value* b) {
    if (!isConstant(a) || !isConstant(b)) {
      return false;
    }
    const auto left = torch::jit::toIValue(a), right = torch::jit::toIValue(b);
    if (!left || !right || left->isTensor() != right->isTensor()) {
      return false;
    }
    if (left->isTensor()) {
      return left->toTensor().is_same(right->toTensor());
    }
    // An operator takes 0 where it takes 0.0: clamp(x, 0, 6) and clamp(x, 0., 6.) are the same.
    if (left->isInt() && right->isInt()) {
      return left->toInt() == right->toInt();
    }
    const auto left_number = constantNumber(a), right_number = constantNumber(b);
    return left_number && right_number ? *left_number == *right_number : *left == *right;
  }

  std::string nameOf(const Node* wanted) const {
    const auto found = pattern_.alternatives.find(wanted->kind());
    if (found == pattern_.alternatives.end()) {
      return wanted->kind().toQualString();
    }
    std::set<std::string> names;
    for (const auto kind : found->second) {
      names.insert(kind.toQualString());
    }
    return c10::Join(" or ", std::vector<std::string>(names.begin(), names.end()));
  }

  static std::string textOf(const Value* value) {
    if (isNone(value)) {
      return "None";
    }
    const auto constant = isConstant(value) ? torch::jit::toIValue(value) : std::nullopt;
    if (!constant || constant->isTensor()) {
      return constant ? "a constant tensor" : "the result of " + describe(value->node());
    }
    std::ostringstream text;
    text << *constant;
    return text.str();
  }

  bool interiorStaysInside() {
    std::unordered_set<const Node*> inside;
    for (const auto& [wanted, node] : match_.nodes) {
      inside.insert(node);
    }
    std::unordered_set<const Value*> results;
    for (const Value* output : pattern_.graph->outputs()) {
      results.insert(match_.values.at(output));
    }
    for (const Value* input : pattern_.graph->inputs()) {
      const auto found = match_.values.find(input);
      if (found != match_.values.end() && results.count(found->second)) {
        return fail([&] {
          return "%" + inputName(input) + " would be the result of " + describe(found->second->node()) +
                 ", which is matched too";
        });
      }
    }
    for (const Node* wanted : pattern_.nodes()) {
      for (const Value* output : match_.nodes.at(wanted)->outputs()) {
        for (const auto& use : output->uses()) {
          if (!inside.count(use.user) && !results.count(output)) {
            return fail([&] {
              return "the result of " + describe(output->node()) + " is used by " + describe(use.user) +
                     " too";
            });
          }
        }
      }
    }
    return true;
  }

  const Pattern& pattern_;
  Node* anchor_;
  NearMiss* miss_;
  Match match_;
};

bool isWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

// Names of a line's left side, "%a : Tensor, %b = ..." gives a and b.
std::vector<std::string> namesIn(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = text.find('%'); at != std::string::npos; at = text.find('%', at + 1)) {
    size_t end = at + 1;
    while (end < text.size() && isWord(text[end])) {
      ++end;
    }
    names.push_back(text.substr(at + 1, end - at - 1));
  }
  return names;
}

// The text between the parentheses behind "graph", with all types.
std::string headerOf(const std::string& ir) {
  const size_t open = ir.find('(');
  int depth = 0;
  for (size_t at = open; at < ir.size(); ++at) {
    depth += ir[at] == '(' ? 1 : ir[at] == ')' ? -1 : 0;
    if (depth == 0) {
      return ir.substr(open + 1, at - open - 1);
    }
  }
  return "";
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

void checkNamesAreNew(const std::string& ir) {
  std::unordered_set<std::string> seen;
  const auto define = [&](const std::string& name, const std::string& line) {
    TORCH_CHECK(seen.insert(name).second, "%", name, " is defined twice, here again:\n  ", line);
  };
  for (const auto& name : namesIn(headerOf(ir))) {
    define(name, "graph(" + headerOf(ir) + ")");
  }
  for (const std::string& line : split(ir)) {
    const size_t equals = line.find(" = ");
    const size_t first = line.find_first_not_of(' ');
    if (equals != std::string::npos && first != std::string::npos && line[first] == '%') {
      for (const auto& name : namesIn(line.substr(0, equals))) {
        define(name, line);
      }
    }
  }
}

std::shared_ptr<Graph> parse(const std::string& ir) {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<std::string, Value*> names;
  torch::jit::parseIR(ir, graph.get(), names);
  for (const auto& [name, value] : names) { // PyTorch keeps no names that are numbers
    if (value->node()->kind() == c10::prim::Param && !value->hasDebugName()) {
      value->setDebugName("#" + name);
    }
  }
  return graph;
}

// The first line that, with all before it, is not read; for errors that do not say where they are.
std::string firstBadLine(const std::string& ir) {
  std::string so_far;
  for (const std::string& line : split(ir)) {
    so_far += line + "\n";
    try {
      parse(so_far + "  return ()\n");
    } catch (const std::exception& error) {
      if (std::string(error.what()).find("INTERNAL ASSERT") != std::string::npos) {
        return line;
      }
    }
  }
  return ir;
}

} // namespace

std::shared_ptr<Graph> readGraph(const std::string& ir, const Alternatives& alternatives) {
  checkNamesAreNew(ir);
  std::shared_ptr<Graph> graph;
  try {
    graph = parse(ir);
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
    TORCH_CHECK(
        text.find("INTERNAL ASSERT") == std::string::npos, "this line cannot be read:\n  ", firstBadLine(ir));
    TORCH_CHECK(false, text);
  }
  forEachNode(graph->block(), [&](Node* node) {
    const bool wildcard = alternatives.count(node->kind()) > 0;
    const auto space = std::string(node->kind().ns().toUnqualString());
    TORCH_CHECK(
        wildcard || space != "match", "the pattern has ", node->kind().toQualString(),
        ", and no alternatives are given for it");
    if (wildcard || space == "prim") {
      return;
    }
    const auto& known = torch::jit::getAllOperatorsFor(node->kind());
    if (known.empty()) {
      const auto similar = torch::jit::findSimilarOperators(node->kind());
      std::string hint;
      for (const auto symbol : similar) {
        hint += (hint.empty() ? "; there is " : ", ") + std::string(symbol.toQualString());
      }
      TORCH_CHECK(false, "there is no operator ", node->kind().toQualString(), hint);
    }
  });
  return graph;
}

Pattern::Pattern(const std::string& ir, Alternatives alternatives)
    : graph(readGraph(ir, alternatives)), alternatives(std::move(alternatives)) {
  const std::string header = headerOf(ir);
  size_t at = 0;
  for (const Value* input : graph->inputs()) {
    at = header.find('%', at) + 1;
    while (at < header.size() && (isWord(header[at]) || header[at] == ' ')) {
      ++at;
    }
    if (at < header.size() && header[at] == ':') {
      typed_.insert(input);
    }
  }
  check();
}

Pattern::Pattern(std::shared_ptr<Graph> graph, Alternatives alternatives)
    : graph(std::move(graph)), alternatives(std::move(alternatives)) {
  typed_.insert(this->graph->inputs().begin(), this->graph->inputs().end());
  check();
}

void Pattern::check() {
  for (const Node* node : graph->nodes()) {
    TORCH_CHECK(
        node->blocks().empty(), describe(node),
        " cannot be part of a pattern: branches and loops are not "
        "matched, what stands inside of them is");
    TORCH_CHECK(
        node->kind() != c10::prim::CallFunction && node->kind() != c10::prim::CallMethod, describe(node),
        " cannot be part of a pattern: it calls what cannot be inlined");
    if (node->kind() != c10::prim::Constant) {
      nodes_.push_back(node);
    }
  }
  checkRests(*graph);
  TORCH_CHECK(!nodes_.empty(), "a pattern needs at least one operator:\n", graph->toString());
  TORCH_CHECK(graph->outputs().size() > 0, "a pattern returns what it computes:\n", graph->toString());
  for (const Value* output : graph->outputs()) {
    TORCH_CHECK(
        output->node()->kind() != c10::prim::Param && !isConstant(output), "the pattern returns %",
        output->debugName(), ", which none of its operators computes:\n", graph->toString());
  }
  anchor_ = nodes_.back();
  // What the results need, going up, and what goes on from there, going down.
  std::unordered_set<const Node*> reached{anchor_};
  for (bool grew = true; grew;) {
    grew = false;
    for (const Node* node : nodes_) {
      for (const Value* input : node->inputs()) {
        const Node* maker = input->node();
        const bool through_input = maker->kind() == c10::prim::Param;
        const bool linked = through_input ? std::any_of(
                                                input->uses().begin(), input->uses().end(),
                                                [&](const auto& use) { return reached.count(use.user); })
                                          : maker->kind() != c10::prim::Constant &&
                                                (reached.count(maker) || reached.count(node));
        if (linked) {
          grew |= reached.insert(node).second;
          if (!through_input) {
            grew |= reached.insert(maker).second;
          }
        }
      }
    }
  }
  for (const Node* node : nodes_) {
    TORCH_CHECK(
        reached.count(node), describe(node), " of the pattern has no connection to its other nodes:\n",
        graph->toString());
    const bool used = std::any_of(node->outputs().begin(), node->outputs().end(), [](const Value* output) {
      return output->hasUses();
    });
    TORCH_CHECK(used, "the pattern does not use the result of ", describe(node), ":\n", graph->toString());
  }
}

bool Pattern::mayBe(const Node* wanted, c10::Symbol kind) const {
  const auto found = alternatives.find(wanted->kind());
  return found == alternatives.end() ? wanted->kind() == kind : found->second.count(kind) > 0;
}

std::vector<Value*> Match::operandsOf(const Value* input) const {
  if (const auto found = rests.find(input); found != rests.end()) {
    return found->second;
  }
  const auto found = values.find(input);
  return found == values.end() ? std::vector<Value*>() : std::vector<Value*>{found->second};
}

Node* Match::principal(const Pattern& pattern) const {
  for (const Node* wanted : pattern.nodes()) {
    Node* node = nodes.at(wanted);
    if (!isQuantization(node)) {
      return node;
    }
  }
  return nodes.at(pattern.anchor());
}

namespace {

// Most rules fail at the anchor's operands: looked at before anything is allocated.
bool cannotMatch(const Pattern& pattern, const Node* node) {
  if (!pattern.mayAnchorAt(node->kind())) {
    return true;
  }
  const auto wanted = pattern.anchor()->inputs();
  const auto operands = node->inputs();
  for (size_t i = 0; i < wanted.size() && i < operands.size(); ++i) {
    const Node* maker = wanted[i]->node();
    if (maker->kind() != c10::prim::Param && maker->kind() != c10::prim::Constant &&
        !pattern.mayBe(maker, operands[i]->node()->kind())) {
      return true;
    }
  }
  return false;
}

} // namespace

std::optional<Match> matchAt(const Pattern& pattern, Node* node, NearMiss* miss) {
  if (miss == nullptr && cannotMatch(pattern, node)) {
    return std::nullopt;
  }
  return Matcher(pattern, node, miss).run();
}

std::string inputName(const Value* input) {
  const auto name = input->debugName();
  return name.substr(name.rfind('#', 0) == 0 ? 1 : 0);
}

void checkRests(Graph& graph) {
  for (const Value* input : graph.inputs()) {
    for (const auto& use : input->uses()) {
      const bool last = use.user->kind() != c10::prim::Return && use.user->owningBlock() == graph.block() &&
                        use.user->blocks().empty() && use.offset + 1 == use.user->inputs().size();
      TORCH_CHECK(
          last || !isRest(input), "%", inputName(input),
          " stands for all further operands: it can only be the last operand of an operator, outside of "
          "branches and loops");
    }
  }
}

bool isRest(const Value* value) {
  return value->node()->kind() == c10::prim::Param && value->hasDebugName() &&
         value->debugName().rfind("rest", 0) == 0;
}

} // namespace jit_passes
