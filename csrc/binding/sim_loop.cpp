#include "binding/sim_loop.hpp"

#include "binding/sim_engine.hpp"

namespace nb = nanobind;

namespace headrace {

namespace {

void require_coming(bool is_coming) {
  if (is_coming) return;
  PyErr_SetString(PyExc_AssertionError, "a call in the past");
  throw nb::python_error();
}

}  // namespace

void SimLoop::at(double time_s, nb::handle call, nb::handle argument) {
  require_coming(time_s >= now_s);
  queue_.add_at(time_s, {call.inc_ref().ptr(),
                         reinterpret_cast<std::uintptr_t>(argument.inc_ref().ptr())});
}

void SimLoop::after(double delay_s, nb::handle call, nb::handle argument) {
  require_coming(delay_s >= 0.0);
  queue_.add_after(now_s, delay_s,
                   {call.inc_ref().ptr(),
                    reinterpret_cast<std::uintptr_t>(argument.inc_ref().ptr())});
}

void SimLoop::end_span_at(double time_s, nb::handle engine, std::int64_t version) {
  queue_.add_at(time_s, {engine.inc_ref().ptr(), static_cast<std::uintptr_t>(version)});
}

void SimLoop::end_span_after(double delay_s, nb::handle engine, std::int64_t version) {
  queue_.add_after(now_s, delay_s,
                   {engine.inc_ref().ptr(), static_cast<std::uintptr_t>(version)});
}

void SimLoop::run_action(const Action& action) {
  const nb::object target = nb::steal(action.target);
  if (SimEngine::is_engine(action.target)) {
    SimEngine::of(action.target).engine().end_span(static_cast<std::int64_t>(action.argument));
    return;
  }
  const nb::object argument = nb::steal(reinterpret_cast<PyObject*>(action.argument));
  if (!nb::steal(PyObject_CallOneArg(target.ptr(), argument.ptr())).is_valid())
    throw nb::python_error();
}

void SimLoop::run(double until_s, std::optional<std::int64_t> events_max) {
  for (std::int64_t left = events_max.value_or(-1); left != 0; --left) {
    const auto* next = queue_.next();
    if (next == nullptr || next->time_s > until_s) return;
    const auto call = queue_.take();
    now_s = call.time_s;
    run_action(call.action);
    ++events_total;
    if (after_each.is_valid()) after_each();
  }
}

int SimLoop::visit(visitproc visit, void* arg) const {
  int result = 0;
  const auto visit_one = [&](PyObject* object) {
    if (result == 0 && object != nullptr) result = visit(object, arg);
  };
  visit_one(after_each.ptr());
  queue_.for_each([&](const Action& action) {
    visit_one(action.target);
    if (!SimEngine::is_engine(action.target))
      visit_one(reinterpret_cast<PyObject*>(action.argument));
  });
  return result;
}

void SimLoop::let_go(const Action& action) {
  if (!SimEngine::is_engine(action.target))
    Py_DECREF(reinterpret_cast<PyObject*>(action.argument));
  Py_DECREF(action.target);
}

void SimLoop::clear() {
  after_each.reset();
  std::vector<Action> left;
  queue_.for_each([&](const Action& action) { left.push_back(action); });
  queue_.clear();
  for (const Action& action : left) let_go(action);
}

}  // namespace headrace
