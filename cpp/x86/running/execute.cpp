#include "execute.h"

#include <omp.h>
#include <pthread.h>

#include "processors.h"
#include "x86/kernels/crowd.h"

namespace jit_passes::x86 {
namespace {

// 20 to 50 us, by processor: longer than threads are apart after a share of equal size, and shorter than a time slice.
constexpr int kSpins = 1 << 10;

// Waits for a moment, busily, for a word to be another than the one seen.
bool isSoonOther(const std::atomic<int>& word, int seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (word.load(std::memory_order_acquire) != seen) {
      return true;
    }
    __builtin_ia32_pause();
  }
  return false;
}

// A thread takes less to wake up where it has a processor.
constexpr int64_t kAwake = 30'000;

// For longer than this, and than twice its own share takes, a thread sleeps only where another has no processor.
constexpr int64_t kLate = 500'000;

int64_t nanosecondsNow() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Crowd crowd; // of this process

// OpenMP's threads are not there any more after a fork, and a parallel region would wait for them for good,
// whoever began them. So this is asked for when the library is loaded.
std::atomic<bool> is_forked{false};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

Call ofThread(Call call, int64_t thread) {
  call.scratch += thread * call.scratch_bytes;
  return call;
}

// A phase falls into so many units at most; each has the same share of all parts.
constexpr int64_t kMostUnits = 1 << 12;

// Whether ranges are claimed in chunks. So many multiply-adds take a thread 10 us and more, of which beginning a kernel
// once more is a few per cent.
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

// How far a call is. Each thread has a range of a phase's units, of which it claims one chunk after the other, and then
// of the ranges of others. A phase ends when all of its units are finished, whoever is there: whoever finishes the last
// one opens the next phase, and a thread that comes late goes on where the others are.
class Progress {
 public:
  Progress(
      const std::vector<Phase>& phases, int threads, Processors& processors,
      std::vector<int64_t>* nanoseconds)
      : phases_(phases), processors_(processors), ranges_(threads), clock_(nanoseconds) {
    processors_.begin(threads);
    open(0);
  }

  // Of one of so many threads, which may be fewer than there are ranges.
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
    // The region ends with a barrier of OpenMP, where a thread spins for milliseconds and keeps its processor from
    // those that it waits for.
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

  // A thread has waited for another for so long, and had nothing to do itself.
  void waited(int64_t nanoseconds) {
    if (nanoseconds > kLate && nanoseconds > lost()) {
      lost_.store(nanoseconds, std::memory_order_relaxed);
    }
  }

  // Behind the region: throws the first error of a unit.
  void check() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

  // Nanoseconds of the longest wait for a thread that came late.
  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  // Waits until a word is another than the one seen. This thread's share took from `begun` till now, and all others
  // have one that is `alike`, or nobody knows how long they will take.
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

  // Phase + 1 in the upper half, for which the unit in the lower half is the next that nobody has claimed. Where the
  // phase is one that was before, nothing of the range is claimed yet. The phase only grows, so a late thread claims
  // nothing. `phase_` orders the memory that units read.
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
        } catch (...) { // OpenMP ends the process for an error that leaves a region
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

  // The next chunk of a range, as its first unit and how many: three quarters, and then the rest, small enough for
  // others to take over; or the whole range.
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
  std::vector<Range> ranges_; // of each thread
  Clock clock_;
  // Apart, so that finishing does not disturb those who look for the next phase.
  alignas(64) std::atomic<int64_t> unfinished_{0}; // units of the phase
  alignas(64) std::atomic<int> phase_{0};
  alignas(64) std::atomic<int> left_{0}; // threads but the first
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
      if (const int64_t units = unitsOf(phase)) { // none where a value is empty
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
      progress.waited(nanosecondsNow() - begun); // until all have come out of the region before
    }
    progress.work(ofThread(call, thread), thread, omp_get_num_threads());
    if (thread == 0) {
      done = nanosecondsNow();
    }
  }
  const int64_t now = nanosecondsNow();
  progress.waited(now - done);
  // A call that is much longer than what it lost would lose more without the thread.
  crowd.finished(most - threads, progress.lost() > (now - begun) / 4, begun, now);
  progress.check();
}

} // namespace jit_passes::x86
