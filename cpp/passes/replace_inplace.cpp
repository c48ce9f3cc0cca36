// Give in-place operators their functional form wherever nobody can tell the difference.
//
//   %y = aten::relu_(%x)   ->   %y = aten::relu(%x)     when no other name of %x is read later
//
// PyTorch's alias analysis decides; what it cannot prove stays in place, and later passes leave
// those values in float.
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

bool replaceInplace(PassContext& context) { return torch::jit::RemoveTensorMutation(context.graph()); }

const RegisterPass registration{
    "replace_inplace",
    "Turn in-place operators into functional ones where aliasing allows it.",
    replaceInplace,
    {"inlined"}};

} // namespace
} // namespace jit_passes
