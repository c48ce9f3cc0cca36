// Second names for a value.
//
//   jit_passes::edge                   so that some uses can be quantized and others not
//   jit_passes::derive_quantization    an edge in a model that trains, whose parameters follow from those of other
//                                      values: it trains in float, and conversion quantizes it
#include "graph/registry.h"

namespace jit_passes {
namespace {

const RegisterOp edge_op{
    "edge(Tensor(a) x) -> Tensor(a)",
    "A second name for a value: the uses that are to be quantized go through it.",
    composed([](const at::Tensor& x) { return x.alias(); })};
const RegisterOp derive_quantization_op{
    "derive_quantization(Tensor(a) x, str name, str spec) -> Tensor(a)",
    "A second name for a value that conversion quantizes with parameters derived from others'.",
    composed([](const at::Tensor& x, c10::string_view, c10::string_view) { return x.alias(); })};

} // namespace
} // namespace jit_passes
