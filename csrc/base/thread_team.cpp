#include "base/thread_team.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace headrace {

namespace {

constexpr int spin_rounds = 400;     // tens of microseconds, about the longest wait inside a step
constexpr int yield_rounds = 300;    // a few hundred microseconds, about Python's part of a step

inline void pause_core() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once `value` is no longer `old`.
void wait_for_change(std::atomic<int>& value, int old) {
  for (int i = 0; i < spin_rounds; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_core();
  }
  for (int i = 0; i < yield_rounds; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

void change(std::atomic<int>& value) {
  value.fetch_add(1, std::memory_order_acq_rel);
  value.notify_all();   // a system call only if a member sleeps
}

}  // namespace

ThreadTeam::ThreadTeam(int thread_count)
    : thread_count_(thread_count),
      taken_(static_cast<std::size_t>(stage_slots * thread_count)) {
  for (int index = 1; index < thread_count; ++index)
    threads_.emplace_back([this, index] { serve(index); });
}

ThreadTeam::~ThreadTeam() {
  closing_ = true;
  change(epoch_.value);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::run_erased(Erased body, void* context) {
  for (Counter& counter : taken_) counter.value.store(0, std::memory_order_relaxed);
  body_ = body;
  context_ = context;
  change(epoch_.value);
  Member member(*this, 0);
  body(context, member);
  barrier();
}

void ThreadTeam::serve(int index) {
  int seen = 0;
  for (;;) {
    wait_for_change(epoch_.value, seen);
    ++seen;
    if (closing_) return;
    Member member(*this, index);
    body_(context_, member);
    barrier();
  }
}

void ThreadTeam::barrier() {
  if (thread_count_ == 1) return;
  const int epoch = barrier_epoch_.value.load(std::memory_order_acquire);
  if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == thread_count_) {
    arrived_.value.store(0, std::memory_order_relaxed);
    change(barrier_epoch_.value);
  } else {
    wait_for_change(barrier_epoch_.value, epoch);
  }
}

}  // namespace headrace
