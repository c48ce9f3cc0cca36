// Tracing records aten::_convolution; bring it to the form that scripting has.
//
//   aten::_convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups, ...)
//     ->  aten::conv{1,2,3}d(x, w, b, stride, padding, dilation, groups)
//     or  aten::conv_transpose{1,2,3}d(x, w, b, stride, padding, output_padding, groups, dilation)
//   aten::_convolution_mode(x, w, b, stride, "same" or "valid", dilation, groups)
//     ->  aten::conv{1,2,3}d(x, w, b, stride, "same" or "valid", dilation, groups)
#include "graph/registry.h"
#include "passes/convolution.h"

namespace jit_passes {
namespace {

bool canonicalizeConvolution(PassContext& context) {
  static const auto kinds = symbols({"aten::_convolution", "aten::_convolution_mode"});
  const KnownValues known(context);
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    const auto convolution = kinds.count(node->kind()) ? readConvolution(node) : std::nullopt;
    return convolution && known.length(convolution->stride)
               ? convolution->insert(convolution->knownDims(known), node, node)
               : nullptr;
  });
}

const RegisterPass canonicalize_convolution_pass{
    "canonicalize_convolution", "Turn traced aten::_convolution into conv and conv_transpose.",
    canonicalizeConvolution, needs("inlined")};

} // namespace
} // namespace jit_passes
