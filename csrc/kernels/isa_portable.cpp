// The kernel table of plain C++, for every machine; compiled with that ISA's flags.
#include "kernels/attention.hpp"
#include "kernels/attention_families.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/elementwise_families.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/matmul_integer_portable.hpp"
#include "kernels/simd_portable.hpp"

namespace headrace {

const KernelTable& portable_kernels(int activation_bits) {
  using S = SimdPortable;
  static constexpr KernelTable table{
      .name = "portable",
      .matmul = {matmul_float<S, WeightType::f32>, matmul_float<S, WeightType::f16>,
                 matmul_float<S, WeightType::bf16>, matmul_integer_portable<WeightType::q4_0>,
                 matmul_integer_portable<WeightType::q4_1>, matmul_integer_portable<WeightType::q8_0>,
                 matmul_integer_portable<WeightType::q4_k>, matmul_integer_portable<WeightType::q5_k>,
                 matmul_integer_portable<WeightType::q6_k>, matmul_integer_portable<WeightType::grid8>,
                 matmul_integer_portable<WeightType::grid4_halves>},
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
  static constexpr KernelTable bytes = with_fours(
      with_bytes(table, matmul_bytes_portable<WeightType::q4_0>, matmul_bytes_portable<WeightType::q4_1>,
                 matmul_bytes_portable<WeightType::q4_k>,
                 matmul_bytes_portable<WeightType::grid4_halves>),
      quantize_fours<S>, matmul_fours_portable<WeightType::q8_0>,
      matmul_fours_portable<WeightType::q5_k>, matmul_fours_portable<WeightType::q6_k>,
      matmul_fours_portable<WeightType::grid8>);
  return activation_bits == 8 ? bytes : table;
}

}  // namespace headrace
