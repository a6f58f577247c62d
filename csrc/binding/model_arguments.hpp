// A model as Python hands it over: its tensors, and the numbers of its architecture.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <string>

#include "model/model_shape.hpp"
#include "model/raw_tensor.hpp"

namespace headrace {

// (ggml type, shape, bytes) as a raw tensor that points into the array. A callable in the bytes'
// place makes them when they are read, which must then happen under the interpreter's lock.
RawTensor raw_tensor(const std::string& name, const nanobind::tuple& fields);

// {name: (ggml type, shape, bytes or what makes them)} as raw tensors.
std::map<std::string, RawTensor> raw_tensors(const nanobind::dict& tensors);

// What an ArchitectureSpec says, without its layers and rotations.
ModelShape shape_of(const nanobind::object& spec);

}  // namespace headrace
