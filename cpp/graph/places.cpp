#include "places.h"

namespace jit_passes {

bool isPlaceSchema(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return arguments.size() > 1 && arguments.back().name() == "spec" &&
         arguments.back().type()->kind() == c10::TypeKind::StringType;
}

bool isPlace(const Node* node) {
  // Looking up a schema takes longer than this.
  if (node->inputs().size() < 2 || node->inputs().back()->type()->kind() != c10::TypeKind::StringType) {
    return false;
  }
  const auto* schema = node->maybeSchema();
  return schema != nullptr && isPlaceSchema(*schema);
}

bool isObserver(const Node* node) { return node->outputs().empty() && isPlace(node); }

bool isTrained(const Node* node) { return !node->outputs().empty() && isPlace(node); }

std::vector<Node*> placesOf(Graph& graph) { return nodesWhere(graph, isPlace); }

int64_t placeIdOf(const Node* node) {
  static constexpr std::string_view start = "{\"id\": ";
  const auto text = constantOf(node->inputs().back());
  TORCH_CHECK(
      text && text->isString() && text->toStringRef().rfind(start, 0) == 0, describe(node),
      " has no place with an id: was the model prepared by another version of jit_passes?");
  return std::stoll(text->toStringRef().substr(start.size()));
}

} // namespace jit_passes
