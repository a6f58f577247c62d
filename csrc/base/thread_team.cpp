#include "base/thread_team.hpp"

#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace headrace {

namespace {

constexpr std::uint32_t run_is_open = std::uint32_t{1} << 31;

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
      taken_(static_cast<std::size_t>(thread_count)) {
  for (int index = 1; index < thread_count; ++index)
    threads_.emplace_back([this, index] { serve(index); });
}

ThreadTeam::~ThreadTeam() {
  closing_.store(true);
  change(epoch_);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::run_erased(Erased body, void* context) {
  Member member(*this, 0);
  if (thread_count_ == 1) {
    body(context, member);
    return;
  }
  for (Taken& taken : taken_) taken.value.store(0, std::memory_order_relaxed);
  ended_.value.store(0, std::memory_order_relaxed);
  body_ = body;
  context_ = context;
  inside_.value.store(run_is_open, std::memory_order_release);
  change(epoch_);
  body(context, member);
  close();
}

void ThreadTeam::serve(int index) {
  pin_thread(cores_);
  std::uint32_t seen = 0;
  for (;;) {
    wait_for_change(epoch_, seen);
    seen = epoch_.value.load(std::memory_order_acquire);
    if (closing_.load()) return;
    if (!enter()) continue;
    Member member(*this, index);
    body_(context_, member);
    leave();
  }
}

// Whether the run is still open to a thread that comes.
bool ThreadTeam::enter() {
  std::uint32_t inside = inside_.value.load(std::memory_order_relaxed);
  while ((inside & run_is_open) != 0)
    if (inside_.value.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire,
                                            std::memory_order_relaxed))
      return true;
  return false;
}

void ThreadTeam::leave() {
  if (inside_.value.fetch_sub(1) == 1) wake(inside_);
}

// The caller has ended the last stage: nobody enters any more, and who is inside has nothing to do
// but to pass by what it missed. What the body refers to ends with the run.
void ThreadTeam::close() {
  std::uint32_t inside = inside_.value.fetch_and(~run_is_open) & ~run_is_open;
  while (inside != 0) {
    wait_for_change(inside_, inside);
    inside = inside_.value.load(std::memory_order_acquire);
  }
}

void ThreadTeam::finish(std::uint32_t stage, int done, int units, Meet meet) {
  const std::uint32_t mine = static_cast<std::uint32_t>(done);
  if (done > 0 && done_.value.fetch_add(mine, std::memory_order_acq_rel) + mine ==
                      static_cast<std::uint32_t>(units)) {
    done_.value.store(0, std::memory_order_relaxed);
    meet_ranks(meet);
    change(ended_);
  } else {
    wait_for_change(ended_, stage - 1);
  }
}

}  // namespace headrace
