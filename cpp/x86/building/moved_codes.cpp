#include "moved_codes.h"

#include "graph/dialect.h"
#include "graph/operators.h"

namespace jit_passes::x86 {
namespace {

// The dequantize whose result other operators have moved to give the value, or null.
Node* movedFrom(const Value* value) {
  Node* node = const_cast<Node*>(value->node());
  bool moved = false;
  while (node->kind() == c10::prim::ListUnpack || movesData(node)) {
    moved |= !isElementwise(node);
    node = node->input(0)->node();
  }
  const bool known = node->kind() == dequantize && node->input(0)->node()->kind() == quantize;
  return moved && known ? node : nullptr;
}

} // namespace

void requantizeMoved(Graph& graph) {
  std::unordered_map<const Value*, Value*> quantized;
  for (Node* reader : nodesWhere(graph, isElementwise)) {
    for (size_t i = 0; i < reader->inputs().size(); ++i) {
      Value* value = reader->input(i);
      Node* back = movedFrom(value);
      if (back == nullptr) {
        continue;
      }
      Value*& again = quantized[value];
      if (again == nullptr) {
        Node* source = back->input(0)->node();
        Node* codes = graph.createClone(source, [&](Value* v) { return v == source->input(0) ? value : v; });
        codes->insertAfter(value->node());
        Node* floats =
            graph.createClone(back, [&](Value* v) { return v == back->input(0) ? codes->output() : v; });
        again = floats->insertAfter(codes)->output();
      }
      reader->replaceInput(i, again);
    }
  }
}

Grid movedGrid(Kind kind, Grid grid) {
  if (kind == Kind::Pad) {
    grid.low = std::min(grid.low, grid.zero_point), grid.high = std::max(grid.high, grid.zero_point);
  }
  return grid;
}

} // namespace jit_passes::x86
