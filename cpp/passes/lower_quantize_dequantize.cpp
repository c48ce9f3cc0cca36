// Turn what is left of the dialect at the borders between float and integers into PyTorch's
// quantized dtypes.
//
//   %q = jit_passes::quantize(%x, scale, zero_point, 0, 255, uint8)
//     ->  %q = aten::quantize_per_tensor(%x, scale, zero_point, quint8)
//   %d = jit_passes::dequantize(%q, scale, zero_point)
//     ->  %d = aten::dequantize(%q)
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
      dtype == at::kByte || dtype == at::kChar, "PyTorch's quantized operators work on uint8 and int8, not on ",
      dtype);
  return dtype == at::kByte ? at::kQUInt8 : at::kQInt8;
}

bool lowerQuantizeDequantize(PassContext& context) {
  bool changed = false;
  forEachNode(*context.graph(), [&](Node* node) {
    Node* lowered = nullptr;
    if (node->kind() == quantize) {
      Value* dtype = insertConstant(node, static_cast<int64_t>(quantizedDtype(node)));
      lowered = insertNode(
          node, c10::aten::quantize_per_tensor, {node->input(0), node->input(1), node->input(2), dtype}, node);
    } else if (node->kind() == dequantize) {
      lowered = insertNode(node, c10::aten::dequantize, {node->input(0)}, node);
    } else {
      return;
    }
    replaceNode(node, lowered->output());
    changed = true;
  });
  return changed;
}

const RegisterPass registration{
    "lower_quantize_dequantize", "Turn quantize and dequantize into PyTorch's quantized dtypes.",
    lowerQuantizeDequantize, {"no_observers"}};

} // namespace
} // namespace jit_passes
