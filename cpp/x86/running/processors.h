// The processors on which the threads of a call run. An idle virtual processor is halted, and Linux treats it as
// absent. Linux wakes a thread on the processor of its waker, and both take turns for milliseconds. So a working
// thread moves a thread that should work, but does not, to another processor.
#pragma once

#include <array>
#include <atomic>
#include <climits>
#include <cstdint>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace jit_passes::x86 {

// The processors of one calling thread and of the threads of its pool.
class Processors {
 public:
  // Begins a call of so many threads.
  void begin(int threads) {
    fits_ = static_cast<size_t>(threads) <= kMost;
    for (int i = 0; i < threads; ++i) {
      at(i).done.store(-1, std::memory_order_relaxed);
    }
  }

  // A thread begins to work, in a call or after a wait.
  void enter(int thread) {
    Place& own = at(thread);
    for (int seen = State::Away;
         !own.state.compare_exchange_weak(seen, State::Here, std::memory_order_acquire);) {
      if (seen == State::Here) {
        break;
      }
      seen = State::Away; // another thread is moving this one, which takes two system calls
    }
#if defined(__linux__)
    static thread_local const auto id = static_cast<pid_t>(syscall(SYS_gettid));
    own.id.store(id, std::memory_order_relaxed);
#endif
  }

  // The thread waits for others.
  void leave(int thread) { at(thread).state.store(State::Away, std::memory_order_release); }

  // The thread's part of the call is over. The thread gets its former set of processors back, and is not moved
  // again. A thread of the pool is absent until the next call.
  void finish(int thread) {
#if defined(__linux__)
    Place& own = at(thread);
    if (own.sent_from >= 0) {
      sched_setaffinity(0, sizeof(own.allowed), &own.allowed);
      own.sent_from = -1;
    }
#endif
    at(thread).done.store(INT_MAX, std::memory_order_relaxed);
    if (thread > 0) {
      leave(thread);
    }
  }

  // The thread has done its part of a phase. If that took longer than waking up, the other threads should have
  // begun.
  void done(int thread, int threads, int phase, bool was_long) {
    at(thread).done.store(phase, std::memory_order_relaxed);
    for (int i = 0; was_long && i < threads; ++i) {
      sendAway(i, phase);
    }
  }

  // Moves a thread to another processor if it is waiting and its part of a phase is not done.
  void sendAway([[maybe_unused]] int thread, [[maybe_unused]] int phase = INT_MAX) {
#if defined(__linux__)
    Place& other = at(thread);
    int seen = State::Away;
    const auto is_late = [&] { return other.done.load(std::memory_order_relaxed) < phase; };
    if (fits_ && is_late() && other.state.load(std::memory_order_relaxed) == State::Away &&
        other.state.compare_exchange_strong(seen, State::Sent, std::memory_order_acquire)) {
      if (is_late()) {
        send(other, sched_getcpu());
      }
      other.state.store(State::Away, std::memory_order_release);
    }
#endif
  }

 private:
  enum State : int { Away, Here, Sent };
  static constexpr size_t kMost = 64;

  struct alignas(64) Place {
    std::atomic<int> state{State::Away};
    std::atomic<int> done{-1}; // the last phase
#if defined(__linux__)
    std::atomic<pid_t> id{0};
    // Used by the thread that moves this one, and by this one once it runs.
    int sent_from = -1;
    cpu_set_t allowed;
#endif
  };

#if defined(__linux__)
  static void send(Place& place, int here) {
    const pid_t id = place.id.load(std::memory_order_relaxed);
    const bool is_alive = id != 0 && syscall(SYS_tgkill, getpid(), id, 0) == 0;
    cpu_set_t others;
    if (place.sent_from == here || !is_alive || sched_getaffinity(id, sizeof(others), &others) != 0) {
      return;
    }
    if (place.sent_from < 0) {
      place.allowed = others;
    }
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(id, sizeof(others), &others) == 0) {
      place.sent_from = here;
    }
  }
#endif

  // With more threads than places, some share a place, and none is moved.
  Place& at(int thread) { return places_[static_cast<size_t>(thread) % kMost]; }

  std::array<Place, kMost> places_;
  bool fits_ = true;
};

} // namespace jit_passes::x86
