// The moments at which PyTorch's executor lets others change a graph.
#pragma once

#include "graph.h"

namespace jit_passes {

enum class Moment { AfterAutograd, AfterFusion };

// Gets the executor's graph and returns the one to go on with, or nothing for the same one.
using GraphFunction = std::function<std::shared_ptr<Graph>(const std::shared_ptr<Graph>&)>;

// Calls the function whenever the executor prepares a graph, while `active`. A function stays in
// PyTorch's list for good: taking it out would race with threads that go through the list.
void onGraph(Moment moment, GraphFunction function);
void setActive(Moment moment, bool active);

} // namespace jit_passes
