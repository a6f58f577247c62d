// The kernel table of AVX-VNNI; compiled with that ISA's flags. Products of quantized weights are its
// own, all else is AVX2's.
#include "kernels/dot_avxvnni.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_fours_avx2.hpp"
#include "kernels/matmul_wide_avx2.hpp"

namespace headrace {

const KernelTable& avxvnni_kernels(int activation_bits) {
  static const KernelTable table = with_products<DotAvxVnni>(avx2_kernels(16));
  static const KernelTable bytes = with_four_products<DotAvxVnni>(with_byte_products<DotAvxVnni>(table));
  return activation_bits == 8 ? bytes : table;
}

}  // namespace headrace
