// Compute quantize of constants ahead of time: the integers replace the float weights.
//
//   %q = jit_passes::quantize_per_channel(%constant, ...)   ->   %q = prim::Constant[value=<int8>]
//
// With the option `dequantize`, dequantize of constants is computed too, for operators that stay in float.

#include <ATen/core/LegacyTypeDispatch.h>

#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool foldQuantizedConstants(PassContext& context) {
  const bool fold_dequantize = context.option("dequantize").toBool();
  const at::AutoDispatchBelowADInplaceOrView without_autograd; // it would take longer than the work
  return changeNodes(*context.graph(), [&](Node* node) {
    if (!startsWith(node, "jit_passes::quantize") && !startsWith(node, "jit_passes::fake_quantize") &&
        !(fold_dequantize && startsWith(node, "jit_passes::dequantize"))) {
      return false;
    }
    const auto result = torch::jit::runNodeIfInputsAreConstant(node);
    if (!result) {
      return false;
    }
    replaceComputation(node, insertConstant(node, result->at(0)));
    return true;
  });
}

const RegisterPass fold_quantized_constants_pass{
    "fold_quantized_constants", "Quantize constants ahead of time, so that files hold integers only.",
    foldQuantizedConstants, needs("no_observers"), takes({{"dequantize", "bool", false}})};

} // namespace
} // namespace jit_passes
