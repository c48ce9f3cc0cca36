// Patterns and replacements as text: IR, or expressions, whose inputs are the names that nothing defines.
//
//   graph(%x):
//     %one : int = prim::Constant[value=1]()
//     %s = aten::sigmoid(%x)                   aten::mul(%x, aten::add(aten::sigmoid(%x), 1, 1))
//     %a = aten::add(%s, %one, %one)
//     %y = aten::mul(%x, %a)
//     return (%y)
//
// Operands are values, %x, or %x : Tensor where an input is named first; calls; numbers, True, False, None, strings
// and lists. A value that is read twice, or a call with several results, has a line of its own. (%a, %b) are two
// results:
//
//   %s, %z = jit_passes::choose_qparams(%x, 0, 255, "per_tensor_affine", "fbgemm")
//   jit_passes::quantize_dynamic(%x, %s, %z, 0, 255, 0)
#pragma once

#include "graph/graph.h"

namespace jit_passes JIT_PASSES_API {

// The operators that a name in a pattern may stand for, match::activation or aten::relu.
using Alternatives = std::unordered_map<c10::Symbol, std::unordered_set<c10::Symbol>>;

enum class TextOf { Pattern, Replacement };

struct TextGraph {
  std::shared_ptr<Graph> graph;
  std::unordered_set<const Value*> typed; // inputs that have a type in the text
};

// A list of numbers becomes a constant in a replacement, and prim::ListConstruct in a pattern, which matches both.
TextGraph readGraph(const std::string& text, const Alternatives& alternatives, TextOf of);

} // namespace jit_passes JIT_PASSES_API
