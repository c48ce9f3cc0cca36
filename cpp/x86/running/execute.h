// The phases of a prepared plan, and the threads that run them.
#pragma once

#include <chrono>

#include "graph/jit.h"

namespace jit_passes::x86 {

// The operands of one call: the arena, and the tensors that it takes and gives.
struct Call {
  struct Source {
    const float* data;
    at::IntArrayRef strides;
  };

  // The arena, the tensors that the call takes, the tensors that it gives, and constants.
  c10::ArrayRef<uint8_t*> homes;
  uint8_t* scratch;      // memory of all threads; while a phase runs, the thread's own
  int64_t scratch_bytes; // of each thread
  c10::ArrayRef<Source> sources;

  uint8_t* arena() const { return homes[0]; }
  uint8_t* result(size_t number) const { return homes[1 + sources.size() + number]; }
};

// Work on a number of items, which threads may share in any way. If `run` throws, the call ends with that error.
struct Part {
  int64_t items;
  std::function<void(const Call& call, int64_t begin, int64_t end)> run;
  bool shares_work = false; // whether neighbouring items share work
};

// Parts that do not depend on one another.
struct Phase {
  std::vector<Part> parts = {};
  // For a profile: the name of the operator, empty for returned values; the kernel; the sizes of the result; and the
  // number of multiply-adds.
  std::string name = {}, kernel = {};
  std::vector<int64_t> sizes = {};
  int64_t products = 0;
  std::vector<at::Tensor> tables = {}; // tables that the parts read
  bool goes_on = false;                // continues the phase before: a profile has both in one row
};

// Runs all phases, one after the other, in one parallel region. Threads claim the units of a phase. A thread without
// work spins for a moment and then sleeps. A late thread delays the others only at the end of the call, and the next
// calls use fewer threads for a while (crowd.h). Results do not depend on the number of threads. There is only one
// thread within a parallel region, and in a forked process. If `nanoseconds` is given, it gets the time of each
// phase.
void execute(
    const std::vector<Phase>& phases, const Call& call, int threads,
    std::vector<int64_t>* nanoseconds = nullptr);

} // namespace jit_passes::x86
