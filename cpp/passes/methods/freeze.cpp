// Make the module a graph of one method: calls are inlined, attributes that the method neither assigns nor writes to
// become constants, and branches on them are decided. An attribute that the method changes stays an attribute at its
// path, in a module with no others. So does an attribute that the option `state` names, since another method changes
// it.
//
//   %conv : Conv2d = prim::GetAttr[name="conv"](%self)
//   %w : Tensor = prim::GetAttr[name="weight"](%conv)      ->   %conv.weight : Tensor = prim::Constant[value=...]()
//
// PyTorch's own freezing takes a time that grows with the square of the graph, and makes constants of values that
// are written to as part of a list or by batch norms that train.
#include "graph/alias.h"
#include "graph/alias_classes.h"
#include "graph/bound_modules.h"
#include "graph/calls.h"
#include "graph/registry.h"
#include "methods.h"

namespace jit_passes {
namespace {

using c10::IValue;
using torch::jit::AliasDb;

// Constants do not take part in autograd.
IValue detached(const IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().requires_grad() ? value.toTensor().detach() : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      tensors.push_back(tensor.detach());
    }
    return tensors;
  }
  return value;
}

class Freezer {
 public:
  Freezer(const Module& module, const std::string& method, std::set<Attribute> state = {})
      : module_(module),
        method_(method),
        graph_(module.get_method(method).graph()->copy()),
        state_(std::move(state)) {}

  // The frozen module. Nothing if the graph uses modules in a way that cannot be followed.
  std::optional<Module> run() {
    if (!follow()) {
      return std::nullopt;
    }
    simplify();
    insertConstants(changed(), [](const IValue& value) { return !value.isObject(); });
    removeDeadNodes(graph_);
    return result();
  }

  // The method's use of attributes. Nothing in that case too.
  std::optional<MethodState> state() {
    if (!follow()) {
      return std::nullopt;
    }
    MethodState state{graph_->copy(), used(), {}};
    simplify();
    state.changed = changed();
    return state;
  }

 private:
  bool follow() {
    do {
      inlineCalls(*graph_, module_);
    } while (inlineForks(*graph_));
    nameModules(*graph_, module_);
    modules_ = bindModules(*graph_, module_);
    return allModulesBound();
  }

  void simplify() {
    // A trace has the shapes of its example, which simplification would rely on.
    torch::jit::EraseShapeInformation(graph_);
    // With branches on the mode decided, fewer values are written to.
    insertConstants(assigned(), [](const IValue& value) {
      return value.isBool() || value.isInt() || value.isDouble() || value.isNone() || value.isString();
    });
    torch::jit::ConstantPropagationImmutableTypes(graph_);
    removeDeadNodes(graph_);
    fillInOneStep();
    modules_ = bindModules(*graph_, module_);
  }

  // Modules from branches, lists and loops are not bound, nor modules that the graph assigns.
  bool allModulesBound() {
    bool bound = true;
    forEachNodeAnywhere(*graph_, [&](Node* node) {
      for (const Value* output : node->outputs()) {
        bound &= !isModule(output) || modules_.count(output) > 0;
      }
    });
    return bound && !exchangesModules(*graph_);
  }

  template <typename Visit>
  void forEachAttribute(c10::Symbol kind, Visit visit) {
    forEachNodeAnywhere(*graph_, [&](Node* node) {
      const auto owner = node->kind() == kind ? modules_.find(objectOf(node)) : modules_.end();
      if (owner != modules_.end() && !(kind == prim::GetAttr && modules_.count(node->output()))) {
        visit(node, owner->second, Attribute{owner->second.object.get(), node->s(attr::name)});
      }
    });
  }

  // Attributes that the graph or other methods assign.
  std::set<Attribute> assigned() {
    auto result = state_;
    forEachAttribute(prim::SetAttr, [&](Node*, const BoundModule&, const Attribute& attribute) {
      result.insert(attribute);
    });
    return result;
  }

  // PyTorch's attention and packed sequences fill tensors that they have just made, in place. These share a tuple
  // with other tensors, so for the alias analysis they share memory with weights, which would not become constants.
  // The functional form of the fill avoids that.
  void fillInOneStep() {
    static const std::unordered_map<c10::Symbol, c10::Symbol> fills{
        {symbol("aten::masked_fill_"), aten::masked_fill},
        {symbol("aten::scatter_"), symbol("aten::scatter")}};
    static const std::unordered_set<c10::Symbol> makes{aten::zeros_like, symbol("aten::empty_like")};
    forEachNode(*graph_, [](Node* node) {
      const auto fill = fills.find(node->kind());
      Value* made = fill == fills.end() ? nullptr : inputOf(node, "self");
      if (made == nullptr || makes.count(made->node()->kind()) == 0 ||
          made->node()->owningBlock() != node->owningBlock() ||
          !std::ranges::all_of(
              made->uses(), [&](const Use& use) { return use.user == node || use.user->isAfter(node); })) {
        return;
      }
      Node* filled = node->replaceWithNewSymbol(fill->second);
      node->destroy();
      made->replaceAllUsesAfterNodeWith(filled, filled->output());
    });
  }

  // Values that operators write to. With `lists`, also lists that only get or lose elements. Batch norms are listed
  // here, since the alias analysis of a frozen graph assumes that they do not train.
  std::vector<Value*> written(bool lists) {
    std::vector<Value*> result;
    forEachNode(*graph_, [&](Node* node) {
      if (node->kind() == aten::batch_norm && constantNumber(node, "training") != 0.0) {
        result.insert(result.end(), {inputOf(node, "running_mean"), inputOf(node, "running_var")});
      }
      if (const auto* schema = node->maybeSchema(); schema && schema->is_mutable()) {
        for (size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
          const auto* alias = schema->arguments()[i].alias_info();
          const bool list_alone = node->input(i)->type()->kind() == c10::TypeKind::ListType &&
                                  alias != nullptr && alias->containedTypes().empty();
          if (alias != nullptr && alias->isWrite() && (lists || !list_alone)) {
            result.push_back(node->input(i));
          }
        }
      }
    });
    return result;
  }

  // Attributes that the method may change: assigned, written to, or sharing memory with one of these. Attributes
  // that are used in a forked branch or in an object of the user's class count too: writes cannot be seen there.
  std::set<Attribute> changed() {
    auto result = assigned();
    const AliasDb aliases(graph_, /*isFrozen=*/true);
    auto touched = written(/*lists=*/true), touched_tensors = written(/*lists=*/false);
    forEachAttribute(prim::SetAttr, [&](Node* node, const BoundModule&, const Attribute&) {
      touched.push_back(assignedBy(node)); // the value may be written to through the attribute
      touched_tensors.push_back(assignedBy(node));
    });
    // PyTorch's analysis counts the contents of all lists as one: results in a list, and a recurrent layer's
    // weights.
    std::optional<AliasClasses> classes;
    const auto mayReach = [&](Value* attribute) {
      if (!classes) {
        classes.emplace(*graph_, &module_);
      }
      return classes->isWritten(attribute) ||
             std::ranges::any_of(touched, [&](Value* other) { return classes->mayAlias(attribute, other); });
    };
    const auto mayChange = [&](Node* node, const IValue& value) {
      if (node->owningGraph() != graph_.get() || value.isObject() || aliases.hasWriters(node->output())) {
        return true;
      }
      const auto& others = value.isTensor() ? touched_tensors : touched;
      return std::ranges::any_of(others, [&](Value* other) {
        return other == node->output() ||
               ((value.isTensor() || isContainer(value)) && aliases.mayContainAlias(other, node->output()));
      });
    };
    forEachAttribute(prim::GetAttr, [&](Node* node, const BoundModule& owner, const Attribute& attribute) {
      const IValue value = owner.attribute(node);
      const bool elsewhere = node->owningGraph() != graph_.get() || value.isObject();
      if (mayChange(node, value) && (elsewhere || mayReach(node->output()))) {
        result.insert(attribute);
      }
    });
    Memory memory;
    for (const auto& attribute : result) {
      addMemory(attribute.value(), memory);
    }
    if (!memory.empty()) {
      forEachAttribute(prim::GetAttr, [&](Node* node, const BoundModule& owner, const Attribute& attribute) {
        Memory parts;
        addMemory(owner.attribute(node), parts);
        const auto shared = [&](const IValue& part) { return memory.count(part) > 0; };
        if (std::ranges::any_of(parts, shared)) {
          result.insert(attribute);
        }
      });
    }
    return result;
  }

  // Inserts constants at the start of the graph, where insertion takes constant time.
  template <typename Filter>
  void insertConstants(const std::set<Attribute>& changed, Filter filter) {
    std::map<Attribute, Value*> constants;
    forEachAttribute(prim::GetAttr, [&](Node* node, const BoundModule& owner, const Attribute& attribute) {
      const IValue value = owner.attribute(node);
      if (node->owningGraph() != graph_.get() || changed.count(attribute) || !filter(value)) {
        return;
      }
      if (!constants.count(attribute)) {
        constants[attribute] = insertInFront(detached(value), *node->output()->type(), owner.pathOf(node));
      }
      if (Value* constant = constants[attribute]) {
        replaceNode(node, constant);
      }
    });
  }

  // Null if the value cannot be a constant of that type.
  Value* insertInFront(const IValue& value, const c10::Type& type, const std::string& path) {
    torch::jit::WithInsertPoint guard(graph_->block()->nodes().front());
    const auto constant = torch::jit::tryInsertConstant(*graph_, value);
    if (!constant) {
      return nullptr;
    }
    if (!(*constant)->type()->isSubtypeOf(type)) { // for example a named tuple, which loses its name
      (*constant)->node()->destroy();
      return nullptr;
    }
    const bool number = path.find_first_not_of("0123456789") == std::string::npos; // is no name
    if (value.isTensor() && !number) {
      (*constant)->setDebugName(path);
    }
    return *constant;
  }

  // Attributes that the graph reads and assigns, modules too, with the first path of each.
  std::map<Attribute, std::string> used() {
    std::map<Attribute, std::string> result;
    forEachNodeAnywhere(*graph_, [&](Node* node) {
      if (node->kind() == prim::GetAttr || node->kind() == prim::SetAttr) {
        if (const auto owner = modules_.find(objectOf(node)); owner != modules_.end()) {
          result.emplace(
              Attribute{owner->second.object.get(), node->s(attr::name)}, owner->second.pathOf(node));
        }
      }
    });
    return result;
  }

  // A module of a new type, with only the attributes that the graph reads and assigns.
  Module result() {
    modules_ = bindModules(*graph_, module_);
    auto kept = used();
    kept.emplace(Attribute{module_._ivalue().get(), "training"}, "training"); // train() and eval() set it
    const auto keep = [&](const c10::ivalue::Object& owner, const std::string& name) {
      return kept.count({&owner, name}) > 0;
    };
    // A copy, so that running the result does not change the caller's module.
    return rebuildModule(module_, {{method_, graph_}}, keep, Values::Copied);
  }

  Module module_;
  std::string method_;
  std::shared_ptr<Graph> graph_;
  std::set<Attribute> state_; // attributes that other methods change
  BoundModules modules_;
};

// For modules that are not bound: from branches, lists and loops.
Module freezeByPyTorch(const Module& module, const std::string& method) {
  auto frozen = torch::jit::freeze_module(cloneModule(module), {method}).deepcopy();
  for (const auto& other : frozen.get_methods()) {
    if (other.name() != method) {
      frozen.type()->unsafeRemoveMethod(other.name());
    }
  }
  return frozen;
}

bool freeze(PassContext& context) {
  const auto state = attributesAt(context.module(), context.option("state"));
  const auto frozen = Freezer(context.module(), context.method(), state).run();
  context.module() = frozen ? *frozen : freezeByPyTorch(context.module(), context.method());
  return true;
}

std::optional<std::string> checkInlined(const PassContext& context) {
  const Node* call = findCall(*context.graph());
  return call == nullptr ? std::nullopt : std::optional("a call is left: " + describe(call));
}

const RegisterInvariant inlined{"inlined", "No calls of methods or functions.", checkInlined};
const RegisterPass freeze_pass{
    "freeze",           "Inline everything into one graph with constant parameters.", freeze, {},
    ensures("inlined"), takes({{"state", "list[str]", c10::List<std::string>()}})};

} // namespace

std::optional<MethodState> stateOf(const Module& module, const std::string& method) {
  return Freezer(module, method).state();
}

} // namespace jit_passes
