// The two halves of the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace {

void bind_transformer(nanobind::module_& module);   // CpuTransformer
void bind_kernels(nanobind::module_& module);       // features, probes, single kernels for tests

}  // namespace headrace
