// The attribute's lines: the method; path and type of each module, "layer1.0.conv1(Conv2d)"; an empty line; and one
// line for each kind of operator, "aten::conv2d 1 3 4". Its numbers are the modules of the nodes of this kind in
// program order, 0 for the root.
#include "kept_modules.h"

#include "calls.h"

namespace jit_passes {
namespace {

// Whether a file keeps the number of nodes of this kind. A file repeats constants and attributes wherever they are
// read, and writes constant lists as lists of numbers.
bool isKept(const Node* node) {
  const auto isLiteral = [](const Value* value) { return isConstant(value) && !isTensor(value); };
  return node->kind() != prim::Constant && node->kind() != prim::GetAttr &&
         !(node->kind() == prim::ListConstruct && std::ranges::all_of(node->inputs(), isLiteral));
}

using Numbers = std::map<std::string, std::vector<size_t>>;

// Nodes of a module share their call stack, so each stack is looked into once.
class Modules {
 public:
  size_t of(const Node* node) {
    const auto stack = node->callstack();
    if (!stack) {
      return 0;
    }
    const auto [found, is_new] = numbers_.try_emplace(stack->get(), 0);
    if (is_new) {
      const auto [path, type] = moduleOf(node);
      found->second = path.empty() ? 0 : numberOf(path + "(" + type + ")");
    }
    return found->second;
  }

  const std::vector<std::string>& known() const { return known_; }

 private:
  size_t numberOf(const std::string& module) {
    const auto [found, is_new] = by_text_.try_emplace(module, known_.size() + 1);
    if (is_new) {
      known_.push_back(module);
    }
    return found->second;
  }

  std::vector<std::string> known_;
  std::unordered_map<std::string, size_t> by_text_;
  std::unordered_map<const torch::jit::InlinedCallStack*, size_t> numbers_;
};

std::string textOf(const std::string& method, const std::vector<std::string>& modules, const Numbers& kinds) {
  std::ostringstream text;
  text << method << '\n';
  for (const auto& module : modules) {
    text << module << '\n';
  }
  for (const auto& [kind, numbers] : kinds) {
    if (std::ranges::any_of(numbers, [](size_t number) { return number > 0; })) {
      text << '\n' << kind;
      std::ranges::for_each(numbers, [&](size_t number) { text << ' ' << number; });
    }
  }
  return text.str();
}

bool hasStacks(Graph& graph) {
  return !nodesWhere(graph, [](const Node* node) { return isKept(node) && node->callstack(); }).empty();
}

} // namespace

void keepModules(Module& module, const std::string& method) {
  Modules modules;
  Numbers kinds;
  const auto graph = inlinedGraph(module, method);
  for (const Node* node : nodesWhere(*graph, isKept)) {
    kinds[node->kind().toQualString()].push_back(modules.of(node));
  }
  if (modules.known().empty()) {
    return; // the graph of a loaded module: its attribute is still true
  }
  const auto text = textOf(method, modules.known(), kinds);
  if (module.hasattr(kKeptModules)) {
    module.setattr(kKeptModules, text);
  } else {
    module.register_attribute(kKeptModules, c10::StringType::get(), text);
  }
}

void restoreModules(const Module& module, const std::string& method, Graph& graph) {
  const auto kept = module.hasattr(kKeptModules) ? module.attr(kKeptModules) : c10::IValue();
  if (!kept.isString() || hasStacks(graph)) {
    return;
  }
  std::istringstream text(kept.toStringRef());
  std::string line;
  if (!std::getline(text, line) || line != method) {
    return;
  }
  std::vector<torch::jit::InlinedCallStackPtr> stacks;
  while (std::getline(text, line) && !line.empty()) {
    stacks.push_back(stackWithin(line));
  }
  std::unordered_map<std::string, std::vector<Node*>> nodes;
  for (Node* node : nodesWhere(graph, isKept)) {
    nodes[node->kind().toQualString()].push_back(node);
  }
  while (std::getline(text, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    const std::vector<size_t> numbers{std::istream_iterator<size_t>(words), {}};
    const auto& found = nodes[kind];
    for (size_t i = 0; numbers.size() == found.size() && i < found.size(); ++i) {
      if (numbers[i] > 0 && numbers[i] <= stacks.size()) {
        found[i]->setCallStack(stacks[numbers[i] - 1]);
      }
    }
  }
}

} // namespace jit_passes
