#include "annotated.h"

#include "snapshot.h"

namespace jit_passes {

AnnotatedGraph::AnnotatedGraph(Graph& graph) : nodes_(nodesInOrder(graph)) {
  forEachValue(graph.block(), [&](Value* value) { values_[value->unique()] = value; });
}

AnnotatedValue AnnotatedGraph::find(int64_t value, const c10::IValue& uses) const {
  AnnotatedValue found{values_.at(value), {}};
  for (const c10::IValue& use : uses.toListRef()) {
    const auto& fields = use.toTupleRef().elements();
    found.uses.emplace_back(nodes_.at(fields[0].toInt()), fields[1].toInt());
  }
  return found;
}

Node* nodeAfter(const AnnotatedValue& annotated) {
  if (!annotated.uses.empty()) {
    return annotated.uses.front().user;
  }
  if (isConstant(annotated.value)) {
    return annotated.value->uses().at(0).user;
  }
  Node* maker = annotated.value->node();
  return maker->kind() == c10::prim::Param ? maker->owningBlock()->nodes().front() : maker->next();
}

} // namespace jit_passes
