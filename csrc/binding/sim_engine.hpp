// The simulated engines of a fleet for Python: `SimEngines` makes them, each is a `SimEngine`.
#pragma once

#include <nanobind/nanobind.h>

#include "binding/sim_loop.hpp"
#include "sim/aggregate_engine.hpp"

namespace headrace {

// What all engines of a fleet share: clock, rules, who is told, and the times between tokens.
struct SimEngines {
  nanobind::object loop_object;
  SimLoop* loop;
  nanobind::object gaps_object;
  Histogram* gaps;
  nanobind::object first_token;  // called with the attempt
  nanobind::object finished;
  EngineRules rules;
};

class SimEngine final : public EngineHost {
 public:
  // `self` is the Python object of this engine, which events keep alive.
  SimEngine(PyObject* self, nanobind::object engines_object);

  void submit(nanobind::handle attempt);
  void abort(nanobind::handle attempt) { engine_.abort(attempt.ptr()); }
  std::int64_t known_tokens(nanobind::handle prefix) const;
  AggregateEngine& engine() { return engine_; }

  int visit(visitproc visit, void* arg) const;
  void clear();

  static bool is_engine(const PyObject* object) { return Py_TYPE(object) == type; }
  static SimEngine& of(PyObject* object) { return *nanobind::inst_ptr<SimEngine>(object); }
  static PyTypeObject* type;  // of all that `bind_simulation` makes

 private:
  double now_s() const override { return engines_->loop->now_s; }
  bool is_last_of_moment() const override { return engines_->loop->is_last_of_moment(); }
  void end_span_at(double time_s, std::int64_t version) override {
    engines_->loop->end_span_at(time_s, self_, version);
  }
  void end_span_after(double delay_s, std::int64_t version) override {
    engines_->loop->end_span_after(delay_s, self_, version);
  }
  void cached(void* attempt, std::int64_t tokens) override;
  void first_token(void* attempt) override;
  void finished(void* attempt, std::int64_t produced_tokens) override;
  void let_go(void* attempt) noexcept override { Py_DECREF(static_cast<PyObject*>(attempt)); }

  PyObject* self_;
  nanobind::object engines_object_;
  SimEngines* engines_;
  AggregateEngine engine_;
};

}  // namespace headrace
