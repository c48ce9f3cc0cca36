#include "graph.h"

namespace jit_passes {
namespace {

class NodeFailure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string withoutBacktrace(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    return torch_error->what_without_backtrace();
  }
  return error.what();
}

// Path and type of the module whose method was called; nothing for free functions. In graphs that PyTorch inlined it
// is the last part of the path only. See calls.cpp.
std::optional<std::pair<std::string, std::string>> calledModule(const torch::jit::InlinedCallStack& call) {
  if (const auto module = call.module_instance()) {
    const auto name = module->instance_name();
    const bool known = module->class_type() && name != "SELF" && name != "INSTANCE_NAME_UNKNOWN";
    return known ? std::optional(std::pair(name, module->class_type()->name()->name())) : std::nullopt;
  }
  const auto& name = call.function_name();
  const size_t open = name.find('(');
  return open == std::string::npos
             ? std::nullopt
             : std::optional(std::pair(name.substr(0, open), name.substr(open + 1, name.size() - open - 2)));
}

NodeFailure failureAt(c10::Symbol kind, const torch::jit::SourceRange& range, const std::exception& error) {
  const auto line = lineOf(range);
  return NodeFailure(
      std::string("at ") + kind.toQualString() + (line.empty() ? "" : " (" + line + ")") + ": " +
      withoutBacktrace(error));
}

// The test destroys no node, so a message can read the node's source range afterwards. forEachNode copies the range
// first, which takes most of a walk's time.
void collect(Block* block, const std::function<bool(const Node*)>& test, std::vector<Node*>& found) {
  for (Node* node : block->nodes()) {
    for (Block* inner : node->blocks()) {
      collect(inner, test, found);
    }
    try {
      if (test(node)) {
        found.push_back(node);
      }
    } catch (const NodeFailure&) {
      throw;
    } catch (const std::exception& error) {
      throw failureAt(node->kind(), node->sourceRange(), error);
    }
  }
}

} // namespace

void forEachNode(Block* block, const std::function<void(Node*)>& visit) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    Node* node = *it++;
    for (Block* inner : node->blocks()) {
      forEachNode(inner, visit);
    }
    const auto kind = node->kind(); // the visit may destroy the node
    const auto range = node->sourceRange();
    try {
      visit(node);
    } catch (const NodeFailure&) {
      throw;
    } catch (const std::exception& error) {
      throw failureAt(kind, range, error);
    }
  }
}

bool changeNodes(Graph& graph, const std::function<bool(Node*)>& visit) {
  bool changed = false;
  forEachNode(graph, [&](Node* node) { changed |= visit(node); });
  return changed;
}

bool replaceNodes(Graph& graph, const std::function<Value*(Node*)>& replacementOf) {
  return changeNodes(graph, [&](Node* node) {
    Value* replacement = replacementOf(node);
    if (replacement != nullptr) {
      replaceNode(node, replacement);
    }
    return replacement != nullptr;
  });
}

std::vector<Node*> nodesWhere(Graph& graph, const std::function<bool(const Node*)>& test) {
  std::vector<Node*> nodes;
  collect(graph.block(), test, nodes);
  return nodes;
}

std::vector<Node*> nodesInOrder(Graph& graph) {
  return nodesWhere(graph, [](const Node*) { return true; });
}

void forEachValue(Block* block, const std::function<void(Value*)>& visit) {
  std::ranges::for_each(block->inputs(), visit);
  for (Node* node : block->nodes()) {
    std::ranges::for_each(node->outputs(), visit);
    for (Block* inner : node->blocks()) {
      forEachValue(inner, visit);
    }
  }
}

std::unordered_set<c10::Symbol> symbols(std::initializer_list<const char*> names) {
  std::unordered_set<c10::Symbol> result;
  std::transform(names.begin(), names.end(), std::inserter(result, result.end()), symbol);
  return result;
}

std::pair<std::string, std::string> moduleOf(const Node* node) {
  std::vector<std::pair<std::string, std::string>> frames(1); // paths and types of modules, the root first
  for (auto call = node->callstack(); call; call = (*call)->callee()) {
    const auto called = calledModule(**call);
    if (!called) {
      frames.push_back(frames.back());
      continue;
    }
    const auto& [name, type] = *called;
    const size_t begin = std::min(name.find_first_not_of('^'), name.size());
    std::string path = frames.at(frames.size() - 1 - std::min(begin, frames.size() - 1)).first;
    if (!name.empty() && name.front() == '.') {
      path = name.substr(1);
    } else if (begin < name.size()) {
      path += (path.empty() ? "" : ".") + name.substr(begin);
    }
    frames.emplace_back(path, path.empty() ? "" : type); // a call of the root by itself is the root
  }
  return frames.back();
}

std::string operatorMismatch(const Node* node) {
  const std::string name = node->kind().toQualString();
  const auto& known = torch::jit::getAllOperatorsFor(node->kind());
  if (known.empty()) {
    return "there is no operator " + name + ": is the library that defines it loaded?";
  }
  std::ostringstream text;
  text << name << " does not take (";
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    text << (i == 0 ? "" : ", ") << node->input(i)->type()->annotation_str();
  }
  text << "); it is";
  for (const auto& candidate : known) {
    text << (known.size() > 1 ? "\n  " : " ") << candidate->schema();
  }
  return text.str();
}

std::string describe(const Node* node) {
  const auto path = moduleOf(node).first;
  const auto line = sourceLine(node);
  return std::string(node->kind().toQualString()) + (path.empty() ? "" : " of " + path) +
         (line.empty() ? "" : " (" + line + ")");
}

bool isTensor(const Value* value) { return value->type()->isSubtypeOf(*c10::TensorType::get()); }

bool isConstant(const Value* value) { return value->node()->kind() == prim::Constant; }

bool isNone(const Value* value) { return value->mustBeNone(); }

bool constantFrom(const Node* node, size_t first) {
  return std::all_of(node->inputs().begin() + first, node->inputs().end(), isConstant);
}

std::optional<at::Tensor> constantTensor(const Value* value) {
  const auto constant = constantOf(value);
  return constant && constant->isTensor() ? std::optional(constant->toTensor()) : std::nullopt;
}

bool alwaysRaises(const Block* block) {
  return std::ranges::any_of(
      block->nodes(), [](const Node* node) { return node->kind() == prim::RaiseException; });
}

std::optional<std::vector<int64_t>> constantInts(const Value* value) {
  const auto constant = constantOf(value);
  return constant && constant->isIntList() ? std::optional(constant->toIntVector()) : std::nullopt;
}

std::optional<double> constantNumber(const Value* value) {
  const auto constant = constantOf(value);
  if (!constant || !(constant->isInt() || constant->isDouble() || constant->isBool())) {
    return std::nullopt;
  }
  return constant->isBool() ? static_cast<double>(constant->toBool()) : constant->toScalar().toDouble();
}

Node* insertNode(
    Node* before, c10::Symbol kind, at::ArrayRef<Value*> inputs, const Node* like, size_t outputs) {
  Node* node = before->owningGraph()->create(kind, inputs, outputs);
  node->insertBefore(before);
  node->copyMetadata(const_cast<Node*>(like));
  return node;
}

Value* insertValue(
    Node* before, c10::Symbol kind, at::ArrayRef<Value*> inputs, const Node* like, const c10::TypePtr& type) {
  Value* value = insertNode(before, kind, inputs, like)->output();
  return type == nullptr ? value : value->setType(type);
}

Value* insertConstant(Node* before, const c10::IValue& constant) {
  torch::jit::WithInsertPoint guard(before);
  return before->owningGraph()->insertConstant(constant);
}

void hoist(Value* value, Node* before) {
  Node* node = value->node();
  if (node->kind() == prim::Param || !before->isBefore(node)) {
    return;
  }
  for (Value* operand : node->inputs()) {
    hoist(operand, before);
  }
  node->moveBefore(before);
}

Value* inputOf(const Node* node, std::string_view name) {
  Value* operand = node->maybeSchema() != nullptr ? operandOf(node, name) : nullptr;
  TORCH_CHECK(operand != nullptr, describe(node), " has no operand '", name, "'");
  return operand;
}

Value* operandOf(const Node* node, std::string_view name) {
  const auto index = node->schema().argumentIndexWithName(name);
  return index ? const_cast<Node*>(node)->input(*index) : nullptr;
}

void setOperand(Node* node, std::string_view name, Value* value) {
  node->replaceInput(*node->schema().argumentIndexWithName(name), value);
}

bool isTranspose(const Node* node) {
  static const auto numpy = symbol("aten::numpy_T");
  return node->kind() == aten::t || node->kind() == numpy;
}

static const auto place_attribute = c10::Symbol::attr("place");

std::optional<int64_t> placeOf(const Node* node) {
  return node->hasAttribute(place_attribute) ? std::optional(node->i(place_attribute)) : std::nullopt;
}

void setPlace(Node* node, int64_t place) { node->i_(place_attribute, place); }

void handOverPlace(const Node* from, Node* to) {
  const bool fixed = to->kind() == prim::Constant || to->kind() == prim::Param;
  if (const auto place = placeOf(from); place && !fixed && !placeOf(to)) {
    setPlace(to, *place);
  }
}

void forgetPlace(Node* node) {
  if (node->hasAttribute(place_attribute)) {
    node->removeAttribute(place_attribute);
  }
}

c10::IValue computed(const Node* node, const std::unordered_map<const Value*, c10::IValue>& values) {
  torch::jit::Stack stack;
  for (const Value* operand : node->inputs()) {
    const auto found = values.find(operand);
    stack.push_back(found == values.end() ? *constantOf(operand) : found->second);
  }
  node->getOperation()(stack);
  return stack.back();
}

void replaceNode(Node* node, Value* value) {
  handOverPlace(node, value->node());
  node->output()->replaceAllUsesWith(value);
  node->destroy();
}

void replaceComputation(Node* node, Value* value) {
  std::unordered_set<Node*> operands;
  const auto add = [&](Node* user) {
    for (Value* operand : user->inputs()) {
      operands.insert(operand->node());
    }
  };
  add(node);
  replaceNode(node, value);
  const auto isUnused = [](const Node* operand) {
    return operand->kind() != prim::Param && !operand->hasUses() && operand->blocks().empty() &&
           !operand->hasSideEffects();
  };
  auto found = std::ranges::find_if(operands, isUnused);
  while (found != operands.end()) {
    Node* operand = *found;
    operands.erase(found);
    add(operand);
    operand->destroy();
    found = std::ranges::find_if(operands, isUnused);
  }
}

} // namespace jit_passes
