// Nodes that return their operand unchanged.
#include "facts/casts.h"
#include "x86/building/reader.h"

namespace jit_passes::x86 {
namespace {

SameValue itself(const RegionReader& /*reader*/, Node* node) { return node->input(0); }

SameValue castToFloat(const RegionReader& /*reader*/, Node* node) {
  refuseUnless(isToFloat(node), "it gives another dtype than float32, or another device");
  return node->input(0);
}

const RegisterNodes identities{
    {{"contiguous", itself}, {"detach", itself}, {"alias", itself}, {"to", castToFloat, "self"}}};

} // namespace
} // namespace jit_passes::x86
