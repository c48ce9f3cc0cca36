#include "pattern.h"

namespace jit_passes {
namespace {

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
  // The nodes that the results need, going up, and the users of these, going down.
  std::unordered_set<const Node*> reached{anchor_};
  for (bool grew = true; grew;) {
    grew = false;
    for (const Node* node : nodes_) {
      for (const Value* input : node->inputs()) {
        const Node* maker = input->node();
        const bool through_input = maker->kind() == c10::prim::Param;
        const bool linked =
            through_input
                ? std::ranges::any_of(input->uses(), [&](const auto& use) { return reached.count(use.user); })
                : maker->kind() != c10::prim::Constant && (reached.count(maker) || reached.count(node));
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
    const bool used =
        std::ranges::any_of(node->outputs(), [](const Value* output) { return output->hasUses(); });
    TORCH_CHECK(used, "the pattern does not use the result of ", describe(node), ":\n", graph->toString());
  }
}

bool Pattern::mayBe(const Node* wanted, c10::Symbol kind) const {
  const auto found = alternatives.find(wanted->kind());
  return found == alternatives.end() ? wanted->kind() == kind : found->second.count(kind) > 0;
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
