#include "base/waiting.hpp"

#include <chrono>
#include <ctime>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace headrace {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int spin_rounds = 400;     // tens of microseconds, about the longest wait inside a step
constexpr int yield_rounds = 300;    // a few hundred microseconds, about Python's part of a step
constexpr auto slice = std::chrono::milliseconds(1);   // a yield that took so long met a busy core
constexpr int waits_without_yields = 200;   // about a step's: a core that is free again is noticed

void pause_core() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool has_changed(const WaitWord& word, std::uint32_t old) {
  return word.value.load(std::memory_order_acquire) != old;
}

bool changes_while_spinning(const WaitWord& word, std::uint32_t old) {
  for (int i = 0; i < spin_rounds; ++i) {
    if (has_changed(word, old)) return true;
    pause_core();
  }
  return false;
}

bool changes_while_yielding(const WaitWord& word, std::uint32_t old) {
  thread_local int waits_left = 0;   // without yields, since the core was busy
  if (waits_left > 0) {
    --waits_left;
    return false;
  }
  auto before = Clock::now();
  for (int i = 0; i < yield_rounds; ++i) {
    if (has_changed(word, old)) return true;
    std::this_thread::yield();
    const auto after = Clock::now();
    if (after - before > slice) {
      waits_left = waits_without_yields;
      return false;
    }
    before = after;
  }
  return false;
}

#if defined(__linux__)
int futex_operation(int operation, Waiters waiters) {
  return waiters == Waiters::threads ? operation | FUTEX_PRIVATE_FLAG : operation;
}
#endif

void sleep_while(WaitWord& word, std::uint32_t old, Waiters waiters) {
#if defined(__linux__)
  word.sleepers.fetch_add(1);
  syscall(SYS_futex, &word.value, futex_operation(FUTEX_WAIT, waiters), old, nullptr, nullptr, 0);
  word.sleepers.fetch_sub(1);
#else
  if (waiters == Waiters::threads) {
    word.value.wait(old);   // which works inside one process only
    return;
  }
  const timespec pause{0, 50'000};
  nanosleep(&pause, nullptr);
#endif
}

}  // namespace

void wait_for_change(WaitWord& word, std::uint32_t old, Waiters waiters) {
  if (changes_while_spinning(word, old) || changes_while_yielding(word, old)) return;
  while (word.value.load() == old) sleep_while(word, old, waiters);
}

void wake(WaitWord& word, Waiters waiters) {
#if defined(__linux__)   // whoever counts itself a sleeper after this load finds the new value
  if (word.sleepers.load() != 0)
    syscall(SYS_futex, &word.value, futex_operation(FUTEX_WAKE, waiters), INT32_MAX, nullptr,
            nullptr, 0);
#else
  if (waiters == Waiters::threads) word.value.notify_all();
#endif
}

}  // namespace headrace
