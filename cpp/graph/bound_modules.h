// Which modules a method's graph reads from its first input, and the calls that can be inlined once that is known.
#pragma once

#include "attributes.h"
#include "module.h"

namespace jit_passes JIT_PASSES_API {

struct BoundModule {
  c10::intrusive_ptr<c10::ivalue::Object> object;
  std::string path;

  c10::IValue attribute(const Node* get) const { return attributeNamed(*object, get->s(attr::name)).value(); }
  std::string pathOf(const Node* get) const;
};

using BoundModules = std::unordered_map<const Value*, BoundModule>;

// Nodes of the graph, and of forked branches that could not be inlined. The visited node may be destroyed.
void forEachNodeAnywhere(Graph& graph, const std::function<void(Node*)>& visit);

// The module that each value of a module's type is. One of an interface gets the class that it has. Modules behind
// branches, in lists and in loops are not bound.
BoundModules bindModules(Graph& graph, const Module& root);

// Whether the graph puts another module in the place of one: then none of its attributes is bound for certain.
bool exchangesModules(Graph& graph);

// Calls of modules that an index picks as the model runs become branches. Returns whether there were some.
bool expandPicks(Graph& graph);

// Inlines all calls of a method's graph: those through an interface too, whose class the root tells, and those of
// modules that an index picks.
void inlineCalls(Graph& graph, const Module& root);

} // namespace jit_passes JIT_PASSES_API
