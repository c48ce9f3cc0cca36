#include "pattern_text.h"

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
    if (value->node()->kind() == prim::Param && !value->hasDebugName()) {
      value->setDebugName("#" + name);
    }
  }
  return graph;
}

// An operator that gives fewer results than a line takes.
constexpr const char* kTooManyResults = "out of bounds access";

// The first line that, with all before it, is not read, for errors that do not say where they are.
std::string firstBadLine(const std::string& ir, const char* message) {
  std::string so_far;
  for (const std::string& line : split(ir)) {
    so_far += line + "\n";
    try {
      parse(so_far + "  return ()\n");
    } catch (const std::exception& error) {
      if (std::string(error.what()).find(message) != std::string::npos) {
        return line;
      }
    }
  }
  return ir;
}

// The inputs in a header, each with its type: "%x : Tensor", "%w".
std::vector<std::string> inputsIn(const std::string& header) {
  std::vector<std::string> inputs(header.find('%') == std::string::npos ? 0 : 1);
  int depth = 0;
  for (const char c : header) {
    depth += c == '(' || c == '[' ? 1 : c == ')' || c == ']' ? -1 : 0;
    if (c == ',' && depth == 0 && !inputs.empty()) {
      inputs.emplace_back();
    } else if (!inputs.empty()) {
      inputs.back() += c;
    }
  }
  return inputs;
}

// PyTorch's parser takes an input without a type for a tensor, and picks an overload by that: of
// aten::max(%x, %dim, %keepdim) one with a single result. With inputs of any type it picks none.
std::shared_ptr<Graph> parseUntyped(const std::string& ir) {
  const std::string header = headerOf(ir);
  const auto typed = typedInputs(ir);
  std::vector<std::string> inputs = inputsIn(header);
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] += typed[i] ? "" : " : Any";
  }
  std::string text = ir;
  return parse(text.replace(ir.find('(') + 1, header.size(), c10::Join(",", inputs)));
}

// The graph of a text with a line that takes too many results for the overload that PyTorch's parser picked.
std::shared_ptr<Graph> parseSeveralResults(const std::string& ir) {
  try {
    return parseUntyped(ir);
  } catch (const std::exception& error) {
    const bool several = std::string(error.what()).find(kTooManyResults) != std::string::npos;
    TORCH_CHECK(
        !several, "this line takes more results than the operator gives:\n  ",
        firstBadLine(ir, kTooManyResults));
    throw;
  }
}

void checkResults(const Node* node) {
  const auto& known = torch::jit::getAllOperatorsFor(node->kind());
  if (known.empty()) {
    std::string hint;
    for (const auto symbol : torch::jit::findSimilarOperators(node->kind())) {
      hint += (hint.empty() ? "; there is " : ", ") + std::string(symbol.toQualString());
    }
    TORCH_CHECK(false, "there is no operator ", node->kind().toQualString(), hint);
  }
  const size_t taken = node->outputs().size();
  const bool gives = std::ranges::any_of(known, [&](const auto& op) {
    return op->schema().is_varret() || op->schema().returns().size() == taken;
  });
  if (!gives) {
    std::string overloads;
    for (const auto& op : known) {
      overloads += "\n  " + toString(op->schema());
    }
    TORCH_CHECK(
        false, taken, " results are taken of ", node->kind().toQualString(),
        ", which gives another number:", overloads);
  }
}

} // namespace

std::vector<bool> typedInputs(const std::string& ir) {
  std::vector<bool> typed;
  for (const std::string& input : inputsIn(headerOf(ir))) {
    typed.push_back(input.find(':') != std::string::npos);
  }
  return typed;
}

std::shared_ptr<Graph> readGraph(const std::string& ir, const Alternatives& alternatives) {
  checkNamesAreNew(ir);
  std::shared_ptr<Graph> graph;
  try {
    graph = parse(ir);
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
    const char* assertion = "INTERNAL ASSERT";
    TORCH_CHECK(
        text.find(assertion) == std::string::npos, "this line cannot be read:\n  ",
        firstBadLine(ir, assertion));
    TORCH_CHECK(text.find(kTooManyResults) != std::string::npos, text);
    graph = parseSeveralResults(ir);
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
    checkResults(node);
  });
  return graph;
}

} // namespace jit_passes
