// jit_passes::edge: a second name for a value, so that some of its uses can be quantized and the
// others left as they are.
#include "core/registry.h"

namespace jit_passes {
namespace {

const RegisterOp op{"edge", "A second name for a value: the uses that are to be quantized go through it."};

TORCH_LIBRARY_FRAGMENT(jit_passes, m) { m.def("edge(Tensor(a) x) -> Tensor(a)"); }

TORCH_LIBRARY_IMPL(jit_passes, CompositeImplicitAutograd, m) {
  m.impl("edge", [](const at::Tensor& x) { return x.alias(); });
}

} // namespace
} // namespace jit_passes
