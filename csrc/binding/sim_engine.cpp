#include "binding/sim_engine.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

namespace nb = nanobind;

namespace headrace {

namespace {

// The fields of Python's values, looked up by names that are made once.
struct Names {
  PyObject* request = PyUnicode_InternFromString("request");
  PyObject* keys = PyUnicode_InternFromString("keys");
  PyObject* segments = PyUnicode_InternFromString("segments");
  PyObject* prompt_tokens = PyUnicode_InternFromString("prompt_tokens");
  PyObject* output_tokens = PyUnicode_InternFromString("output_tokens");
  PyObject* max_tokens = PyUnicode_InternFromString("max_tokens");
  PyObject* cached_tokens = PyUnicode_InternFromString("cached_tokens");
  PyObject* produced_tokens = PyUnicode_InternFromString("produced_tokens");
};

const Names& names() {
  static const Names made;
  return made;
}

nb::object field(nb::handle object, PyObject* name) {
  const nb::object found = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!found.is_valid()) throw nb::python_error();
  return found;
}

std::int64_t number(nb::handle object) {
  const std::int64_t value = PyLong_AsLongLong(object.ptr());
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  return value;
}

std::int64_t number(nb::handle object, PyObject* name) { return number(field(object, name)); }

void set(void* object, PyObject* name, std::int64_t value) {
  const nb::object number = nb::steal(PyLong_FromLongLong(value));
  if (PyObject_SetAttr(static_cast<PyObject*>(object), name, number.ptr()) < 0)
    throw nb::python_error();
}

void tell(const nb::object& listener, void* attempt) {
  PyObject* argument = static_cast<PyObject*>(attempt);
  if (!nb::steal(PyObject_CallOneArg(listener.ptr(), argument)).is_valid())
    throw nb::python_error();
}

// As `answer_key` of sim/fleet/request.py: the next prompt of a conversation has the same.
PrefixKey answer_key(nb::handle last_key, nb::handle output_tokens) {
  constexpr int answer_content = 0;
  return nb::hash(nb::make_tuple(last_key, answer_content, output_tokens));
}

// PyTuple_GET_ITEM of a tuple that was checked to be one.
nb::handle item(nb::handle tuple, std::size_t place) {
  return PyTuple_GET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(place));
}

std::vector<PromptSegment> prompt_of(nb::handle keys, nb::handle segments) {
  if (!PyTuple_Check(keys.ptr()) || !PyTuple_Check(segments.ptr()) || nb::len(keys) == 0 ||
      nb::len(keys) != nb::len(segments))
    throw nb::value_error("a prompt has a key for each of its segments, and at least one");
  std::vector<PromptSegment> prompt;
  prompt.reserve(nb::len(keys));
  for (std::size_t place = 0; place < nb::len(keys); ++place)
    prompt.push_back({number(item(keys, place)), number(item(item(segments, place), 1))});
  return prompt;
}

Request request_of(nb::handle given, bool keeps_answer) {
  const nb::object keys = field(given, names().keys);
  const nb::object output_tokens = field(given, names().output_tokens);
  Request request;
  request.prompt = prompt_of(keys, field(given, names().segments));
  request.prompt_tokens = number(given, names().prompt_tokens);
  request.output_tokens = number(output_tokens);
  request.max_tokens = number(given, names().max_tokens);
  if (keeps_answer)
    request.answer_key = answer_key(item(keys, request.prompt.size() - 1), output_tokens);
  return request;
}

// Raises one of headrace.base.errors.
[[noreturn]] void refuse(const char* error, const std::string& text, const nb::dict& fields) {
  const nb::object type = nb::module_::import_("headrace.base.errors").attr(error);
  const nb::object made = type(text, **fields);
  PyErr_SetObject(type.ptr(), made.ptr());
  throw nb::python_error();
}

}  // namespace

PyTypeObject* SimEngine::type = nullptr;

SimEngine::SimEngine(PyObject* self, nb::object engines_object)
    : self_(self),
      engines_object_(std::move(engines_object)),
      engines_(nb::inst_ptr<SimEngines>(engines_object_)),
      engine_(*this, engines_->rules, *engines_->gaps) {}

void SimEngine::submit(nb::handle attempt) {
  Request request = request_of(field(attempt, names().request), engines_->rules.prefix_cache);
  nb::dict fields;
  switch (engine_.accepts(attempt.ptr(), request.prompt_tokens + request.output_tokens)) {
    case Submission::in_use:
      fields["param"] = "request_id";
      refuse("Conflict", "request id " + std::string(nb::str(attempt.attr("key")).c_str()) + " is in use", fields);
    case Submission::queue_full:
      refuse("RateLimited", "the engine's queue is full", fields);
    case Submission::too_long:
      fields["prompt_tokens"] = engine_.context_max();
      refuse("ContextLengthExceeded",
             "the context holds " + std::to_string(engine_.context_max()) + " tokens", fields);
    case Submission::taken:
      engine_.submit(attempt.inc_ref().ptr(), std::move(request));
  }
}

std::int64_t SimEngine::known_tokens(nb::handle prefix) const {
  const nb::tuple keys = nb::cast<nb::tuple>(prefix.attr("keys"));
  const nb::tuple ends = nb::cast<nb::tuple>(prefix.attr("tokens"));
  std::vector<PromptSegment> prompt;
  std::int64_t start = 0;
  for (std::size_t place = 0; place < keys.size(); ++place) {
    const std::int64_t end = number(ends[place]);
    prompt.push_back({number(keys[place]), end - start});
    start = end;
  }
  return engine_.cache().match(prompt).known_tokens;
}

void SimEngine::cached(void* attempt, std::int64_t tokens) {
  set(attempt, names().cached_tokens, tokens);
}

void SimEngine::first_token(void* attempt) {
  set(attempt, names().produced_tokens, 1);
  tell(engines_->first_token, attempt);
}

void SimEngine::finished(void* attempt, std::int64_t produced_tokens) {
  set(attempt, names().produced_tokens, produced_tokens);
  tell(engines_->finished, attempt);
}

int SimEngine::visit(visitproc visit, void* arg) const {
  int result = 0;
  const auto visit_one = [&](void* object) {
    if (result == 0 && object != nullptr) result = visit(static_cast<PyObject*>(object), arg);
  };
  visit_one(engines_object_.ptr());
  engine_.for_each_attempt(visit_one);
  return result;
}

void SimEngine::clear() {
  engine_.halt();
  engine_.clear();
}

}  // namespace headrace
