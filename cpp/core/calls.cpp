// A node that comes from calls has a call stack, with one frame for each call. In place of the function's
// name, which nothing reads while there is a function, it has path and type of the module that was called,
// seen from the caller: "enc.0(Linear)" is below the caller's self, "^dec(Linear)" below the self of the
// caller's caller (tracing hands modules on as arguments), ".a(Linear)" below the root, "(Net)" is the
// caller's own. PyTorch has a class for it, ModuleInstanceInfo, and does not export how to make one.
#include "calls.h"

#include "module.h"

#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/passes/constant_pooling.h>
#include <torch/csrc/jit/passes/peephole.h>

namespace jit_passes {
namespace {

using torch::jit::GraphFunction;
using torch::jit::InlinedCallStack;
using torch::jit::InlinedCallStackPtr;
using ModuleObject = c10::ivalue::Object;
using Paths = std::unordered_map<const Value*, std::string>;
using Stacks = std::unordered_map<const InlinedCallStack*, InlinedCallStackPtr>;

// The node, and all in its blocks and in the branch that it forks.
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

std::string join(const std::string& owner, const std::string& name) {
  const bool at_end = owner.empty() || owner.back() == '^';
  return owner + (at_end ? "" : ".") + name;
}

// Nothing where it is not a graph's.
GraphFunction* calledFunction(const Node* node) {
  torch::jit::Function* function = nullptr;
  if (node->kind() == prim::CallFunction) {
    const auto type = node->input(0)->type()->cast<c10::FunctionType>();
    function = type ? type->function() : nullptr;
  } else if (node->kind() == prim::CallMethod) {
    const auto type = node->input(0)->type()->cast<c10::ClassType>();
    function = type ? type->findMethod(node->s(attr::name)) : nullptr;
  }
  return function == nullptr ? nullptr : torch::jit::tryToGraphFunction(*function);
}

InlinedCallStackPtr pushFrame(
    const std::optional<InlinedCallStackPtr>& inner, torch::jit::Function* function,
    const torch::jit::SourceRange& range, std::string name) {
  return inner ? c10::make_intrusive<InlinedCallStack>(*inner, function, range, std::nullopt, name)
               : c10::make_intrusive<InlinedCallStack>(function, range, std::nullopt, name);
}

class Inliner {
 public:
  // `modules`: where the inputs are that are modules, seen from self.
  void inlineCalls(Graph& graph, const std::map<size_t, std::string>& modules) {
    Paths paths;
    if (!graph.inputs().empty() && isModule(graph.inputs()[0])) {
      paths.emplace(graph.inputs()[0], "");
    }
    for (const auto& [index, path] : modules) {
      paths.emplace(graph.inputs().at(index), path);
    }
    inlineCalls(graph.block(), paths);
  }

 private:
  void inlineCalls(Block* block, Paths& paths) {
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      Node* node = *it++;
      for (Block* inner : node->blocks()) {
        inlineCalls(inner, paths);
      }
      if (node->kind() == prim::GetAttr && isModule(node->output()) && paths.count(node->input())) {
        paths[node->output()] = join(paths.at(node->input()), node->s(attr::name));
      } else if (node->kind() == prim::fork) {
        Block* branch = node->g(attr::Subgraph)->block();
        for (size_t i = 0; i < node->inputs().size(); ++i) {
          if (const auto path = paths.find(node->input(i)); path != paths.end()) {
            paths[branch->inputs().at(i)] = std::string(path->second);
          }
        }
        inlineCalls(branch, paths);
      } else if (GraphFunction* function = calledFunction(node)) {
        inlineCall(node, *function, paths);
      }
    }
  }

  void inlineCall(Node* call, GraphFunction& function, const Paths& paths) {
    const size_t first = call->kind() == prim::CallFunction ? 1 : 0;
    std::map<size_t, std::string> modules;
    for (size_t i = 1; i < call->inputs().size(); ++i) {
      if (const auto path = paths.find(call->input(i)); path != paths.end()) {
        modules.emplace(i - first, "^" + path->second);
      }
    }
    const auto self = call->kind() == prim::CallMethod ? paths.find(call->input(0)) : paths.end();
    const std::string name =
        self == paths.end()
            ? ""
            : self->second + "(" + call->input(0)->type()->expect<c10::ClassType>()->name()->name() + ")";
    Node* before = call->prev();
    torch::jit::WithInsertPoint guard(call);
    const auto results = torch::jit::insertGraph(
        *call->owningGraph(), *bodyOf(function, modules), call->inputs().slice(first));
    Stacks stacks;
    for (Node* node = before->next(); node != call; node = node->next()) {
      forEachWithin(node, [&](Node* inner) {
        const auto callee = inner->callstack();
        auto& stack = stacks[callee ? callee->get() : nullptr];
        if (!stack) {
          stack = pushFrame(callee, &function, call->sourceRange(), name);
        }
        inner->setCallStack(stack);
      });
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (call->output(i)->hasDebugName()) {
        results[i]->setDebugName(call->output(i)->debugName());
      }
      call->output(i)->replaceAllUsesWith(results[i]);
    }
    Node* callee = first == 1 ? call->input(0)->node() : nullptr;
    call->destroy();
    if (callee != nullptr && !callee->output()->hasUses()) {
      callee->destroy();
    }
  }

  // The function's graph, inlined, then simplified as PyTorch does before it inlines one, and keeps that.
  const std::shared_ptr<Graph>& bodyOf(
      GraphFunction& function, const std::map<size_t, std::string>& modules) {
    auto& body = bodies_[{&function, modules}];
    if (body == nullptr) {
      function.ensure_defined();
      if (findCall(*function.graph()) == nullptr) {
        return body = function.optimized_graph();
      }
      body = function.graph()->copy();
      inlineCalls(*body, modules);
      torch::jit::PeepholeOptimize(body, /*disable_shape_peepholes=*/true);
      torch::jit::ConstantPropagationImmutableTypes(body);
      torch::jit::Autocast(body);
      torch::jit::ConstantPooling(body);
    }
    return body;
  }

  std::map<std::pair<GraphFunction*, std::map<size_t, std::string>>, std::shared_ptr<Graph>> bodies_;
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

// The same stack, whose innermost frame names the module from the root.
InlinedCallStackPtr withModule(const InlinedCallStackPtr& stack, const std::string& name) {
  const auto callee = stack->callee();
  return callee ? pushFrame(
                      withModule(*callee, name), stack->function(), stack->source_range(),
                      stack->function_name())
                : pushFrame(std::nullopt, stack->function(), stack->source_range(), name);
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

void inlineCalls(Graph& graph) { Inliner().inlineCalls(graph, {}); }

const Node* findCall(Graph& graph) {
  const Node* call = nullptr;
  for (Node* node : graph.nodes()) {
    forEachWithin(node, [&](const Node* inner) {
      const bool calls = inner->kind() == prim::CallMethod || inner->kind() == prim::CallFunction;
      call = call == nullptr && calls ? inner : call;
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
