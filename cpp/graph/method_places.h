// Places of a method, as stages keep them: ids beside the file, state beside the model's own attributes.
#pragma once

#include "places.h"

namespace jit_passes JIT_PASSES_API {

// For each kind of operator with places: the id of the place of each node in program order, or nothing.
using PlaceIds = std::map<std::string, std::vector<std::optional<int64_t>>>;

// Ids of the method's places; called modules are included. Files keep the order of nodes, and not the ids.
PlaceIds placeIds(const torch::jit::Module& module, const std::string& method);

// Gives operators the places that a file does not keep. Kinds whose number of nodes has changed are left alone.
void restorePlaces(const torch::jit::Module& module, const std::string& method, const PlaceIds& ids);

// The paths of the attributes that places read, apart from their first operand, in program order.
std::vector<std::string> statePaths(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes JIT_PASSES_API
