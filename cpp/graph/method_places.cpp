#include "method_places.h"

#include "module.h"

namespace jit_passes {

PlaceIds placeIds(const Module& module, const std::string& method) {
  PlaceIds ids;
  std::unordered_set<std::string> kinds;
  const auto graph = inlinedGraph(module, method);
  forEachNode(*graph, [&](const Node* node) {
    const auto place = placeOf(node);
    const std::string kind = node->kind().toQualString();
    ids[kind].push_back(place);
    if (place) {
      kinds.insert(kind);
    }
  });
  std::erase_if(ids, [&](const auto& row) { return !kinds.count(row.first); });
  return ids;
}

void restorePlaces(const Module& module, const std::string& method, const PlaceIds& ids) {
  std::map<std::string, std::vector<Node*>> nodes;
  forEachNode(*module.get_method(method).graph(), [&](Node* node) {
    nodes[node->kind().toQualString()].push_back(node);
  });
  for (const auto& [kind, places] : ids) {
    const auto& found = nodes[kind];
    for (size_t i = 0; found.size() == places.size() && i < places.size(); ++i) {
      if (places[i]) {
        setPlace(found[i], *places[i]);
      }
    }
  }
}

std::vector<std::string> statePaths(const Module& module, const std::string& method) {
  std::vector<std::string> paths;
  for (const Node* node : placesOf(*module.get_method(method).graph())) {
    for (const Value* value : node->inputs().slice(1)) {
      if (value->node()->kind() == prim::GetAttr) {
        paths.push_back(attributePath(value));
      }
    }
  }
  return paths;
}

} // namespace jit_passes
