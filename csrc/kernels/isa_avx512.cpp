// The kernel table of AVX-512 F, BW, DQ, VL and VNNI; compiled with that ISA's flags.
#include "kernels/attention.hpp"
#include "kernels/attention_families.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/elementwise_families.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_bytes_avx512.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/matmul_pairs_avx512.hpp"
#include "kernels/matmul_wide_avx512.hpp"
#include "kernels/simd_avx512.hpp"

namespace headrace {

namespace {

using S = SimdAvx512;

constexpr KernelTable products{
    .name = "avx512-vnni",
    .matmul = {matmul_float<S, WeightType::f32>, matmul_float<S, WeightType::f16>,
               matmul_float<S, WeightType::bf16>, matmul_avx512<WeightType::q4_0>,
               matmul_avx512<WeightType::q4_1>, matmul_avx512<WeightType::q8_0>,
               matmul_avx512<WeightType::q4_k>, matmul_avx512<WeightType::q5_k>,
               matmul_avx512<WeightType::q6_k>, matmul_avx512<WeightType::grid8>,
               matmul_avx512<WeightType::grid4_halves>},
    .rms_norm = rms_norm<S>,
    .quantize = quantize<S>,
    .quantize_bytes = quantize_bytes<S>,
    .swiglu = swiglu<S>,
    .rotate = rotate<S>,
    .to_half = to_half<S>,
    .to_bytes = to_bytes<S>,
    .attend = attend<S>,
    .attend_masked = attend_masked<S>,
    .merge = merge<S>,
    .finish = finish<S>,
    .gated = {swiglu<S>, geglu_tanh<S>, geglu_erf<S>, swiglu_clamped<S>},
    .layer_norm = layer_norm<S>,
    .peak = peak<S>,
    .exponentials = exponentials<S>,
};

// The same table with many rows of 16-bit activations multiplied in sums.
constexpr KernelTable with_sums(KernelTable table) {
  table.quantize = quantize_in_pairs;
  const auto take = [&]<WeightType type>() {
    table.matmul[static_cast<int>(type)] = matmul_sums_avx512<type>;
  };
  take.operator()<WeightType::q4_0>();
  take.operator()<WeightType::q4_1>();
  take.operator()<WeightType::q8_0>();
  take.operator()<WeightType::q4_k>();
  take.operator()<WeightType::q5_k>();
  take.operator()<WeightType::q6_k>();
  take.operator()<WeightType::grid8>();
  take.operator()<WeightType::grid4_halves>();
  return table;
}

constexpr KernelTable with_bytes_512(KernelTable table) {
  table.matmul_pair[static_cast<int>(WeightType::q4_0)] = matmul_pairs_avx512<WeightType::q4_0>;
  table.matmul_pair[static_cast<int>(WeightType::q4_1)] = matmul_pairs_avx512<WeightType::q4_1>;
  table.matmul_pair[static_cast<int>(WeightType::q4_k)] = matmul_pairs_avx512<WeightType::q4_k>;
  return with_bytes(table, matmul_bytes_avx512<WeightType::q4_0>,
                    matmul_bytes_avx512<WeightType::q4_1>, matmul_bytes_avx512<WeightType::q4_k>,
                    matmul_bytes_avx512<WeightType::grid4_halves>);
}

}  // namespace

const KernelTable& avx512_products_kernels(int activation_bits) {
  static constexpr KernelTable bytes = with_bytes_512(products);
  return activation_bits == 8 ? bytes : products;
}

const KernelTable& avx512_sums_kernels(int activation_bits) {
  static constexpr KernelTable table = with_sums(products);
  static constexpr KernelTable bytes = with_bytes_512(table);
  return activation_bits == 8 ? bytes : table;
}

}  // namespace headrace
