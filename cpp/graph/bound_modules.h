// The modules that a method's graph reads from its first input. With them, more calls can be inlined.
#pragma once

#include "attributes.h"

namespace jit_passes JIT_PASSES_API {

struct BoundModule {
  c10::intrusive_ptr<c10::ivalue::Object> object;
  std::string path;

  c10::IValue attribute(const Node* get) const { return attributeNamed(*object, get->s(attr::name)).value(); }
  std::string pathOf(const Node* get) const;
};

using BoundModules = std::unordered_map<const Value*, BoundModule>;

// Visits nodes of the graph, and of forked branches that could not be inlined. The visit may destroy its node.
void forEachNodeAnywhere(Graph& graph, const std::function<void(Node*)>& visit);

// The module behind each value of a module's type. A value of an interface type gets the type of its class. Values
// that come out of branches, lists and loops are not bound.
BoundModules bindModules(Graph& graph, const Module& root);

// Whether the graph assigns a module to an attribute: then no attribute is certain to keep the module that it has.
bool exchangesModules(Graph& graph);

// Turns calls of modules that an index picks at run time into branches. Returns whether there were any.
bool expandPicks(Graph& graph);

// Inlines all calls of a method's graph, calls through an interface and of modules that an index picks included. The
// root tells the class behind an interface.
void inlineCalls(Graph& graph, const Module& root);

} // namespace jit_passes JIT_PASSES_API
