// A fixed team of threads that runs one function together, stage by stage.
//
// The caller is member 0. Inside a run, `share` cuts a stage's work into one contiguous part a
// member, so that each reads its weights as one stream; who is done takes chunks of the others'
// parts. A stage ends when all its units are done, whoever did them, and who did the last of them
// goes on at once. So a member that the system takes off its core is waited for if it is at work on
// a chunk; otherwise the others go on without it, and when it is back it passes by the stages that
// have ended and joins the one that is open. Where a model is spread over ranks (rank_group.hpp), a
// stage whose results other ranks read ends when all ranks have ended it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/buffer.hpp"
#include "base/rank_group.hpp"
#include "base/waiting.hpp"

namespace headrace {

class ThreadTeam;

// Keeps the calling thread on these cores; what it then touches first lies in their NUMA node. Does
// nothing without cores, or where the system does not let it.
void pin_thread(const std::vector<int>& cores);

// Who must have ended a stage before the next begins: this process's team, or every rank's.
enum class Meet { team, ranks };

// One thread's part in a run. Every member makes the same sequence of share() calls. Between them a
// member may be stages behind the others: what it reads there, such as a stage's count, either does
// not change in a run or is an atomic that is stored with release and loaded with acquire.
class Member {
 public:
  Member(ThreadTeam& team, int index) : team_(team), index_(index) {}

  int index() const { return index_; }
  int team_size() const;
  RankPlace place() const;   // of this process among the model's ranks

  // Calls body(first, end) for chunks of [0, count), own part first, until none is left to take;
  // returns when all of them are done.
  template <class Body>
  void share(int count, int chunk, Body&& body, Meet meet = Meet::team);

  // As share(), of this rank's part of [0, count): what must be done by one rank alone.
  template <class Body>
  void share_of_rank(int count, int chunk, Body&& body);

 private:
  ThreadTeam& team_;
  int index_;
  std::uint32_t stage_ = 0;   // of this run; the first is 1
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

  // Runs body(member) on the caller, and on every thread that comes before the caller has ended;
  // returns when all of them are done. Not reentrant.
  template <class Body>
  void run(Body&& body) {
    run_erased([](void* context, Member& member) { (*static_cast<Body*>(context))(member); },
               &body);
  }

 private:
  friend class Member;
  using Erased = void (*)(void* context, Member& member);

  // What is taken of a member's part: the stage in the upper half, units in the lower. While the
  // stage is an earlier one, nothing of this one's is taken. Neither ever falls within a run, so
  // that who is late takes nothing: no stage ends before all its units are taken.
  struct alignas(cache_line_bytes) Taken {
    std::atomic<std::uint64_t> value{0};
  };

  struct alignas(cache_line_bytes) Done {
    std::atomic<std::uint32_t> value{0};
  };

  // Takes up to `chunk` of the `size` units of a member's part; the first of them, or -1.
  int take(std::uint32_t stage, int owner, int size, int chunk);

  bool has_ended(std::uint32_t stage) const {
    return ended_.value.load(std::memory_order_acquire) >= stage;
  }
  // After a member found nothing more to take: adds what it has done, and returns when all is done.
  void finish(std::uint32_t stage, int done, int units, Meet meet);
  void meet_ranks(Meet meet) {
    if (meet == Meet::ranks && group_ != nullptr) group_->barrier();
  }

  void run_erased(Erased body, void* context);
  void serve(int index);
  bool enter();
  void leave();
  void close();

  int thread_count_;
  RankGroup* group_;
  std::vector<int> cores_;
  Erased body_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> closing_{false};
  WaitWord epoch_{};          // grows by one with each run
  WaitWord inside_{};         // threads in the run's body, and run_is_open
  WaitWord ended_{};          // stages of the run
  Done done_;                 // units of the stage that is open
  std::vector<Taken> taken_;
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
    team_.meet_ranks(meet);
    return;
  }
  ++stage_;
  if (team_.has_ended(stage_)) return;
  const int units = count > 0 ? count : 1;   // somebody has to end an empty stage too
  const auto part_start = [&](int member) {
    return static_cast<int>(static_cast<long long>(units) * member / members);
  };
  int done = 0;
  for (int step = 0; step < members; ++step) {
    const int owner = (index_ + step) % members;
    const int start = part_start(owner);
    const int size = part_start(owner + 1) - start;
    for (;;) {
      const int first = team_.take(stage_, owner, size, chunk);
      if (first < 0) break;
      const int end = first + chunk < size ? first + chunk : size;
      if (count > 0) body(start + first, start + end);
      done += end - first;
    }
  }
  team_.finish(stage_, done, units, meet);
}

inline int ThreadTeam::take(std::uint32_t stage, int owner, int size, int chunk) {
  std::atomic<std::uint64_t>& word = taken_[static_cast<std::size_t>(owner)].value;
  std::uint64_t known = word.load(std::memory_order_relaxed);
  for (;;) {
    const std::uint32_t of = static_cast<std::uint32_t>(known >> 32);
    const int first = of == stage ? static_cast<int>(static_cast<std::uint32_t>(known)) : 0;
    if (of > stage || first >= size) return -1;
    const std::uint64_t next =
        std::uint64_t{stage} << 32 | static_cast<std::uint32_t>(first + chunk);
    if (word.compare_exchange_weak(known, next, std::memory_order_relaxed)) return first;
  }
}

}  // namespace headrace
