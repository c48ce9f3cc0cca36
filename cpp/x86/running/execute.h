// The steps of a prepared plan, and how threads go through them.
#pragma once

#include <chrono>

#include "graph/jit.h"

namespace jit_passes::x86 {

// The operands of one call: memory, and the tensors that it takes and gives.
struct Call {
  struct Source {
    const float* data;
    at::IntArrayRef strides;
  };

  c10::ArrayRef<uint8_t*> homes; // of values: the arena, the tensors that it takes, and those that it gives
  uint8_t* scratch;              // of all threads; while a phase runs, of the thread that runs it
  int64_t scratch_bytes;         // of each thread
  c10::ArrayRef<Source> sources;

  uint8_t* arena() const { return homes[0]; }
  uint8_t* result(size_t number) const { return homes[1 + sources.size() + number]; }
};

// Work that falls into items, which threads may share in any way. If `run` throws, the call ends with that error.
struct Part {
  int64_t items;
  std::function<void(const Call& call, int64_t begin, int64_t end)> run;
  bool shares_work = false; // between items next to each other
};

// Parts that do not depend on one another.
struct Phase {
  std::vector<Part> parts = {};
  // For a profile: of the operator, which is none for what is returned; what computes it; the sizes of the result,
  // and how many multiply-adds it takes.
  std::string name = {}, kernel = {};
  std::vector<int64_t> sizes = {};
  int64_t products = 0;
  std::vector<at::Tensor> tables = {}; // that parts read
  bool goes_on = false;                // with what the phase before began: a profile has both in one row
};

// One parallel region for all phases, one after the other. Threads claim what a phase falls into: one that has none
// left waits for those who compute busily for a moment, and then sleeps; one that comes late holds nobody up but at the
// end, and calls take fewer threads for a while (crowd.h). Results are the same for any number of threads. On one
// thread within a parallel region, and in a process that was forked after a call. `nanoseconds`, where there is one,
// gets the time of each phase.
void execute(
    const std::vector<Phase>& phases, const Call& call, int threads,
    std::vector<int64_t>* nanoseconds = nullptr);

} // namespace jit_passes::x86
