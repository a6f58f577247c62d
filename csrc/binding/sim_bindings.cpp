// What Python's simulator takes from here: its clock, its engines and their histogram.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "binding/bindings.hpp"
#include "binding/sim_engine.hpp"
#include "binding/sim_loop.hpp"
#include "sim/shapes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {

namespace {

// Python's collector has to see what a clock and an engine refer to: they refer to each other.
template <class Held>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Held>(self)->visit(visit, arg) : 0;
}

template <class Held>
int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Held>(self)->clear();
  return 0;
}

template <class Held>
PyType_Slot collected[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<Held>)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear<Held>)},
                           {0, nullptr}};

template <class Value>
Value field(nb::handle object, const char* name) {
  return nb::cast<Value>(object.attr(name));
}

DeviceModel device_of(nb::handle given) {
  DeviceModel device;
  device.fixed_s = field<double>(given, "fixed_s");
  device.weights_s = field<double>(given, "weights_s");
  device.row_s = field<double>(given, "row_s");
  for (nb::handle point : given.attr("matrix_points"))
    device.matrix_points.push_back(nb::cast<std::pair<std::int64_t, double>>(point));
  device.sequence_s = field<double>(given, "sequence_s");
  device.context_token_s = field<double>(given, "context_token_s");
  device.pair_s = field<double>(given, "pair_s");
  device.kv_tokens = field<std::int64_t>(given, "kv_tokens");
  device.block_size_tokens = field<std::int64_t>(given, "block_size_tokens");
  device.step_rows = field<std::int64_t>(given, "step_rows");
  device.sequences_max = field<std::int64_t>(given, "sequences_max");
  device.waiting_max = field<std::int64_t>(given, "waiting_max");
  device.max_model_len = field<std::int64_t>(given, "max_model_len");
  return device;
}

EngineRules rules_of(nb::handle scheduling) {
  EngineRules rules;
  rules.deferred_max = field<std::int64_t>(scheduling, "deferred_max");
  rules.growth_tokens_max = field<std::int64_t>(scheduling, "growth_tokens_max");
  rules.share_start = field<double>(scheduling, "share_start");
  rules.share_min = field<double>(scheduling, "share_min");
  rules.share_max = field<double>(scheduling, "share_max");
  rules.share_raise = field<double>(scheduling, "share_raise");
  rules.share_decay = field<double>(scheduling, "share_decay");
  return rules;
}

void bind_loop(nb::module_& module) {
  nb::class_<SimLoop>(module, "SimLoop", nb::type_slots(collected<SimLoop>))
      .def(nb::init<double, double>(), "message_delay_s"_a, "wall_start_s"_a)
      .def("at", &SimLoop::at, "time_s"_a, "call"_a, "argument"_a.none())
      .def("after", &SimLoop::after, "delay_s"_a, "call"_a, "argument"_a.none())
      .def("run", &SimLoop::run, "until_s"_a = std::numeric_limits<double>::infinity(),
           "events_max"_a.none() = nb::none())
      .def("check_after_each", [](SimLoop& loop, nb::object check) { loop.after_each = check; })
      .def("monotonic_s", [](const SimLoop& loop) { return loop.now_s; })
      .def("wall_s", &SimLoop::wall_s)
      .def("set_wall", &SimLoop::set_wall, "jump_s"_a)
      .def_prop_ro("is_last_of_moment", &SimLoop::is_last_of_moment)
      .def_prop_ro("pending_count", &SimLoop::pending_count)
      .def_rw("now_s", &SimLoop::now_s)
      .def_ro("events_total", &SimLoop::events_total);
}

void bind_histogram(nb::module_& module) {
  nb::class_<Histogram>(module, "SimHistogram")
      .def(nb::init<>())
      .def("add", &Histogram::add, "value_s"_a, "weight"_a = 1.0)
      .def("percentile", &Histogram::percentile, "percent"_a)
      .def_prop_ro("weight", &Histogram::weight)
      .def_prop_ro("mean", &Histogram::mean);
}

LengthRule length_of(nb::handle given) {
  const nb::object p99 = given.attr("p99");
  return {field<double>(given, "median"), field<double>(given, "p90"),
          p99.is_none() ? 0.0 : nb::cast<double>(p99), field<std::int64_t>(given, "minimum"),
          field<std::int64_t>(given, "maximum")};
}

// `state` is the second part of what `getstate` gives of a generator: its words and its place.
void init_shapes(Shapes* made, nb::tuple state, nb::handle fresh, nb::handle output) {
  if (state.size() != twister_words + 1)
    throw nb::value_error("the state of a random.Random is 624 words and a place");
  std::array<std::uint32_t, twister_words> words;
  for (std::size_t at = 0; at < twister_words; ++at)
    words[at] = nb::cast<std::uint32_t>(state[at]);
  new (made) Shapes(words, nb::cast<std::size_t>(state[twister_words]), length_of(fresh),
                    length_of(output));
}

void bind_shapes(nb::module_& module) {
  nb::class_<Shapes>(module, "SimShapes")
      .def("__init__", &init_shapes, "state"_a, "fresh"_a, "output"_a)
      .def("fresh_tokens", &Shapes::fresh_tokens)
      .def("output_tokens", &Shapes::output_tokens)
      .def("below",
           [](Shapes& shapes, std::uint32_t count) {
             if (count == 0 || count > (1u << 31))
               throw nb::value_error("a number is drawn of 1 to 2**31");
             return shapes.below(count);
           },
           "count"_a)
      .def("random", &Shapes::random);
}

int visit_engines(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const SimEngines& engines = *nb::inst_ptr<SimEngines>(self);
  Py_VISIT(engines.loop_object.ptr());
  Py_VISIT(engines.gaps_object.ptr());
  Py_VISIT(engines.first_token.ptr());
  Py_VISIT(engines.finished.ptr());
  return 0;
}

int clear_engines(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  SimEngines& engines = *nb::inst_ptr<SimEngines>(self);
  engines.first_token.reset();  // the clock and the histogram refer to no engines
  engines.finished.reset();
  return 0;
}

PyType_Slot collected_engines[] = {{Py_tp_traverse, reinterpret_cast<void*>(visit_engines)},
                                   {Py_tp_clear, reinterpret_cast<void*>(clear_engines)},
                                   {0, nullptr}};

void init_engines(SimEngines* made, nb::object loop, nb::handle device, nb::handle listener,
                  nb::object gaps, nb::handle scheduling, bool prefix_cache) {
  SimLoop* clock = nb::cast<SimLoop*>(loop);
  Histogram* histogram = nb::cast<Histogram*>(gaps);
  EngineRules rules = rules_of(scheduling);
  rules.device = device_of(device);
  rules.prefix_cache = prefix_cache;
  new (made) SimEngines{loop, clock, gaps, histogram, listener.attr("first_token"),
                        listener.attr("finished"), std::move(rules)};
}

void bind_engines(nb::module_& module) {
  nb::class_<SimEngines>(module, "SimEngines", nb::type_slots(collected_engines))
      .def("__init__", &init_engines, "loop"_a, "device"_a, "listener"_a, "gaps"_a,
           "scheduling"_a, "prefix_cache"_a);
  nb::class_<SimEngine> engine(module, "SimEngine", nb::type_slots(collected<SimEngine>));
  engine
      .def(
          "__init__",
          [](nb::pointer_and_handle<SimEngine> self, nb::object engines) {
            nb::cast<SimEngines&>(engines);  // a TypeError for anything else
            new (self.p) SimEngine(self.h.ptr(), std::move(engines));
          },
          "engines"_a)
      .def("submit", &SimEngine::submit, "attempt"_a)
      .def("abort", &SimEngine::abort, "attempt"_a)
      .def("known_tokens", &SimEngine::known_tokens, "prefix"_a)
      .def("load",
           [](SimEngine& self) {
             return std::pair(self.engine().running_count(), self.engine().waiting_count());
           })
      .def("slow_down", [](SimEngine& self, double factor) { self.engine().slow_down(factor); },
           "factor"_a)
      .def("halt", [](SimEngine& self) { self.engine().halt(); })
      .def_prop_ro("free_tokens",
                   [](SimEngine& self) { return self.engine().cache().free_tokens(); })
      .def_prop_ro("preemption_count",
                   [](SimEngine& self) { return self.engine().preemption_count(); });
  SimEngine::type = reinterpret_cast<PyTypeObject*>(engine.ptr());
}

}  // namespace

void bind_simulation(nb::module_& module) {
  bind_loop(module);
  bind_histogram(module);
  bind_shapes(module);
  bind_engines(module);
}

}  // namespace headrace
