#include "base/thread_team.hpp"

#include <utility>

#include "base/waiting.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace headrace {

namespace {

// Returns once `value` is no longer `old`.
void wait_for_change(std::atomic<int>& value, int old) {
  if (changed_soon([&] { return value.load(std::memory_order_acquire) != old; })) return;
  value.wait(old, std::memory_order_acquire);
}

void change(std::atomic<int>& value) {
  value.fetch_add(1, std::memory_order_acq_rel);
  value.notify_all();   // a system call only if a member sleeps
}

}  // namespace

void pin_thread(const std::vector<int>& cores) {
#if defined(__linux__)
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores)
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
#else
  (void)cores;
#endif
}

ThreadTeam::ThreadTeam(int thread_count, RankGroup* group, std::vector<int> cores)
    : thread_count_(thread_count),
      group_(group),
      cores_(std::move(cores)),
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
  barrier(Meet::team);
}

void ThreadTeam::serve(int index) {
  pin_thread(cores_);
  int seen = 0;
  for (;;) {
    wait_for_change(epoch_.value, seen);
    ++seen;
    if (closing_) return;
    Member member(*this, index);
    body_(context_, member);
    barrier(Meet::team);
  }
}

void ThreadTeam::barrier(Meet meet) {
  const bool ranks = meet == Meet::ranks && group_ != nullptr;
  if (thread_count_ == 1) {
    if (ranks) group_->barrier();
    return;
  }
  const int epoch = barrier_epoch_.value.load(std::memory_order_acquire);
  if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == thread_count_) {
    arrived_.value.store(0, std::memory_order_relaxed);
    if (ranks) group_->barrier();
    change(barrier_epoch_.value);
  } else {
    wait_for_change(barrier_epoch_.value, epoch);
  }
}

}  // namespace headrace
