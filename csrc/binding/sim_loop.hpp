// The simulator's clock for Python: sim/fleet/event_loop.py, which has the rules.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "sim/call_queue.hpp"

namespace headrace {

class SimLoop {
 public:
  SimLoop(double message_delay_s, double wall_start_s)
      : queue_(message_delay_s), wall_offset_s_(wall_start_s) {}
  ~SimLoop() { clear(); }
  SimLoop(const SimLoop&) = delete;
  SimLoop& operator=(const SimLoop&) = delete;

  void at(double time_s, nanobind::handle call, nanobind::handle argument);
  void after(double delay_s, nanobind::handle call, nanobind::handle argument);

  // The end of a span of an engine, which is the same but needs no Python.
  void end_span_at(double time_s, nanobind::handle engine, std::int64_t version);
  void end_span_after(double delay_s, nanobind::handle engine, std::int64_t version);

  bool is_last_of_moment() const {
    const auto* next = queue_.next();
    return next == nullptr || next->time_s > now_s;
  }

  void run(double until_s, std::optional<std::int64_t> events_max);

  std::size_t pending_count() const { return queue_.size(); }
  double wall_s() const { return wall_offset_s_ + now_s; }
  void set_wall(double jump_s) { wall_offset_s_ += jump_s; }

  int visit(visitproc visit, void* arg) const;
  void clear();

  double now_s = 0.0;
  std::int64_t events_total = 0;
  nanobind::object after_each;  // called after every event, unless there is none

 private:
  // A call of Python with an argument, or an engine with the version of its span; the reference to
  // either is the queue's.
  struct Action {
    PyObject* target;
    std::uintptr_t argument;
  };

  static void run_action(const Action& action);
  static void let_go(const Action& action);

  CallQueue<Action> queue_;
  double wall_offset_s_;
};

}  // namespace headrace
