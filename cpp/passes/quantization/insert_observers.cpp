// Insert observers at the annotated values.
//
//   %y = aten::conv2d(...)      ->   %y = aten::conv2d(...)
//                                    %range = prim::GetAttr[name="observer_0_range"](%self)
//                                    jit_passes::observe_min_max(%y, %range, ...)
//
// An observation of some uses only goes through an edge, which converting will quantize:
//
//   %z = aten::conv2d(%x, ...)  ->   %e = jit_passes::edge(%x)
//                                    jit_passes::observe_min_max(%e, %range, ...)
//                                    %z = aten::conv2d(%e, ...)
//
// quantization/insertion.h describes the operators and their operands. Places of one group share their states, which
// are buffers, and so get equal parameters.
#include "graph/dialect.h"
#include "quantization/insertion.h"

namespace jit_passes {
namespace {

// The operand of the observer: the value, or an edge, which the annotated uses then read.
Value* observed(const AnnotatedValue& annotated, Node* before) {
  if (annotated.uses.empty()) {
    return annotated.value;
  }
  Value* named = insertValue(before, edge, {annotated.value}, before, annotated.value->type());
  for (const auto& use : annotated.uses) {
    use.user->replaceInput(use.offset, named);
  }
  return named;
}

bool insertObservers(PassContext& context) {
  Insertions insertions(context);
  for (const Insertion& insertion : insertions.all()) {
    Node* before = insertions.nodeFor(insertion);
    insertions.insert(insertion, observed(insertion.annotated, before), before, before);
  }
  return !insertions.all().empty();
}

const RegisterPass insert_observers_pass{
    "insert_observers", "Insert the observers that the annotations ask for.", insertObservers,
    needs("inlined"), takes({{"places", "list"}, {"states", "list"}})};

} // namespace
} // namespace jit_passes
