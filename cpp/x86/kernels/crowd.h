// The number of threads for a call, if other processes use processors too.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

namespace jit_passes::x86 {

// If a thread comes late in two of a few calls, calls use one thread less for a while. A call after a pause does not
// count, since the threads were asleep. Later a call tries one thread more again. If a thread is late in that call
// or soon after, the next try comes later. Several threads may ask and report at one time: a lost update only makes
// the guess worse. Times are nanoseconds of a monotonic clock.
class Crowd {
 public:
  // The number of threads that a call should use, of the `most` that it could have.
  int threads(int most, int64_t now) const {
    const int out = out_.load(std::memory_order_relaxed);
    const bool tries = now >= until_.load(std::memory_order_relaxed);
    return std::max(1, most - std::max(0, out - tries));
  }

  // To be called after a call that has left out so many threads. A thread can be late only if the call had several.
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
  // A late thread costs a time slice, some 4 ms. A thread that is left out without need costs half of a call at
  // most.
  static constexpr int64_t kShortest = 10'000'000, kLongest = 640'000'000;
  static constexpr int64_t kAwake = 5'000'000; // OpenMP's threads wait longer for work before they sleep

  std::atomic<int> out_{0};      // threads to leave out
  std::atomic<uint8_t> late_{0}; // a bit for each of the last calls that took several threads
  std::atomic<int64_t> pause_{kShortest}, until_{-kLongest}, last_{-kLongest};
};

} // namespace jit_passes::x86
