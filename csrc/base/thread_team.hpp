// A fixed team of threads that runs one function together, stage by stage.
//
// The caller is member 0. Inside a run, `share` hands out a stage's chunks from an atomic counter
// (so a member that the system takes off its core delays the others by one chunk) and ends with a
// barrier. Waiting spins for a moment, then yields the core, then sleeps: with few cores the HTTP
// process needs them too.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/buffer.hpp"

namespace headrace {

class ThreadTeam;

// One thread's part in a run. Every member makes the same sequence of share() calls.
class Member {
 public:
  Member(ThreadTeam& team, int index) : team_(team), index_(index) {}

  int index() const { return index_; }

  // Calls body(first, end) for chunks of [0, count), on whichever members are free, then waits for
  // all of them.
  template <class Body>
  void share(int count, int chunk, Body&& body);

 private:
  ThreadTeam& team_;
  int index_;
  int stage_ = 0;
};

class ThreadTeam {
 public:
  // `stages_max` bounds the share() calls of one run.
  ThreadTeam(int thread_count, int stages_max);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int thread_count() const { return thread_count_; }

  // Runs body(member) on every thread and returns when all are done. Not reentrant.
  template <class Body>
  void run(Body&& body) {
    run_erased([](void* context, Member& member) { (*static_cast<Body*>(context))(member); },
               &body);
  }

 private:
  friend class Member;
  using Erased = void (*)(void* context, Member& member);

  struct alignas(cache_line_bytes) Counter {
    std::atomic<int> value{0};
  };

  void run_erased(Erased body, void* context);
  void serve(int index);
  void barrier();

  int thread_count_;
  int stages_max_;
  Erased body_ = nullptr;
  void* context_ = nullptr;
  bool closing_ = false;
  Counter epoch_;             // grows by one with each run
  Counter arrived_;           // members at the current barrier
  Counter barrier_epoch_;     // grows by one with each barrier passed
  std::vector<Counter> next_; // per stage, the first chunk not yet handed out
  std::vector<std::thread> threads_;
};

template <class Body>
void Member::share(int count, int chunk, Body&& body) {
  std::atomic<int>& next = team_.next_[static_cast<std::size_t>(stage_++)].value;
  if (team_.thread_count_ == 1) {
    if (count > 0) body(0, count);
    return;
  }
  for (;;) {
    const int first = next.fetch_add(chunk, std::memory_order_relaxed);
    if (first >= count) break;
    body(first, first + chunk < count ? first + chunk : count);
  }
  team_.barrier();
}

}  // namespace headrace
