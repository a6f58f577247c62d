// Rows of 8-bit activations times one tile of 4-bit weights with NEON's `sdot`: four exact products of
// a nibble (0..15) and a byte, four columns an instruction. `smmla` would want other rows beside one.
#pragma once

#include <arm_neon.h>

#include "kernels/matmul_integer_neon.hpp"

namespace headrace {
namespace {

constexpr int neon_byte_rows = 5;   // four sums each

// dots += inputs 16e..16e+15 of a group, which lie in one half of the nibbles.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void add_sixteen(const std::uint8_t* quants,
                                               const std::int8_t* const* x, int e,
                                               int32x4_t (&dots)[rows][4]) {
  int8x16_t inputs[rows];
  for (int r = 0; r < rows; ++r) inputs[r] = vld1q_s8(x[r] + 16 * e);
  for (int q = 0; q < 4; ++q) {
    const int8x16_t weights[4] = {
        unpack_four<type>(quants, 4 * e, q), unpack_four<type>(quants, 4 * e + 1, q),
        unpack_four<type>(quants, 4 * e + 2, q), unpack_four<type>(quants, 4 * e + 3, q)};
    for (int r = 0; r < rows; ++r) {
      int32x4_t& sum = dots[r][q];
      sum = vdotq_laneq_s32(sum, weights[0], inputs[r], 0);
      sum = vdotq_laneq_s32(sum, weights[1], inputs[r], 1);
      sum = vdotq_laneq_s32(sum, weights[2], inputs[r], 2);
      sum = vdotq_laneq_s32(sum, weights[3], inputs[r], 3);
    }
  }
}

// sums += the part of group g that has one scale.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void add_byte_part(const std::uint8_t* quants,
                                                 const std::int8_t* const* x,
                                                 const GroupScale* const* scales, int g, int part,
                                                 const GroupScales& group_scales,
                                                 float32x4_t (&sums)[rows][4]) {
  constexpr int sixteens = group_values / 16 / scale_parts(type);
  int32x4_t dots[rows][4];
  for (int r = 0; r < rows; ++r)
    for (int32x4_t& dot : dots[r])
      dot = vdupq_n_s32(
          weight_offset(type) == 0 ? 0 : offset_correction<type>(scales[r][g], part));
  for (int e = 0; e < sixteens; ++e)
    add_sixteen<type, rows>(quants, x, part * sixteens + e, dots);
  for (int q = 0; q < 4; ++q) {
    const float32x4_t scale = load_scale<SimdNeon, type>(group_scales, part, q * 4);
    float32x4_t minimum = vdupq_n_f32(0.0f);
    if constexpr (has_minimum(type)) minimum = load_minimum<SimdNeon, type>(group_scales, part, q * 4);
    for (int r = 0; r < rows; ++r) {
      const GroupScale& row_scale = scales[r][g];
      float32x4_t& sum = sums[r][q];
      sum = vfmaq_f32(sum, vcvtq_f32_s32(dots[r][q]), vmulq_n_f32(scale, row_scale.scale));
      if constexpr (has_minimum(type))
        sum = vfmaq_n_f32(sum, minimum, minimum_factor<type>(row_scale, part));
    }
  }
}

template <WeightType type, int rows>
inline void byte_block_neon(const std::uint8_t* tile, const ActivationRows& input,
                            std::size_t row_first, int out_row, bool prefetch,
                            const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  const std::int8_t* x[rows];
  const GroupScale* scales[rows];
  float32x4_t sums[rows][4];   // lives in memory: the registers hold the integer sums
  for (int r = 0; r < rows; ++r) {
    x[r] = input.bytes + (row_first + r) * input.inputs;
    scales[r] = input.byte_scales + (row_first + r) * groups;
    for (float32x4_t& sum : sums[r]) sum = vdupq_n_f32(0.0f);
  }
  for (int g = 0; g < groups; ++g, quants += quant_bytes(type)) {
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    for (int part = 0; part < scale_parts(type); ++part)
      add_byte_part<type, rows>(quants, x, scales, g, part, scales_of<type>(tile, g), sums);
    for (int r = 0; r < rows; ++r) x[r] += group_values;
  }
  for (int r = 0; r < rows; ++r)
    for (int q = 0; q < 4; ++q) store_tile_vector<SimdNeon>(sums[r][q], output, out_row + r, q * 4);
}

template <WeightType type>
void matmul_bytes_neon(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                       int row_count, const TileOutput& output) {
  for_row_blocks<neon_byte_rows>(row_count, [&](auto rows, int first) {
    byte_block_neon<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first), first,
                                  first == 0 && row_count <= prefetch_rows_max, output);
  });
}

constexpr KernelTable with_neon_bytes(const KernelTable& table) {
  return with_bytes(table, matmul_bytes_neon<WeightType::q4_0>, matmul_bytes_neon<WeightType::q4_1>,
                    matmul_bytes_neon<WeightType::q4_k>,
                    matmul_bytes_neon<WeightType::grid4_halves>);
}

}  // namespace
}  // namespace headrace
