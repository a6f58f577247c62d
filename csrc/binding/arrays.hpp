// NumPy arrays as the bindings take them: contiguous, on the CPU, of one type, never converted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "base/errors.hpp"

namespace headrace {

template <class T>
using Vector = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig,
                                 nanobind::device::cpu>;
template <class T>
using Matrix = nanobind::ndarray<const T, nanobind::ndim<2>, nanobind::c_contig,
                                 nanobind::device::cpu>;
template <class T>
using Array3 = nanobind::ndarray<const T, nanobind::ndim<3>, nanobind::c_contig,
                                 nanobind::device::cpu>;
template <class T>
using OutArray3 = nanobind::ndarray<T, nanobind::ndim<3>, nanobind::c_contig,
                                    nanobind::device::cpu>;
template <class T>
using OutVector = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig,
                                    nanobind::device::cpu>;
template <class T>
using OutMatrix = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig,
                                    nanobind::device::cpu>;

inline int int_size(std::size_t size) {
  if (size > 0x7FFFFFFF) throw InvalidStep("an array has over 2^31 elements");
  return static_cast<int>(size);
}

template <class Array>
void require_length(const Array& array, std::size_t length, const char* name) {
  if (array.shape(0) != length)
    throw InvalidStep(std::string(name) + " has " + std::to_string(array.shape(0)) +
                      " elements where " + std::to_string(length) + " are needed");
}

}  // namespace headrace
