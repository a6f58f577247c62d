// Rows times one tile of quantized weights with NEON's 8-bit dot products: `sdot`, or `smmla` where
// the translation unit has i8mm.
//
// A 16-bit activation is 256 * high + low, both of them signed bytes (quantized_peak in
// kernel_table.hpp keeps the high one in range). SimdNeon::quantize_group puts the low bytes of each
// 8 inputs before their high bytes, so that one register is the two rows that `smmla` multiplies
// with two columns: a row alone fills the instruction, and no row depends on a neighbour. The sums
// are exact: low and high ones stay under 32 * 128 * 128.
#pragma once

#include <arm_neon.h>

#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/simd_neon.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

constexpr int half_columns = tile_columns / 2;   // at once: the sums of all would not fit
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int neon_rows = 6;   // whose sums leave room for the weights in 32 registers
#else
constexpr int neon_rows = 5;
#endif

// Inputs 4j..4j+3 of a group for columns 4q..4q+3, as signed bytes.
template <WeightType type>
[[gnu::always_inline]] inline int8x16_t unpack_four(const std::uint8_t* quants, int j, int q) {
  if constexpr (weight_bits(type) == 8) {
    return vreinterpretq_s8_u8(vld1q_u8(quants + static_cast<std::size_t>(j) * vector_bytes + q * 16));
  } else {
    const uint8x16_t raw =
        vld1q_u8(quants + static_cast<std::size_t>(j % 4) * vector_bytes + q * 16);
    return vreinterpretq_s8_u8(j < 4 ? vandq_u8(raw, vdupq_n_u8(15)) : vshrq_n_u8(raw, 4));
  }
}

// What one row adds up over a part of a group for 8 columns.
struct NeonDots {
  int32x4_t sums[4];
};

// dots += inputs 8e..8e+7.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void add_eight(const std::uint8_t* quants, const std::int8_t* const* x,
                                             int e, int half, NeonDots (&dots)[rows]) {
  for (int q = 0; q < 2; ++q) {
    const int8x16_t first = unpack_four<type>(quants, 2 * e, half * 2 + q);
    const int8x16_t second = unpack_four<type>(quants, 2 * e + 1, half * 2 + q);
#if defined(__ARM_FEATURE_MATMUL_INT8)
    const int32x4_t a = vreinterpretq_s32_s8(first);
    const int32x4_t b = vreinterpretq_s32_s8(second);
    const int8x16_t columns01 = vreinterpretq_s8_s32(vzip1q_s32(a, b));
    const int8x16_t columns23 = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    for (int r = 0; r < rows; ++r) {
      const int8x16_t inputs = vld1q_s8(x[r] + 16 * e);
      int32x4_t* sums = dots[r].sums + 2 * q;   // low and high of two columns each
      sums[0] = vmmlaq_s32(sums[0], inputs, columns01);
      sums[1] = vmmlaq_s32(sums[1], inputs, columns23);
    }
#else
    for (int r = 0; r < rows; ++r) {
      const int8x16_t inputs = vld1q_s8(x[r] + 16 * e);
      int32x4_t* sums = dots[r].sums + 2 * q;   // low ones of four columns, high ones
      sums[0] = vdotq_laneq_s32(sums[0], first, inputs, 0);
      sums[0] = vdotq_laneq_s32(sums[0], second, inputs, 1);
      sums[1] = vdotq_laneq_s32(sums[1], first, inputs, 2);
      sums[1] = vdotq_laneq_s32(sums[1], second, inputs, 3);
    }
#endif
  }
}

// The exact sums of columns 4q..4q+3 of the half.
inline int32x4_t whole_dots(const NeonDots& dots, int q) {
  const int32x4_t* sums = dots.sums + 2 * q;
#if defined(__ARM_FEATURE_MATMUL_INT8)
  const int64x2_t a = vreinterpretq_s64_s32(sums[0]);
  const int64x2_t b = vreinterpretq_s64_s32(sums[1]);
  const int32x4_t low = vreinterpretq_s32_s64(vzip1q_s64(a, b));
  const int32x4_t high = vreinterpretq_s32_s64(vzip2q_s64(a, b));
#else
  const int32x4_t low = sums[0];
  const int32x4_t high = sums[1];
#endif
  return vaddq_s32(low, vshlq_n_s32(high, 8));
}

// sums += the part of group g that has one scale, for half of the columns.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void add_part(const std::uint8_t* quants, const std::int8_t* const* x,
                                            const GroupScale* const* scales, int g, int part,
                                            int half, const GroupScales& group_scales,
                                            float32x4_t (&sums)[rows][4]) {
  constexpr int eights = group_values / 8 / scale_parts(type);
  NeonDots dots[rows];
  for (NeonDots& row : dots)
    for (int32x4_t& sum : row.sums) sum = vdupq_n_s32(0);
#pragma GCC unroll 4
  for (int e = 0; e < eights; ++e)
    add_eight<type, rows>(quants, x, part * eights + e, half, dots);
  for (int q = 0; q < 2; ++q) {
    const int column = half * half_columns + q * 4;
    const float32x4_t scale = load_scale<SimdNeon, type>(group_scales, part, column);
    float32x4_t minimum = vdupq_n_f32(0.0f);
    if constexpr (has_minimum(type)) minimum = load_minimum<SimdNeon, type>(group_scales, part, column);
    for (int r = 0; r < rows; ++r) {
      const GroupScale& row_scale = scales[r][g];
      int32x4_t whole = whole_dots(dots[r], q);
      if constexpr (weight_offset(type) != 0)
        whole = vaddq_s32(whole, vdupq_n_s32(offset_correction<type>(row_scale, part)));
      float32x4_t& sum = sums[r][half * 2 + q];
      sum = vfmaq_f32(sum, vcvtq_f32_s32(whole), vmulq_n_f32(scale, row_scale.scale));
      if constexpr (has_minimum(type))
        sum = vfmaq_n_f32(sum, minimum, minimum_factor<type>(row_scale, part));
    }
  }
}

template <WeightType type, int rows>
inline void matmul_block_neon(const std::uint8_t* tile, const ActivationRows& input,
                              std::size_t row_first, int out_row, bool prefetch,
                              const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  const std::int8_t* x[rows];
  const GroupScale* scales[rows];
  float32x4_t sums[rows][4];   // lives in memory: the registers hold the integer sums
  for (int r = 0; r < rows; ++r) {
    x[r] = reinterpret_cast<const std::int8_t*>(input.values + (row_first + r) * input.inputs);
    scales[r] = input.scales + (row_first + r) * groups;
    for (float32x4_t& sum : sums[r]) sum = vdupq_n_f32(0.0f);
  }
  for (int g = 0; g < groups; ++g) {
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    const GroupScales group_scales = scales_of<type>(tile, g);
    for (int part = 0; part < scale_parts(type); ++part)
      for (int half = 0; half < 2; ++half)
        add_part<type, rows>(quants, x, scales, g, part, half, group_scales, sums);
    for (int r = 0; r < rows; ++r) x[r] += 2 * group_values;
    quants += quant_bytes(type);
  }
  for (int r = 0; r < rows; ++r)
    for (int q = 0; q < 4; ++q) store_tile_vector<SimdNeon>(sums[r][q], output, out_row + r, q * 4);
}

template <WeightType type>
void matmul_integer_neon(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                         int row_count, const TileOutput& output) {
  for_row_blocks<neon_rows>(row_count, [&](auto rows, int first) {
    matmul_block_neon<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first), first,
                                    first == 0 && row_count <= prefetch_rows_max, output);
  });
}

// The kernel table of the translation unit's instruction set.
constexpr KernelTable neon_table(const char* name) {
  using S = SimdNeon;
  return {
      .name = name,
      .matmul = {matmul_float<S, WeightType::f32>, matmul_float<S, WeightType::f16>,
                 matmul_float<S, WeightType::bf16>, matmul_integer_neon<WeightType::q4_0>,
                 matmul_integer_neon<WeightType::q4_1>, matmul_integer_neon<WeightType::q8_0>,
                 matmul_integer_neon<WeightType::q4_k>, matmul_integer_neon<WeightType::q5_k>,
                 matmul_integer_neon<WeightType::q6_k>, matmul_integer_neon<WeightType::grid8>,
                 matmul_integer_neon<WeightType::grid4_halves>},
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
}

}  // namespace
}  // namespace headrace
