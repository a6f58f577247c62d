// The calls to come of a simulation, in the order of their times and, at equal times, of asking.
//
//   heap      calls at any time
//   messages  calls after one constant delay, which are in order by themselves: nothing is sifted
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace headrace {

template <class Action>
class CallQueue {
 public:
  struct Call {
    double time_s;
    std::uint64_t order;
    Action action;

    bool is_before(const Call& other) const {
      return time_s != other.time_s ? time_s < other.time_s : order < other.order;
    }
  };

  explicit CallQueue(double message_delay_s) : message_delay_s_(message_delay_s) {}

  void add_at(double time_s, Action action) {
    heap_.push_back({time_s, ++order_, action});
    std::push_heap(heap_.begin(), heap_.end(), is_later);
  }

  void add_after(double now_s, double delay_s, Action action) {
    if (delay_s == message_delay_s_)
      messages_.push_back({now_s + delay_s, ++order_, action});
    else
      add_at(now_s + delay_s, action);
  }

  // The next call, or nullptr if there is none; valid until the queue changes.
  const Call* next() const {
    if (messages_.empty()) return heap_.empty() ? nullptr : &heap_.front();
    if (heap_.empty() || messages_.front().is_before(heap_.front())) return &messages_.front();
    return &heap_.front();
  }

  // Takes the call that `next` gave.
  Call take() {
    const Call* taken = next();
    const Call call = *taken;
    if (!messages_.empty() && taken == &messages_.front()) {
      messages_.pop_front();
    } else {
      std::pop_heap(heap_.begin(), heap_.end(), is_later);
      heap_.pop_back();
    }
    return call;
  }

  std::size_t size() const { return heap_.size() + messages_.size(); }

  template <class Visitor>
  void for_each(Visitor visit) const {
    for (const Call& call : heap_) visit(call.action);
    for (const Call& call : messages_) visit(call.action);
  }

  void clear() {
    heap_.clear();
    messages_.clear();
  }

 private:
  static bool is_later(const Call& one, const Call& other) { return other.is_before(one); }

  std::vector<Call> heap_;
  std::deque<Call> messages_;
  double message_delay_s_;
  std::uint64_t order_ = 0;
};

}  // namespace headrace
