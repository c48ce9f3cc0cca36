#include "execute.h"

#include <omp.h>
#include <pthread.h>

namespace jit_passes::x86 {
namespace {

// 20 to 50 us, by processor: longer than threads are apart after a share of equal size, and shorter than a time slice.
constexpr int kSpins = 1 << 10;

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  void wait() {
    const int round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      round_.notify_all();
      return;
    }
    for (int spin = 0; spin < kSpins; ++spin) {
      if (round_.load(std::memory_order_acquire) != round) {
        return;
      }
      __builtin_ia32_pause();
    }
    round_.wait(round, std::memory_order_acquire);
  }

 private:
  const int threads_;
  // Apart, so that arriving does not disturb those who look for the next round.
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

// OpenMP's threads are not there any more after a fork, and a parallel region would wait for them for good,
// whoever began them. So this is asked for when the library is loaded.
std::atomic<bool> is_forked{false};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

Call ofThread(Call call, int64_t thread) {
  call.scratch += thread * call.scratch_bytes;
  return call;
}

void runShare(const Phase& phase, const Call& call, int64_t thread, int64_t threads) {
  for (const Part& part : phase.parts) {
    const int64_t begin = part.items * thread / threads, end = part.items * (thread + 1) / threads;
    if (begin < end) {
      part.run(call, begin, end);
    }
  }
}

// From one phase to the next, with the wait for other threads behind it; nothing where nobody asks.
class Clock {
 public:
  explicit Clock(std::vector<int64_t>* nanoseconds) : nanoseconds_(nanoseconds) {}

  void next() {
    if (nanoseconds_) {
      const auto now = std::chrono::steady_clock::now();
      nanoseconds_->push_back(std::chrono::nanoseconds(now - last_).count());
      last_ = now;
    }
  }

 private:
  std::vector<int64_t>* nanoseconds_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

} // namespace

void execute(
    const std::vector<Phase>& phases, const Call& call, int threads, std::vector<int64_t>* nanoseconds) {
  if (threads <= 1 || at::in_parallel_region() || is_forked) {
    Clock clock(nanoseconds);
    for (const Phase& phase : phases) {
      runShare(phase, call, 0, 1);
      clock.next();
    }
    return;
  }
  std::optional<Barrier> barrier; // for as many threads as there are, not as were asked for
#pragma omp parallel num_threads(threads)
  {
#pragma omp single
    barrier.emplace(omp_get_num_threads());
    const int thread = omp_get_thread_num();
    const Call own = ofThread(call, thread);
    Clock clock(thread == 0 ? nanoseconds : nullptr);
    for (size_t i = 0; i < phases.size(); ++i) {
      runShare(phases[i], own, thread, omp_get_num_threads());
      // The region ends with a barrier of its own.
      if (i + 1 < phases.size() || nanoseconds) {
        barrier->wait();
      }
      clock.next();
    }
  }
}

} // namespace jit_passes::x86
