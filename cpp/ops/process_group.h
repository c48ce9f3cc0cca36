// Numbers that all ranks of distributed training agree on.
#pragma once

#include "graph/registry.h"

namespace jit_passes {

enum class Agreement { Largest, Sum };

// The largest number, or the sum, over all ranks of a process group of torch.distributed, on every rank and on the
// device of `values`. A name without a group in this process, such as "", means this process alone, so a model that
// was trained in a group also runs alone.
at::Tensor agree(const at::Tensor& values, Agreement agreement, c10::string_view group);

} // namespace jit_passes
