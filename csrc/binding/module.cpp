// The Python module headrace.kernels._native; its types are in _native.pyi.
#include <nanobind/nanobind.h>

#include "base/errors.hpp"
#include "binding/bindings.hpp"

namespace nb = nanobind;

namespace headrace {

namespace {

// Raises headrace.base.errors.ModelFileError for the C++ error of that name.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const ModelFileError& error) {
    const nb::object type = nb::module_::import_("headrace.base.errors").attr("ModelFileError");
    PyErr_SetObject(type.ptr(), nb::str(error.what()).ptr());
  }
}

}  // namespace

}  // namespace headrace

NB_MODULE(_native, module) {
  module.doc() = "headrace's compiled kernels, CPU model runner and simulated engine";
  nb::register_exception_translator(headrace::translate);
  headrace::bind_transformer(module);
  headrace::bind_kernels(module);
  headrace::bind_simulation(module);
}
