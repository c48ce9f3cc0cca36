// An inlined node has a call stack, with one frame for each call. In place of the function's name, which nothing
// reads while the frame has a function, the frame holds path and type of the called module, as seen from the caller:
// "enc.0(Linear)" is below the caller's self, "^dec(Linear)" below the self of the caller's caller (tracing hands
// modules on as arguments), ".a(Linear)" below the root, "(Net)" is the caller's own. PyTorch has a class for this,
// ModuleInstanceInfo, but does not export its constructor.
//
// A frame holds its function by a bare pointer, and PyTorch reads the function's name when the model raises an
// error. The model that owns the function may be freed by then, so frames get functions that are never freed: see
// lasting.
#include "calls.h"

#include "attributes.h"

namespace jit_passes {
namespace {

using torch::jit::GraphFunction;
using torch::jit::InlinedCallStack;
using torch::jit::InlinedCallStackPtr;
using ModuleObject = c10::ivalue::Object;
using Paths = std::unordered_map<const Value*, std::string>;
using Stacks = std::unordered_map<const InlinedCallStack*, InlinedCallStackPtr>;

// Visits the node, and all nodes in its blocks and in the branch that it forks.
template <typename Visit>
void forEachWithin(Node* node, const Visit& visit) {
  visit(node);
  for (Block* block : node->blocks()) {
    for (Node* inner : block->nodes()) {
      forEachWithin(inner, visit);
    }
  }
  if (node->kind() == prim::fork) {
    for (Node* inner : node->g(attr::Subgraph)->nodes()) {
      forEachWithin(inner, visit);
    }
  }
}

bool isOwnModule(const c10::TypePtr& type, std::string_view atom) {
  const auto known = type->cast<c10::ClassType>();
  const auto name = known && known->is_module() ? known->name() : std::nullopt;
  return name && name->name() == atom &&
         name->qualifiedName().rfind("__torch__.jit_passes.", 0) == 0; // a number may stand in between
}

std::string join(const std::string& owner, const std::string& name) {
  return owner + (owner.empty() ? "" : ".") + name;
}

// Null where the function has no graph.
GraphFunction* calledFunction(const Node* node) {
  torch::jit::Function* function = nullptr;
  if (node->kind() == prim::CallFunction) {
    const auto type = node->input(0)->type()->cast<c10::FunctionType>();
    function = type ? type->function() : nullptr;
  } else if (node->kind() == prim::CallMethod) {
    const auto type = objectOf(node)->type()->cast<c10::ClassType>();
    function = type && !isOpaque(type) ? type->findMethod(node->s(attr::name)) : nullptr;
  }
  return function == nullptr ? nullptr : torch::jit::tryToGraphFunction(*function);
}

bool inlineFork(Node* fork) {
  const auto uses = fork->output()->uses(); // a copy: the loop edits the list
  if (!std::ranges::all_of(uses, [](const Use& use) { return use.user->kind() == aten::wait; })) {
    return false;
  }
  torch::jit::WithInsertPoint guard(fork);
  auto& graph = *fork->owningGraph();
  Value* result = torch::jit::insertGraph(graph, *fork->g(attr::Subgraph), fork->inputs()).at(0);
  for (const auto& use : uses) {
    replaceNode(use.user, result);
  }
  fork->destroy();
  return true;
}

// Whether the call is of a method in C++, whose class a library has registered. The method has no graph to inline.
bool callsBuiltin(const Node* node) {
  const auto type =
      node->kind() == prim::CallMethod ? objectOf(node)->type()->cast<c10::ClassType>() : nullptr;
  torch::jit::Function* method = type ? type->findMethod(node->s(attr::name)) : nullptr;
  return method != nullptr && torch::jit::tryToGraphFunction(*method) == nullptr;
}

// An empty function of that name, one for the whole process.
torch::jit::Function* lasting(const std::string& name) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<std::string, std::unique_ptr<GraphFunction>>;
  const std::lock_guard<std::mutex> guard(mutex);
  auto& function = known[name];
  if (function == nullptr) {
    function = std::make_unique<GraphFunction>(name, std::make_shared<Graph>(), nullptr);
  }
  return function.get();
}

InlinedCallStackPtr pushFrame(
    const InlinedCallStackPtr& inner, torch::jit::Function* function, const torch::jit::SourceRange& range,
    std::string name) {
  return inner ? c10::make_intrusive<InlinedCallStack>(inner, function, range, std::nullopt, name)
               : c10::make_intrusive<InlinedCallStack>(function, range, std::nullopt, name);
}

// Returns the stack with functions that are never freed. Frames of our own have them already.
InlinedCallStackPtr lastingStack(const InlinedCallStackPtr& stack) {
  const auto callee = stack->callee();
  const auto inner = callee ? lastingStack(*callee) : nullptr;
  std::string name = stack->function_name();
  const bool ours = name.empty() || name.find('(') != std::string::npos;
  if (ours && (!callee || inner == *callee)) {
    return stack;
  }
  auto* function = ours ? stack->function() : lasting(name);
  const auto module = stack->module_instance();
  return inner ? c10::make_intrusive<InlinedCallStack>(inner, function, stack->source_range(), module, name)
               : c10::make_intrusive<InlinedCallStack>(function, stack->source_range(), module, name);
}

// Inlines from the outermost call inwards, so each node is copied once, however deep the calls are nested.
class Inliner {
 public:
  void inlineCalls(Graph& graph) {
    if (!graph.inputs().empty() && isModule(graph.inputs()[0])) {
      paths_.emplace(graph.inputs()[0], "");
    }
    inlineCalls(graph.block());
  }

 private:
  struct Frame {
    torch::jit::Function* function;
    torch::jit::SourceRange range;
    std::string name; // of the module, seen from the caller
    std::string self; // path of the module; the caller's where it is not known
  };

  void inlineCalls(Block* block) { inlineCalls(*block->nodes().begin(), block->return_node()); }

  void inlineCalls(Node* first, const Node* end) {
    for (Node* node = first; node != end;) {
      if (const auto own = node->callstack(); own && frames_.empty()) {
        auto& [held, stack] = lasting_[own->get()];
        if (!held) { // a stack that is held cannot give its address to another one
          held = *own;
          stack = lastingStack(held);
        }
        if (stack != held) {
          node->setCallStack(stack);
        }
      }
      for (Block* inner : node->blocks()) {
        inlineCalls(inner);
      }
      Node* next = node->next();
      if (node->kind() == prim::GetAttr && isModule(node->output()) && paths_.count(node->input())) {
        paths_[node->output()] = join(paths_.at(node->input()), node->s(attr::name));
      } else if (node->kind() == prim::fork) {
        Block* branch = node->g(attr::Subgraph)->block();
        for (size_t i = 0; i < node->inputs().size(); ++i) {
          if (const auto path = paths_.find(node->input(i)); path != paths_.end()) {
            paths_[branch->inputs().at(i)] = std::string(path->second);
          }
        }
        inlineCalls(branch);
      } else if (GraphFunction* function = calledFunction(node)) {
        inlineCall(node, *function);
      }
      node = next;
    }
  }

  void inlineCall(Node* call, GraphFunction& function) {
    const size_t first = call->kind() == prim::CallFunction ? 1 : 0;
    const std::string self_of_caller = frames_.empty() ? "" : frames_.back().self;
    Frame frame{lasting(function.name()), call->sourceRange(), "", self_of_caller};
    if (const auto self = paths_.find(objectOf(call));
        first == 0 && self != paths_.end() && !isRegion(objectOf(call)->type())) {
      const auto type = objectOf(call)->type()->expect<c10::ClassType>();
      frame.name = seenFromCaller(self->second) + "(" + type->name()->name() + ")";
      frame.self = self->second;
    }
    frames_.push_back(frame);
    Node* before = call->prev();
    const Node* after = call->next();
    const auto results = [&] {
      const torch::jit::WithInsertPoint guard(call);
      return torch::jit::insertGraph(*call->owningGraph(), bodyOf(function), call->inputs().slice(first));
    }();
    for (size_t i = 0; i < results.size(); ++i) {
      if (call->output(i)->hasDebugName()) {
        results[i]->setDebugName(call->output(i)->debugName());
      }
      call->output(i)->replaceAllUsesWith(results[i]);
    }
    Node* callee = first == 1 ? call->input(0)->node() : nullptr;
    call->destroy();
    pushFrames(before->next(), after);
    inlineCalls(before->next(), after);
    if (callee != nullptr && !callee->output()->hasUses()) {
      callee->destroy();
    }
    frames_.pop_back();
  }

  // The path below the module of the calling method, or, with a "^" for each step, below the module of an outer
  // caller.
  std::string seenFromCaller(const std::string& path) const {
    std::string out;
    for (auto caller = frames_.rbegin(); caller != frames_.rend(); ++caller, out += '^') {
      if (path == caller->self) {
        return out;
      }
      if (caller->self.empty() || path.compare(0, caller->self.size() + 1, caller->self + ".") == 0) {
        return out + path.substr(caller->self.empty() ? 0 : caller->self.size() + 1);
      }
    }
    return out + path;
  }

  // Adds the frames of the present calls to the stacks of nodes that have just been inlined.
  void pushFrames(Node* first, const Node* end) {
    Stacks stacks;
    for (Node* node = first; node != end; node = node->next()) {
      forEachWithin(node, [&](Node* inner) {
        const auto own = inner->callstack();
        auto& stack = stacks[own ? own->get() : nullptr];
        if (!stack) {
          stack = own ? lastingStack(*own) : nullptr;
          for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
            stack = pushFrame(stack, frame->function, frame->range, frame->name);
          }
        }
        inner->setCallStack(stack);
      });
    }
  }

  // A function that uses no module but its own self has no paths to keep, so PyTorch inlines and simplifies it,
  // once.
  Graph& bodyOf(GraphFunction& function) {
    auto& body = bodies_[&function];
    if (body == nullptr) {
      function.ensure_defined();
      body = knowsOthers(function) ? function.graph() : function.optimized_graph();
    }
    return *body;
  }

  // Whether the function, or one that it calls, has a module besides self.
  bool knowsOthers(GraphFunction& function) {
    const auto [known, isNew] = knows_others_.emplace(&function, false);
    if (!isNew) {
      return known->second;
    }
    bool others = false;
    Graph& graph = *function.graph();
    for (size_t i = 1; i < graph.inputs().size(); ++i) {
      others |= isModule(graph.inputs()[i]);
    }
    for (Node* node : graph.nodes()) {
      forEachWithin(node, [&](const Node* inner) {
        others |= std::any_of(inner->outputs().begin(), inner->outputs().end(), isModule);
        GraphFunction* callee = calledFunction(inner);
        others |= callee != nullptr && knowsOthers(*callee);
      });
    }
    return knows_others_[&function] = others;
  }

  Paths paths_;               // of modules, from self
  std::vector<Frame> frames_; // the outermost first
  std::unordered_map<const InlinedCallStack*, std::pair<InlinedCallStackPtr, InlinedCallStackPtr>> lasting_;
  std::unordered_map<const GraphFunction*, std::shared_ptr<Graph>> bodies_;
  std::unordered_map<const GraphFunction*, bool> knows_others_;
};

// The first name of each module. Returns whether one has several.
bool firstNames(
    const ModuleObject* module, const std::string& path,
    std::unordered_map<const ModuleObject*, std::string>& names) {
  if (!names.emplace(module, path).second) {
    return true;
  }
  bool shared = false;
  for (size_t slot = 0; slot < module->type()->numAttributes(); ++slot) {
    const auto value = module->getSlot(slot);
    if (value.isModule()) {
      shared |= firstNames(&value.toObjectRef(), join(path, module->type()->getAttributeName(slot)), names);
    }
  }
  return shared;
}

// The stack with an innermost frame that holds the module's path from the root.
InlinedCallStackPtr withModule(const InlinedCallStackPtr& stack, const std::string& name) {
  const auto callee = stack->callee();
  return callee ? pushFrame(
                      withModule(*callee, name), stack->function(), stack->source_range(),
                      stack->function_name())
                : pushFrame(nullptr, stack->function(), stack->source_range(), name);
}

} // namespace

bool isModule(const Value* value) {
  const auto known = value->type()->cast<c10::ClassType>();
  return (known && known->is_module()) || isInterface(value);
}

bool isInterface(const Value* value) {
  const auto type = value->type()->cast<c10::InterfaceType>();
  return type && type->is_module();
}

bool isRegion(const c10::TypePtr& type) { return isOwnModule(type, "Region"); }

bool isCompiledRegion(const c10::TypePtr& type) { return isOwnModule(type, "CompiledRegion"); }

bool hasReport(const c10::TypePtr& type) {
  const auto known = type->cast<c10::ClassType>();
  return known && known->is_module() && known->hasAttribute("jit_passes_report");
}

bool isOpaque(const c10::TypePtr& type) { return isCompiledRegion(type) || hasReport(type); }

bool callsOpaque(const Node* node) {
  return node->kind() == prim::CallMethod && isOpaque(objectOf(node)->type());
}

void inlineCalls(Graph& graph) { Inliner().inlineCalls(graph); }

bool inlineForks(Graph& graph) {
  bool changed = false;
  for (Node* fork : nodesWhere(graph, [](auto* node) { return node->kind() == prim::fork; })) {
    changed |= inlineForks(*fork->g(attr::Subgraph));
    changed |= inlineFork(fork);
  }
  return changed;
}

InlinedCallStackPtr stackWithin(const std::string& module) {
  return pushFrame(nullptr, lasting("forward"), {}, "." + module);
}

const Node* findCall(Graph& graph) {
  const Node* call = nullptr;
  for (Node* node : graph.nodes()) {
    forEachWithin(node, [&](const Node* inner) {
      const bool calls = inner->kind() == prim::CallMethod || inner->kind() == prim::CallFunction;
      call = call == nullptr && calls && !callsOpaque(inner) && !callsBuiltin(inner) ? inner : call;
    });
  }
  return call;
}

void nameModules(Graph& graph, const torch::jit::Module& root) {
  std::unordered_map<const ModuleObject*, std::string> names;
  if (!firstNames(root._ivalue().get(), "", names)) {
    return;
  }
  Stacks stacks;
  for (Node* node : graph.nodes()) {
    forEachWithin(node, [&](Node* inner) {
      const auto stack = inner->callstack();
      if (!stack) {
        return;
      }
      auto& renamed = stacks[stack->get()];
      if (!renamed) {
        const auto [path, type] = moduleOf(inner);
        const auto module = attributeAt(root, path);
        const auto name = names.find(module && module->isModule() ? &module->toObjectRef() : nullptr);
        renamed = name == names.end() || name->second == path
                      ? *stack
                      : withModule(*stack, "." + name->second + "(" + type + ")");
      }
      inner->setCallStack(renamed);
    });
  }
}

} // namespace jit_passes
