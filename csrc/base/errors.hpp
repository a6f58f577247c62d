// The operating errors that C++ raises; the binding turns each into its Python class.
#pragma once

#include <stdexcept>
#include <string>

namespace headrace {

// A model file is contradictory or unsupported; the text names the tensor or field.
struct ModelFileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A caller broke the runner protocol: ValueError in Python.
struct InvalidStep : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

}  // namespace headrace
