// What this machine can do, measured: the denominators of the benchmark's shares.
#pragma once

#include <cstddef>

#include "kernels/kernel_table.hpp"

namespace headrace {

// Bytes a second read by all threads together from a buffer of `byte_count`; the best of `repeats`.
double measure_read_bandwidth(int thread_count, std::size_t byte_count, int repeats);

// Integer operations (2 a multiply-add) a second of the kernels' own 4-bit product on operands that
// stay in the first-level cache, all threads together; the best of `repeats`.
double measure_matrix_rate(const KernelTable& kernels, int thread_count, int repeats);

}  // namespace headrace
