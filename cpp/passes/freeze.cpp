// Make the module a graph of one method: calls inlined, attributes that the method neither assigns
// nor writes to turned into constants, branches on them resolved. What it does change stays an
// attribute, at the path that it had, of a module that has nothing else.
//
//   %conv : Conv2d = prim::GetAttr[name="conv"](%self)
//   %w : Tensor = prim::GetAttr[name="weight"](%conv)      ->   %conv.weight : Tensor = prim::Constant[value=...]()
//
// PyTorch's own freezing gives the same, in a time that grows with the square of the graph.
#include "core/module.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

using c10::IValue;
using torch::jit::AliasDb;
using Object = c10::intrusive_ptr<c10::ivalue::Object>;

bool isModule(const Value* value) {
  const auto type = value->type()->cast<c10::ClassType>();
  return type && type->is_module();
}

bool isInterface(const Value* value) {
  const auto type = value->type()->cast<c10::InterfaceType>();
  return type && type->is_module();
}

// An attribute of one object. Two modules may have the same type, and one may have two names.
struct Attribute {
  const c10::ivalue::Object* owner;
  std::string name;

  bool operator<(const Attribute& other) const {
    return std::tie(owner, name) < std::tie(other.owner, other.name);
  }
};

class Freezer {
 public:
  Freezer(const Module& module, const std::string& method)
      : module_(module), method_(method), graph_(module.get_method(method).graph()->copy()) {}

  // Nothing when the graph does with modules what cannot be followed.
  std::optional<Module> run() {
    inlineCalls();
    if (!allModulesBound()) {
      return std::nullopt;
    }
    // Without what happens in training only, less is written to.
    insertConstants(assigned(), [](const IValue& value) {
      return value.isBool() || value.isInt() || value.isDouble() || value.isNone() || value.isString();
    });
    torch::jit::ConstantPropagationImmutableTypes(graph_);
    torch::jit::EliminateDeadCode(graph_);
    bindModules();
    insertConstants(changed(), [](const IValue& value) { return !value.isObject(); });
    torch::jit::EliminateDeadCode(graph_);
    return result();
  }

 private:
  struct Binding {
    Object object;
    std::string path;
  };

  void inlineCalls() {
    do {
      torch::jit::Inline(*graph_);
      inlineForks();
    } while (bindModules());
    // Tracing notes the shapes of its example, and simplification would take them for granted.
    torch::jit::EraseShapeInformation(graph_);
  }

  // A branch that is only waited for could run anywhere, and here other passes see it.
  void inlineForks() {
    forEachNode(*graph_, [&](Node* fork) {
      const auto waits = [](const torch::jit::Use& use) { return use.user->kind() == c10::aten::wait; };
      if (fork->kind() != c10::prim::fork || fork->outputs().size() != 1 ||
          !std::all_of(fork->output()->uses().begin(), fork->output()->uses().end(), waits)) {
        return;
      }
      torch::jit::WithInsertPoint guard(fork);
      Value* result = torch::jit::insertGraph(*graph_, *fork->g(c10::attr::Subgraph), fork->inputs()).at(0);
      for (const auto& use : std::vector(fork->output()->uses())) {
        use.user->output()->replaceAllUsesWith(result);
        use.user->destroy();
      }
      fork->destroy();
      inlined_fork_ = true;
    });
  }

  // Finds out which object each value of a module's type is. Returns whether there may be more to
  // inline: a fork's body, or a call through an interface whose class is known now.
  bool bindModules() {
    bindings_.clear();
    bindings_.emplace(graph_->inputs().at(0), Binding{module_._ivalue(), ""});
    bool more = std::exchange(inlined_fork_, false);
    const auto swapped = assigned();
    forEachNode(*graph_, [&](Node* node) {
      const auto owner = node->kind() == c10::prim::GetAttr ? bindings_.find(node->input()) : bindings_.end();
      if (owner == bindings_.end()) {
        return;
      }
      const auto& [object, path] = owner->second;
      const std::string& name = node->s(c10::attr::name);
      const IValue value = object->getAttr(name);
      if (!value.isModule() || swapped.count({object.get(), name})) {
        return;
      }
      if (isInterface(node->output())) {
        node->output()->setType(value.toObject()->type());
        more = true;
      }
      bindings_.emplace(node->output(), Binding{value.toObject(), path.empty() ? name : path + "." + name});
    });
    return more;
  }

  bool allModulesBound() {
    bool bound = true;
    forEachNode(*graph_, [&](Node* node) {
      for (const Value* output : node->outputs()) {
        bound &= !(isModule(output) || isInterface(output)) || bindings_.count(output) > 0;
      }
      bound &= node->kind() != c10::prim::fork;
    });
    return bound;
  }

  template <typename Visit>
  void forEachAttribute(c10::Symbol kind, Visit visit) {
    forEachNode(*graph_, [&](Node* node) {
      const auto owner = node->kind() == kind ? bindings_.find(node->input(0)) : bindings_.end();
      if (owner != bindings_.end()) {
        visit(node, owner->second, Attribute{owner->second.object.get(), node->s(c10::attr::name)});
      }
    });
  }

  std::set<Attribute> assigned() {
    std::set<Attribute> result;
    forEachAttribute(c10::prim::SetAttr, [&](Node*, const Binding&, const Attribute& attribute) {
      result.insert(attribute);
    });
    return result;
  }

  // Attributes that running the method may change: assigned, written to in place, or sharing memory
  // with such a one.
  std::set<Attribute> changed() {
    auto result = assigned();
    const AliasDb aliases(graph_, /*isFrozen=*/true);
    std::vector<Value*> stored;
    forEachAttribute(c10::prim::SetAttr, [&](Node* node, const Binding&, const Attribute&) {
      stored.push_back(node->input(1));
    });
    IValue::HashAliasedIValues memory;
    for (const auto& attribute : result) {
      const_cast<c10::ivalue::Object*>(attribute.owner)->getAttr(attribute.name).getSubValues(memory);
    }
    forEachAttribute(c10::prim::GetAttr, [&](Node* node, const Binding& owner, const Attribute& attribute) {
      const bool escapes = std::any_of(stored.begin(), stored.end(), [&](Value* value) {
        return aliases.mayContainAlias(value, node->output());
      });
      if (!bindings_.count(node->output()) && (escapes || aliases.hasWriters(node->output()))) {
        result.insert(attribute);
        owner.object->getAttr(attribute.name).getSubValues(memory);
      }
    });
    if (memory.empty()) {
      return result;
    }
    forEachAttribute(c10::prim::GetAttr, [&](Node*, const Binding& owner, const Attribute& attribute) {
      IValue::HashAliasedIValues parts;
      owner.object->getAttr(attribute.name).getSubValues(parts);
      if (std::any_of(
              parts.begin(), parts.end(), [&](const IValue& part) { return memory.count(part) > 0; })) {
        result.insert(attribute);
      }
    });
    return result;
  }

  // Prepending is what a graph does in constant time.
  template <typename Filter>
  void insertConstants(const std::set<Attribute>& changed, Filter filter) {
    std::map<Attribute, Value*> constants;
    forEachAttribute(c10::prim::GetAttr, [&](Node* node, const Binding& owner, const Attribute& attribute) {
      auto value = owner.object->getAttr(attribute.name);
      if (bindings_.count(node->output()) || changed.count(attribute) || !filter(value)) {
        return;
      }
      Value*& constant = constants[attribute];
      if (constant == nullptr) {
        if (value.isTensor() && value.toTensor().requires_grad()) {
          value = value.toTensor().detach();
        }
        torch::jit::WithInsertPoint guard(graph_->block()->nodes().front());
        const auto inserted = torch::jit::tryInsertConstant(*graph_, value);
        if (!inserted) {
          return;
        }
        constant = *inserted;
        if (value.isTensor()) {
          constant->setDebugName((owner.path.empty() ? "" : owner.path + ".") + attribute.name);
        }
      }
      replaceNode(node, constant);
    });
  }

  // A module of its own type, with nothing but what the graph reads and assigns.
  Module result() {
    bindModules();
    std::map<const c10::ivalue::Object*, std::set<std::string>> used;
    for (const auto kind : {c10::prim::GetAttr, c10::prim::SetAttr}) {
      forEachAttribute(kind, [&](Node*, const Binding&, const Attribute& attribute) {
        used[attribute.owner].insert(attribute.name);
      });
    }
    used[module_._ivalue().get()].insert("training"); // what train() and eval() set
    const auto keep = [&](const c10::ivalue::Object& owner, const std::string& name) {
      return used[&owner].count(name) > 0;
    };
    // Copied, so that running the result does not change the caller's.
    return rebuildModule(module_, method_, graph_, keep, Values::Copied);
  }

  Module module_;
  std::string method_;
  std::shared_ptr<Graph> graph_;
  std::unordered_map<const Value*, Binding> bindings_;
  bool inlined_fork_ = false;
};

// For modules in loops, in lists and behind branches.
Module freezeByPyTorch(const Module& module, const std::string& method) {
  auto frozen = torch::jit::freeze_module(module, {method}).deepcopy();
  for (const auto& other : frozen.get_methods()) {
    if (other.name() != method) {
      frozen.type()->unsafeRemoveMethod(other.name());
    }
  }
  return frozen;
}

bool freeze(PassContext& context) {
  const auto frozen = Freezer(context.module, context.method).run();
  context.module = frozen ? *frozen : freezeByPyTorch(context.module, context.method);
  return true;
}

std::optional<std::string> checkInlined(const PassContext& context) {
  std::optional<std::string> problem;
  forEachNode(*context.graph(), [&](Node* node) {
    if (node->kind() == c10::prim::CallMethod || node->kind() == c10::prim::CallFunction) {
      problem = "a call is left: " + describe(node);
    }
  });
  return problem;
}

const RegisterInvariant inlined{"inlined", "No calls of methods or functions.", checkInlined};
const RegisterPass registration{
    "freeze", "Inline everything into one graph with constant parameters.", freeze, {}, {"inlined"}};

} // namespace
} // namespace jit_passes
