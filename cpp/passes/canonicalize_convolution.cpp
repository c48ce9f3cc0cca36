// Tracing records aten::_convolution; bring it to the form that scripting has.
//
//   aten::_convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups, ...)
//     ->  aten::conv{1,2,3}d(x, w, b, stride, padding, dilation, groups)
//     or  aten::conv_transpose{1,2,3}d(x, w, b, stride, padding, output_padding, groups, dilation)
//   aten::_convolution_mode(x, w, b, stride, "same" or "valid", dilation, groups)
//     ->  aten::conv{1,2,3}d(x, w, b, stride, "same" or "valid", dilation, groups)
#include "core/known_values.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

// A list of one number stands for any number of axes, so the weight is asked first.
std::optional<int64_t> spatialDims(const Node* node, const KnownValues& known) {
  const auto stride = known.length(node->input(3));
  if (!stride) {
    return std::nullopt;
  }
  if (const auto rank = known.rank(node->input(1))) {
    return *rank - 2;
  }
  int64_t longest = *stride;
  for (const size_t operand : {4, 5}) { // padding may be a word
    longest = std::max(longest, known.length(node->input(operand)).value_or(0));
  }
  return longest;
}

bool canonicalizeConvolution(PassContext& context) {
  static const auto convolution = symbol("aten::_convolution");
  static const auto convolution_mode = symbol("aten::_convolution_mode");
  const KnownValues known(context);
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    if (node->kind() != convolution && node->kind() != convolution_mode) {
      return nullptr;
    }
    const auto dims = spatialDims(node, known);
    const bool by_mode = node->kind() == convolution_mode;
    const auto transposed = by_mode ? std::optional(0.0) : constantNumber(node->input(6));
    if (!dims || *dims < 1 || *dims > 3 || !transposed) {
      return nullptr;
    }
    const auto in = node->inputs();
    const auto name =
        std::string(*transposed ? "aten::conv_transpose" : "aten::conv") + std::to_string(*dims) + "d";
    const std::vector<Value*> operands =
        by_mode       ? in.vec()
        : *transposed ? std::vector<Value*>{in[0], in[1], in[2], in[3], in[4], in[7], in[8], in[5]}
                      : std::vector<Value*>{in[0], in[1], in[2], in[3], in[4], in[5], in[8]};
    return insertNode(node, symbol(name), operands, node)->output();
  });
}

const RegisterPass canonicalize_convolution_pass{
    "canonicalize_convolution",
    "Turn traced aten::_convolution into conv and conv_transpose.",
    canonicalizeConvolution,
    {"inlined"}};

} // namespace
} // namespace jit_passes
