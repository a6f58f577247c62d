// The kernel table of NEON with 8-bit dot products (sdot); compiled with that ISA's flags.
#include "kernels/attention.hpp"
#include "kernels/attention_families.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/elementwise_families.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_bytes_neon.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/matmul_integer_neon.hpp"
#include "kernels/simd_neon.hpp"

namespace headrace {

const KernelTable& dotprod_kernels(int activation_bits) {
  static constexpr KernelTable table = neon_table("neon-dotprod");
  static constexpr KernelTable bytes = with_neon_bytes(table);
  return activation_bits == 8 ? bytes : table;
}

}  // namespace headrace
