#include "execute.h"

#include <omp.h>
#include <pthread.h>

#include "processors.h"
#include "x86/kernels/crowd.h"

namespace jit_passes::x86 {
namespace {

// 20 to 50 us, depending on the processor: longer than the lag between threads with equal shares, and shorter than a
// time slice.
constexpr int kSpins = 1 << 10;

// Spins for a moment until the word differs from `seen`. Returns whether it does.
bool isSoonOther(const std::atomic<int>& word, int seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (word.load(std::memory_order_acquire) != seen) {
      return true;
    }
    __builtin_ia32_pause();
  }
  return false;
}

// Nanoseconds; a thread with a free processor wakes up in less.
constexpr int64_t kAwake = 30'000;

// Nanoseconds. If a thread waits longer than this plus twice the time of its own share, another thread has no
// processor.
constexpr int64_t kLate = 500'000;

int64_t nanosecondsNow() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Crowd crowd; // for this process

// After a fork OpenMP's threads do not exist, and a parallel region would wait for them for ever, whichever library
// has started them. So the handler is registered when this library is loaded.
std::atomic<bool> is_forked{false};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

Call ofThread(Call call, int64_t thread) {
  call.scratch += thread * call.scratch_bytes;
  return call;
}

// The most units of a phase. Each unit has an equal share of all parts.
constexpr int64_t kMostUnits = 1 << 12;

// Whether ranges are claimed in chunks. So many multiply-adds take a thread at least 10 us, and starting a kernel
// once more takes a few per cent of this time.
bool isCut(const Phase& phase, int64_t threads) {
  constexpr int64_t kShort = 1 << 22;
  return phase.products > kShort * threads &&
         std::none_of(phase.parts.begin(), phase.parts.end(), [](const Part& p) { return p.shares_work; });
}

int64_t unitsOf(const Phase& phase) {
  int64_t units = 0;
  for (const Part& part : phase.parts) {
    units = std::max(units, part.items);
  }
  return std::min(units, kMostUnits);
}

void runUnits(const Phase& phase, const Call& call, int64_t begin, int64_t end, int64_t units) {
  for (const Part& part : phase.parts) {
    const int64_t first = part.items * begin / units, last = part.items * end / units;
    if (first < last) {
      part.run(call, first, last);
    }
  }
}

// Measures the time from one phase to the next, with the wait for other threads. Does nothing without a profile.
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

// The progress of a call. Each thread has a range of a phase's units. A thread claims chunks of its own range, and
// then of the ranges of other threads. A phase ends when all of its units are finished, even if some threads are
// absent. The thread that finishes the last unit opens the next phase, and a late thread joins the phase that is
// open.
class Progress {
 public:
  Progress(
      const std::vector<Phase>& phases, int threads, Processors& processors,
      std::vector<int64_t>* nanoseconds)
      : phases_(phases), processors_(processors), ranges_(threads), clock_(nanoseconds) {
    processors_.begin(threads);
    open(0);
  }

  // The work of one thread. There may be fewer threads than ranges.
  void work(const Call& call, int thread, int threads) {
    const int end = static_cast<int>(phases_.size());
    processors_.enter(thread);
    for (int phase = phase_.load(std::memory_order_acquire); phase < end;) {
      const int64_t begun = nanosecondsNow();
      const bool was_last = takePart(phase, call, thread);
      const bool is_for_all = unitsOf(phases_[phase]) >= threads;
      processors_.done(thread, threads, phase, is_for_all && nanosecondsNow() - begun > kAwake);
      if (was_last) {
        ++phase;
        continue;
      }
      phase = waitFor(thread, phase_, phase, begun, is_for_all);
    }
    // At OpenMP's barrier at the end of the region, a thread spins for milliseconds and takes a processor from the
    // threads that it waits for. So threads wait here first.
    if (thread > 0) {
      processors_.finish(thread);
      if (left_.fetch_add(1, std::memory_order_release) == threads - 2) {
        processors_.sendAway(0);
        left_.notify_one();
      }
    }
    for (int left = thread > 0 ? threads : left_.load(std::memory_order_acquire); left < threads - 1;) {
      left = waitFor(thread, left_, left, nanosecondsNow(), true);
    }
    if (thread == 0) {
      processors_.finish(thread);
    }
  }

  // Notes that a thread without work has waited for another one for so long.
  void waited(int64_t nanoseconds) {
    if (nanoseconds > kLate && nanoseconds > lost()) {
      lost_.store(nanoseconds, std::memory_order_relaxed);
    }
  }

  // Throws the first error of a unit. To be called after the region.
  void check() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

  // The longest wait for a late thread, in nanoseconds.
  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  // Waits until the word differs from `seen`. This thread's share took from `begun` until now. `alike`: the shares
  // of the other threads are equal, so a long wait means a late thread.
  int waitFor(int thread, const std::atomic<int>& word, int seen, int64_t begun, bool alike) {
    if (!isSoonOther(word, seen)) {
      const int64_t since = nanosecondsNow();
      processors_.leave(thread);
      word.wait(seen, std::memory_order_acquire);
      processors_.enter(thread);
      const int64_t waits = nanosecondsNow() - since;
      if (alike && waits > 2 * (since - begun) + kLate) {
        waited(waits);
      }
    }
    return word.load(std::memory_order_acquire);
  }

  // The upper half is a phase + 1, and the lower half the next unit of that phase that is not claimed. If the upper
  // half belongs to an earlier phase, no unit of the range is claimed yet. The phase only grows, so a late thread
  // claims nothing of an old one. `phase_` orders the memory that units read.
  struct alignas(64) Range {
    std::atomic<uint64_t> next{0};
  };

  void open(int phase) {
    const int end = static_cast<int>(phases_.size());
    for (; phase < end && unitsOf(phases_[phase]) == 0; ++phase) {
      clock_.next();
    }
    unfinished_.store(phase < end ? unitsOf(phases_[phase]) : 0, std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_release);
    phase_.notify_all();
  }

  // Returns whether this thread has finished the last of the units.
  bool takePart(int index, const Call& call, int64_t thread) {
    const Phase& phase = phases_[index];
    const int64_t units = unitsOf(phase), threads = static_cast<int64_t>(ranges_.size());
    int64_t finished = 0;
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t owner = (thread + i) % threads;
      const int64_t begin = (units * owner + threads - 1) / threads;
      const int64_t end = (units * (owner + 1) + threads - 1) / threads;
      int64_t first = 0;
      while (const int64_t count = claim(index, owner, begin, end, first)) {
        try {
          runUnits(phase, call, first, first + count, units);
        } catch (...) { // OpenMP ends the process if an error leaves a region
          if (!has_failed_.exchange(true)) {
            error_ = std::current_exception();
          }
        }
        finished += count;
      }
    }
    if (finished == 0 || unfinished_.fetch_sub(finished, std::memory_order_acq_rel) != finished) {
      return false;
    }
    clock_.next();
    open(index + 1);
    return true;
  }

  // Claims the next chunk of a range. Returns the number of units, and sets `first`. A range is claimed as a whole,
  // or as three quarters and then the rest, which is small enough for another thread to take over.
  int64_t claim(int index, int64_t owner, int64_t begin, int64_t end, int64_t& first) {
    const uint64_t phase = static_cast<uint64_t>(index) + 1;
    const bool is_cut = isCut(phases_[index], static_cast<int64_t>(ranges_.size()));
    std::atomic<uint64_t>& next = ranges_[owner].next;
    uint64_t seen = next.load(std::memory_order_relaxed);
    while (seen >> 32 <= phase) {
      first = seen >> 32 == phase ? static_cast<int64_t>(seen & UINT32_MAX) : begin;
      if (first >= end) {
        return 0;
      }
      const int64_t count = is_cut && first == begin ? (3 * (end - begin) + 3) / 4 : end - first;
      const uint64_t claimed = phase << 32 | static_cast<uint64_t>(first + count);
      if (next.compare_exchange_weak(seen, claimed, std::memory_order_relaxed)) {
        return count;
      }
    }
    return 0;
  }

  const std::vector<Phase>& phases_;
  Processors& processors_;
  std::vector<Range> ranges_; // one for each thread
  Clock clock_;
  // In separate cache lines, so that finished units do not disturb threads that wait for the next phase.
  alignas(64) std::atomic<int64_t> unfinished_{0}; // units of the phase
  alignas(64) std::atomic<int> phase_{0};
  alignas(64) std::atomic<int> left_{0}; // threads that have left, without the first
  std::atomic<int64_t> lost_{0};
  std::atomic<bool> has_failed_{false};
  std::exception_ptr error_;
};

} // namespace

void execute(
    const std::vector<Phase>& phases, const Call& call, int threads, std::vector<int64_t>* nanoseconds) {
  const int most = threads;
  threads = crowd.threads(most, nanosecondsNow());
  if (threads <= 1 || at::in_parallel_region() || is_forked) {
    Clock clock(nanoseconds);
    for (const Phase& phase : phases) {
      if (const int64_t units = unitsOf(phase)) { // 0 for an empty value
        runUnits(phase, call, 0, units, units);
      }
      clock.next();
    }
    return;
  }
  const int64_t begun = nanosecondsNow();
  static thread_local Processors processors;
  Progress progress(phases, threads, processors, nanoseconds);
  int64_t done = begun;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    if (thread == 0) {
      progress.waited(nanosecondsNow() - begun); // until all threads have left the region before
    }
    progress.work(ofThread(call, thread), thread, omp_get_num_threads());
    if (thread == 0) {
      done = nanosecondsNow();
    }
  }
  const int64_t now = nanosecondsNow();
  progress.waited(now - done);
  // A call that is much longer than its lost time would lose more with fewer threads.
  crowd.finished(most - threads, progress.lost() > (now - begun) / 4, begun, now);
  progress.check();
}

} // namespace jit_passes::x86
