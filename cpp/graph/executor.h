// The moments at which PyTorch's executor lets other code change a graph.
#pragma once

#include "graph.h"

namespace jit_passes {

enum class Moment { AfterAutograd, AfterFusion };

// Gets the executor's graph. Returns the graph to go on with, or null to keep it.
using GraphHook = std::function<std::shared_ptr<Graph>(const std::shared_ptr<Graph>&)>;

// Calls the function whenever the executor prepares a graph, while `active`. A function stays in
// PyTorch's list for good: taking it out would race with threads that go through the list.
void onGraph(Moment moment, GraphHook function);
void setActive(Moment moment, bool active);

// Types of tensors that the executor has seen in a graph, by the names of the values.
using Profile = std::unordered_map<std::string, c10::TypePtr>;

// Removes the executor's profile nodes from a graph. Profile nodes stand between operators, where no pattern expects
// them, and a pass must not rely on the shapes that they have seen.
Profile takeProfile(std::shared_ptr<Graph>& graph);
// Gives values that are still in the graph their profiled types back. The fusers use these types, behind guards.
void putProfile(Graph& graph, const Profile& profile);

} // namespace jit_passes
