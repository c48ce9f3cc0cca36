// Join the modules in which single methods were quantized into one module.
//
//   graph(%self, %x):
//     %quantized_encode = prim::GetAttr[name="quantized_encode"](%self)
//     %y = prim::CallMethod[name="encode"](%quantized_encode, %x)
//     return (%y)
#include "methods.h"

namespace jit_passes {
namespace {

std::shared_ptr<Graph> graphOfArguments(const Graph& like) {
  auto graph = std::make_shared<Graph>();
  for (const Value* argument : like.inputs()) {
    graph->addInput(argument->hasDebugName() ? argument->debugName() : "")->setType(argument->type());
  }
  return graph;
}

// Fills the graph of a method, which has arguments and no nodes.
void callMethodOf(Module& joined, const std::string& method, const Module& quantized) {
  const auto name = "quantized_" + method;
  joined.register_module(name, quantized);
  Graph& graph = *joined.get_method(method).graph();
  std::vector<Value*> operands(graph.inputs().begin(), graph.inputs().end());
  operands[0] = graph.insertGetAttr(operands[0], name);
  Node* call = graph.insertNode(graph.create(prim::CallMethod, operands, 1));
  call->s_(attr::name, method);
  call->output()->setType(quantized.get_method(method).graph()->outputs().at(0)->type());
  graph.registerOutput(call->output());
}

} // namespace

bool isContainer(const c10::IValue& value) {
  return value.isList() || value.isTuple() || value.isGenericDict();
}

void addMemory(const c10::IValue& value, Memory& memory) {
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor() || part.isObject() || isContainer(part)) {
      memory.insert(part);
    }
    return false;
  });
}

Module joinMethods(const Module& original, const std::vector<std::pair<std::string, Module>>& quantized) {
  Methods methods;
  std::set<Attribute> kept{{original._ivalue().get(), "training"}}; // what train() and eval() set
  for (const auto& method : original.get_methods()) {
    const auto& name = method.name();
    if (std::ranges::any_of(quantized, [&](const auto& part) { return part.first == name; })) {
      methods.emplace_back(name, graphOfArguments(*method.graph()));
      continue;
    }
    const auto state = stateOf(original, name);
    TORCH_CHECK(state, "the method '", name, "' picks modules as it runs");
    methods.emplace_back(name, state->graph);
    for (const auto& [attribute, path] : state->used) {
      kept.insert(attribute);
    }
  }
  const auto keep = [&](const c10::ivalue::Object& owner, const std::string& name) {
    return kept.count({&owner, name}) > 0;
  };
  Module joined = rebuildModule(original, methods, keep, Values::Copied);
  std::unordered_set<std::string> names;
  for (const auto& [name, part] : quantized) {
    callMethodOf(joined, name, part);
    names.insert(name);
  }
  shareState(original, commonState(original, names), joined, quantized);
  shareEqual(joined);
  return joined;
}

} // namespace jit_passes
