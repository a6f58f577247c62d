// The kernel table of AVX2, FMA and F16C; compiled with that ISA's flags.
#include "kernels/attention.hpp"
#include "kernels/attention_families.hpp"
#include "kernels/dot_avx2.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/elementwise_families.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/matmul_fours_avx2.hpp"
#include "kernels/matmul_wide_avx2.hpp"
#include "kernels/simd_avx2.hpp"

namespace headrace {

const KernelTable& avx2_kernels(int activation_bits) {
  using S = SimdAvx2;
  static constexpr KernelTable floats{
      .name = DotAvx2::name,
      .matmul = {matmul_float<S, WeightType::f32>, matmul_float<S, WeightType::f16>,
                 matmul_float<S, WeightType::bf16>},
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
  static constexpr KernelTable table = with_products<DotAvx2>(floats);
  static constexpr KernelTable bytes = with_four_products<DotAvx2>(with_byte_products<DotAvx2>(table));
  return activation_bits == 8 ? bytes : table;
}

}  // namespace headrace
