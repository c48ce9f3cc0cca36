// Allow results whose memory is laid out differently than in the float model. Quantized convolutions return
// channels-last, which view may refuse. Where an in-place operator writes to the value, it stays a view. A swap of axes is
// a transposition by another name, written to or not.
#include "rewriting/rewriter.h"

namespace jit_passes {
namespace {

const RegisterRules canonicalize_view_pass{
    "canonicalize_view",
    "Turn view into reshape, which takes any memory layout, and swapaxes into transpose.",
    {{.pattern = "aten::swapaxes(%x, %a, %b)",
      .replacement = "aten::transpose(%x, %a, %b)",
      .same_memory = true},
     {.pattern = "aten::swapdims(%x, %a, %b)",
      .replacement = "aten::transpose(%x, %a, %b)",
      .same_memory = true},
     {.pattern = "%y = aten::view(%x, %shape : int[]) %y",
      .replacement = "aten::reshape(%x, %shape)",
      .check = [](const auto& match) { return onlyIf(!match.isWritten("y")); },
      .same_memory = true}}};

} // namespace
} // namespace jit_passes
