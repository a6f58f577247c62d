// A fixed team of threads that runs one function together, stage by stage.
//
// The caller is member 0. Inside a run, `share` cuts a stage's work into one contiguous part a
// member, so that each reads its weights as one stream; who is done takes chunks of the others'
// parts (a member that the system takes off its core delays them by one chunk). A barrier ends the
// stage. Waiting spins for a moment, then yields the core, then sleeps: with few cores the HTTP
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

  // Calls body(first, end) for chunks of [0, count), own part first, then waits for all members.
  template <class Body>
  void share(int count, int chunk, Body&& body);

 private:
  ThreadTeam& team_;
  int index_;
  int stage_ = 0;
};

class ThreadTeam {
 public:
  explicit ThreadTeam(int thread_count);
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

  // How much of its part each member's stage has handed out. Three slots take turns: when a stage
  // ends, everybody has left the one before it, whose slot is cleared for the stage after next.
  std::atomic<int>& taken(int stage, int member) {
    return taken_[static_cast<std::size_t>(stage % stage_slots * thread_count_ + member)].value;
  }

  static constexpr int stage_slots = 3;

  void run_erased(Erased body, void* context);
  void serve(int index);
  void barrier();

  int thread_count_;
  Erased body_ = nullptr;
  void* context_ = nullptr;
  bool closing_ = false;
  Counter epoch_;             // grows by one with each run
  Counter arrived_;           // members at the current barrier
  Counter barrier_epoch_;     // grows by one with each barrier passed
  std::vector<Counter> taken_;
  std::vector<std::thread> threads_;
};

template <class Body>
void Member::share(int count, int chunk, Body&& body) {
  const int members = team_.thread_count_;
  if (members == 1) {
    if (count > 0) body(0, count);
    return;
  }
  const auto part_start = [&](int member) {
    return static_cast<int>(static_cast<long long>(count) * member / members);
  };
  for (int step = 0; step < members; ++step) {
    const int owner = (index_ + step) % members;
    const int end = part_start(owner + 1);
    std::atomic<int>& taken = team_.taken(stage_, owner);
    for (;;) {
      const int first = part_start(owner) + taken.fetch_add(chunk, std::memory_order_relaxed);
      if (first >= end) break;
      body(first, first + chunk < end ? first + chunk : end);
    }
  }
  team_.barrier();
  team_.taken(stage_ + 2, index_).store(0, std::memory_order_relaxed);
  ++stage_;
}

}  // namespace headrace
