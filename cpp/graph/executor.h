// The moments at which PyTorch's executor lets others change a graph.
#pragma once

#include "graph.h"

namespace jit_passes {

enum class Moment { AfterAutograd, AfterFusion };

// Gets the executor's graph and returns the one to go on with, or nothing for the same one.
using GraphHook = std::function<std::shared_ptr<Graph>(const std::shared_ptr<Graph>&)>;

// Calls the function whenever the executor prepares a graph, while `active`. A function stays in
// PyTorch's list for good: taking it out would race with threads that go through the list.
void onGraph(Moment moment, GraphHook function);
void setActive(Moment moment, bool active);

// Types of tensors that the executor has seen in a graph, by the names of the values.
using Profile = std::unordered_map<std::string, c10::TypePtr>;

// Takes the executor's profile nodes out of a graph. They stand between operators, where no pattern
// expects them, and the shapes they have seen are no facts for a pass.
Profile takeProfile(std::shared_ptr<Graph>& graph);
// Gives the values that are still there their types back, for the fusers, which guard what they use.
void putProfile(Graph& graph, const Profile& profile);

} // namespace jit_passes
