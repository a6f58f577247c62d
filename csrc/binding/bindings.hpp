// The parts of the Python module.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "base/errors.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {

// "f16" or "q8", as Python says it.
inline KvType kv_type_of(const std::string& name) {
  if (name == "f16") return KvType::f16;
  if (name == "q8") return KvType::q8;
  throw InvalidStep("the KV cache's type is " + name + "; use f16 or q8");
}

void bind_transformer(nanobind::module_& module);   // CpuTransformer
void bind_kernels(nanobind::module_& module);       // features, probes, single kernels for tests
void bind_simulation(nanobind::module_& module);    // the simulator's clock and engines

}  // namespace headrace
