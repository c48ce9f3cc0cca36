// How many threads find a processor, where other processes want one too.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

namespace jit_passes::x86 {

// Where a thread comes late in two of a few calls, calls leave one thread more out for a while. In a call behind a
// pause it was asleep, which is no sign. Then a call tries with one more again; if that is late too, or a later one
// soon is, it is longer until the next try. Any threads may ask and tell at once: what is lost then is a better guess.
// Times are nanoseconds of a clock that only grows.
class Crowd {
 public:
  // How many threads a call should take, of so many that it could have.
  int threads(int most, int64_t now) const {
    const int out = out_.load(std::memory_order_relaxed);
    const bool tries = now >= until_.load(std::memory_order_relaxed);
    return std::max(1, most - std::max(0, out - tries));
  }

  // A call has left out so many threads. Whether one of the others came late is known where there was another.
  void finished(int left_out, bool was_late, int64_t begun, int64_t now) {
    if (begun - last_.exchange(now, std::memory_order_relaxed) > kAwake) {
      return;
    }
    const uint8_t late = static_cast<uint8_t>(late_.load(std::memory_order_relaxed) << 1 | was_late);
    late_.store(late, std::memory_order_relaxed);
    const int out = out_.load(std::memory_order_relaxed);
    if (was_late && std::has_single_bit(late) && out == 0) {
      return;
    }
    if (was_late) {
      const int64_t pause = pause_.load(std::memory_order_relaxed);
      const bool is_soon = out > 0 || now - until_.load(std::memory_order_relaxed) < 2 * pause;
      const int64_t next = is_soon ? std::min(2 * pause, kLongest) : kShortest;
      pause_.store(next, std::memory_order_relaxed);
      until_.store(now + next, std::memory_order_relaxed);
      out_.store(left_out + 1, std::memory_order_relaxed);
    } else if (left_out < out) {
      out_.store(left_out, std::memory_order_relaxed);
    }
  }

 private:
  // A thread that is late costs a time slice, some 4 ms; one that is left out for nothing, half of a call at most.
  static constexpr int64_t kShortest = 10'000'000, kLongest = 640'000'000;
  static constexpr int64_t kAwake = 5'000'000; // less than OpenMP's threads wait for work before they sleep

  std::atomic<int> out_{0};      // threads
  std::atomic<uint8_t> late_{0}; // a bit for each of the last calls that took several threads
  std::atomic<int64_t> pause_{kShortest}, until_{-kLongest}, last_{-kLongest};
};

} // namespace jit_passes::x86
