// How a thread waits for another: it spins for a moment, then yields its core; what follows, a sleep
// that is woken, is the caller's to choose.
#pragma once

#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace headrace {

constexpr int spin_rounds = 400;     // tens of microseconds, about the longest wait inside a step
constexpr int yield_rounds = 300;    // a few hundred microseconds, about Python's part of a step

inline void pause_core() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether has_changed() came true while spinning and yielding.
template <class HasChanged>
bool changed_soon(HasChanged&& has_changed) {
  for (int i = 0; i < spin_rounds; ++i) {
    if (has_changed()) return true;
    pause_core();
  }
  for (int i = 0; i < yield_rounds; ++i) {
    if (has_changed()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace headrace
