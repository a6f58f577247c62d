#include <nanobind/nanobind.h>

NB_MODULE(_native, module) { module.doc() = "headrace's compiled kernels"; }
