// A fixed team of threads that runs one function together, stage by stage.
//
// The caller is member 0. Inside a run, `share` cuts a stage's work into one contiguous part a
// member, so that each reads its weights as one stream; who is done takes chunks of the others'
// parts (a member that the system takes off its core delays them by one chunk). A barrier ends the
// stage. Waiting spins for a moment, then yields the core, then sleeps: with few cores the HTTP
// process needs them too. Where a model is spread over ranks (rank_group.hpp), a stage whose results
// other ranks read ends when all ranks have ended it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/buffer.hpp"
#include "base/rank_group.hpp"

namespace headrace {

class ThreadTeam;

// Keeps the calling thread on these cores; what it then touches first lies in their NUMA node. Does
// nothing without cores, or where the system does not let it.
void pin_thread(const std::vector<int>& cores);

// Who must have ended a stage before the next begins: this process's team, or every rank's.
enum class Meet { team, ranks };

// One thread's part in a run. Every member makes the same sequence of share() calls.
class Member {
 public:
  Member(ThreadTeam& team, int index) : team_(team), index_(index) {}

  int index() const { return index_; }
  int team_size() const;
  RankPlace place() const;   // of this process among the model's ranks

  // Calls body(first, end) for chunks of [0, count), own part first, then waits for all members.
  template <class Body>
  void share(int count, int chunk, Body&& body, Meet meet = Meet::team);

  // As share(), of this rank's part of [0, count): what must be done by one rank alone.
  template <class Body>
  void share_of_rank(int count, int chunk, Body&& body);

 private:
  ThreadTeam& team_;
  int index_;
  int stage_ = 0;
};

class ThreadTeam {
 public:
  // `group` is what the ranks meet at, if there are several; it outlives the team.
  // Its threads, all but the caller, stay on `cores` if there are any.
  explicit ThreadTeam(int thread_count, RankGroup* group = nullptr, std::vector<int> cores = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int thread_count() const { return thread_count_; }
  RankPlace place() const { return group_ == nullptr ? RankPlace{} : group_->place(); }

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
  void barrier(Meet meet);

  int thread_count_;
  RankGroup* group_;
  std::vector<int> cores_;
  Erased body_ = nullptr;
  void* context_ = nullptr;
  bool closing_ = false;
  Counter epoch_;             // grows by one with each run
  Counter arrived_;           // members at the current barrier
  Counter barrier_epoch_;     // grows by one with each barrier passed
  std::vector<Counter> taken_;
  std::vector<std::thread> threads_;
};

inline int Member::team_size() const { return team_.thread_count(); }
inline RankPlace Member::place() const { return team_.place(); }

template <class Body>
void Member::share_of_rank(int count, int chunk, Body&& body) {
  const RowSpan part = rows_of_rank(team_.place(), count, 1);
  share(part.count(), chunk,
        [&](int first, int end) { body(part.first + first, part.first + end); }, Meet::ranks);
}

template <class Body>
void Member::share(int count, int chunk, Body&& body, Meet meet) {
  const int members = team_.thread_count_;
  if (members == 1) {
    if (count > 0) body(0, count);
    team_.barrier(meet);
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
  team_.barrier(meet);
  team_.taken(stage_ + 2, index_).store(0, std::memory_order_relaxed);
  ++stage_;
}

}  // namespace headrace
