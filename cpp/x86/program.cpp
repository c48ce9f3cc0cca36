// Kinds of operators: their names, and what their states are made of, in the order of `Kind`.
#include "signature.h"

namespace jit_passes::x86 {
namespace {

constexpr size_t kDynamicConvolution = size_t{ConvolutionAttributes::Count} + DynamicAttributes::Count;

constexpr Signature kSignatures[] = {
    {"input", 0, 0, 1, 1, 0, 0},
    {"quantize", 1, 1, 0, 0, 0, 0},
    {"dequantize", 1, 1, 0, 0, 0, 0},
    {"convolution", 1, 2, ConvolutionAttributes::Count, ConvolutionAttributes::Count, 3, 4},
    {"transposed_convolution", 1, 1, ConvolutionAttributes::Count, ConvolutionAttributes::Count, 3, 3},
    {"linear", 1, 2, 0, 0, 3, 4},
    {"linear_dynamic", 1, 1, DynamicAttributes::Count, DynamicAttributes::Count, 3, 3},
    {"convolution_dynamic", 1, 1, kDynamicConvolution, kDynamicConvolution, 3, 3},
    {"transposed_convolution_dynamic", 1, 1, kDynamicConvolution, kDynamicConvolution, 3, 3},
    {"function", 1, 1, 1, 1, 1, 1},
    {"affine", 1, 4096, 0, 0, 3, 3},
    {"table", 1, 1, 0, 0, 1, 1},
    {"add", 2, 2, 0, 0, 1, 1},
    {"multiply", 2, 2, 0, 0, 0, 0},
    {"divide", 2, 2, 0, 0, 0, 0},
    {"fill", 2, 2, 1, 1, 0, 0},
    {"max_pool", 1, 1, PoolAttributes::Count, PoolAttributes::Count, 0, 0},
    {"average_pool", 1, 1, PoolAttributes::Count, PoolAttributes::Count, 0, 0},
    {"adaptive_average", 1, 1, 2, 4, 0, 0},
    {"mean", 1, 1, 2, 4, 0, 0},
    {"sum", 1, 1, 2, kMostAxes + 1, 0, 0},
    {"length", 1, 1, 2, kMostAxes + 1, 0, 0},
    {"largest", 1, 1, 2, kMostAxes + 1, 0, 0},
    {"smallest", 1, 1, 2, kMostAxes + 1, 0, 0},
    {"concat", 1, 4096, 1, 1, 0, 0},
    {"flatten", 1, 1, 2, 2, 0, 0},
    {"reshape", 1, 1, 0, kMostMovedAxes, 0, 0},
    {"unflatten", 1, 1, 2, kMostMovedAxes + 1, 0, 0},
    {"permute", 1, 1, 1, kMostMovedAxes, 0, 0},
    {"transpose", 1, 1, 2, 2, 0, 0},
    {"unsqueeze", 1, 1, 1, 1, 0, 0},
    {"squeeze", 1, 1, 1, kMostMovedAxes, 0, 0},
    {"expand", 1, 1, 1, kMostAxes, 0, 0},
    {"roll", 1, 1, 2, 2 * kMostAxes, 0, 0},
    {"shuffle", 1, 1, 2, 2, 0, 0},
    {"slice", 1, 1, 4, 4, 0, 0},
    {"narrow", 1, 1, 4, 4, 0, 0},
    {"part", 1, 1, PartAttributes::Sizes + 1, 4096, 0, 0},
    {"pad", 1, 1, 2, 8, 0, 0},
    {"resize_nearest", 1, 1, 1, 4, 0, 1},
    {"resize_bilinear", 1, 1, 2, 4, 0, 1},
    {"matrix_product", 2, 2, 1, 1, 0, 0},
    {"softmax", 1, 1, 1, 2, 0, 0},
    {"layer_norm", 1, 1, 0, 0, NormTensors::Count, NormTensors::Count},
    {"rms_norm", 1, 1, 0, 0, NormTensors::Count, NormTensors::Count},
    {"group_norm", 1, 1, 1, 1, NormTensors::Count, NormTensors::Count},
    {"recurrent", 2, 3, RecurrentAttributes::Count, RecurrentAttributes::Count, 3, 3},
    {"constant", 0, 0, 0, 0, 1, 1},
    {"power", 0, 0, 1, 1, 1, 1},
};
constexpr size_t kKinds = std::size(kSignatures);
static_assert(kKinds == static_cast<size_t>(Kind::Power) + 1);

} // namespace

const Signature& signatureOf(Kind kind) { return kSignatures[static_cast<size_t>(kind)]; }
bool isKind(Kind kind) { return static_cast<size_t>(kind) < kKinds; }

const char* nameOf(Kind kind) { return signatureOf(kind).name; }

Kind kindNamed(const std::string& name) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (name == kSignatures[kind].name) {
      return static_cast<Kind>(kind);
    }
  }
  TORCH_CHECK(false, "not a plan: no operator is called '", name, "'; a newer jit_passes may know it");
}

} // namespace jit_passes::x86
