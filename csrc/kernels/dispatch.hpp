// Chooses the kernel table for the CPU that runs, once, at load.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel_table.hpp"

namespace headrace {

// Names of what the CPU has and some kernel here uses, like "avx2" or "avx512_vnni".
std::vector<std::string> cpu_features();

// The best table that the CPU runs and `isa_limit` allows: "portable", "avx2", "avxvnni", "avx512",
// "dotprod", "i8mm" or "" for no limit. Tests ask for "avx512-products" and "avx512-sums" too, of which
// "avx512" is the one that the machine is faster with. Throws std::invalid_argument for another name, or
// activations that have neither 16 nor 8 bits.
const KernelTable& choose_kernels(const std::string& isa_limit, int activation_bits = 16);

}  // namespace headrace
