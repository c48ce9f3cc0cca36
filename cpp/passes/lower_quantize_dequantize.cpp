// Turn what is left of the dialect at the borders between float and integers into PyTorch's
// quantized dtypes.
//
//   %q = jit_passes::quantize(%x, scale, zero_point, 0, 255, uint8)
//     ->  %q = aten::quantize_per_tensor(%x, scale, zero_point, quint8)
//   %d = jit_passes::dequantize(%q, scale, zero_point)
//     ->  %d = aten::dequantize(%q)
//
// Results of the model, and values that are written in place, get the memory layout that they have
// in the float model: the caller, or the model, may take views of them.
#include "core/alias.h"
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

using c10::Symbol;

const auto quantize = Symbol::fromQualString("jit_passes::quantize");
const auto dequantize = Symbol::fromQualString("jit_passes::dequantize");

at::ScalarType quantizedDtype(const Node* node) {
  const auto dtype = static_cast<at::ScalarType>(*constantNumber(node->input(5)));
  TORCH_CHECK(
      dtype == at::kByte || dtype == at::kChar,
      "PyTorch's quantized operators work on uint8 and int8, not on ", dtype);
  return dtype == at::kByte ? at::kQUInt8 : at::kQInt8;
}

// Whether the value is returned, alone or in a tuple, list or dict.
bool isResult(const Value* value) {
  return std::any_of(value->uses().begin(), value->uses().end(), [](const torch::jit::Use& use) {
    return use.user->kind() == c10::prim::Return || use.user->kind() == c10::prim::TupleConstruct ||
           use.user->kind() == c10::prim::ListConstruct || use.user->kind() == c10::prim::DictConstruct;
  });
}

bool lowerQuantizeDequantize(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  bool changed = false;
  forEachNode(*graph, [&](Node* node) {
    Node* lowered = nullptr;
    if (node->kind() == quantize) {
      Value* dtype = insertConstant(node, static_cast<int64_t>(quantizedDtype(node)));
      lowered = insertNode(
          node, c10::aten::quantize_per_tensor, {node->input(0), node->input(1), node->input(2), dtype},
          node);
    } else if (node->kind() == dequantize) {
      lowered = insertNode(node, c10::aten::dequantize, {node->input(0)}, node);
      if (isResult(node->output()) || written.count(node->output())) {
        Value* layout = insertConstant(node, static_cast<int64_t>(at::MemoryFormat::Contiguous));
        lowered = insertNode(node, c10::aten::contiguous, {lowered->output(), layout}, node);
      }
    } else {
      return;
    }
    replaceNode(node, lowered->output());
    changed = true;
  });
  return changed;
}

const RegisterPass registration{
    "lower_quantize_dequantize",
    "Turn quantize and dequantize into PyTorch's quantized dtypes.",
    lowerQuantizeDequantize,
    {"no_observers"}};

} // namespace
} // namespace jit_passes
