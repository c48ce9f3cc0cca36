// The steps of a prepared plan, and how threads go through them.
#pragma once

#include "core/jit.h"

namespace jit_passes::x86 {

// Work that falls into items, which threads may share in any way. `run` does not throw.
struct Part {
  int64_t items;
  std::function<void(int64_t begin, int64_t end)> run;
};

// Parts that do not depend on one another.
using Phase = std::vector<Part>;

// One parallel region for all phases, with a barrier between two: a thread waits for it busily for a moment, and
// then sleeps. Results are the same for any number of threads. On one thread where a parallel region runs already.
void execute(const std::vector<Phase>& phases, int threads);

} // namespace jit_passes::x86
