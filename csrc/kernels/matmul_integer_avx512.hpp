// Rows times one tile of quantized weights with AVX-512 VNNI: vpdpwssd adds two exact products to
// 32-bit sums, 16 columns an instruction, the activations broadcast from memory. The weight offset
// is where the sums start.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/simd_avx512.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

inline __m512i broadcast_pair_512(const std::int16_t* x) {
  std::int32_t pair;
  std::memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}

// The 16 pairs of a group's inputs as 16-bit weights; pair p meets activations 2p and 2p + 1.
template <WeightType type>
inline void unpack_group_avx512(const std::uint8_t* quants, __m512i* pairs) {
  for (int v = 0; v < weight_bits(type); ++v) {
    if constexpr (weight_bits(type) == 8) {
      for (int p = 2 * v; p < 2 * v + 2; ++p)
        pairs[p] = _mm512_cvtepi8_epi16(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quants + p * 2 * tile_columns)));
    } else {
      const __m512i raw = _mm512_loadu_si512(quants + v * vector_bytes);
      const __m512i low_mask = _mm512_set1_epi16(15);
      pairs[2 * v] = _mm512_and_si512(raw, low_mask);
      pairs[2 * v + 1] = _mm512_and_si512(_mm512_srli_epi16(raw, 8), low_mask);
      pairs[2 * v + 8] = _mm512_and_si512(_mm512_srli_epi16(raw, 4), low_mask);
      pairs[2 * v + 9] = _mm512_srli_epi16(raw, 12);
    }
  }
}

// sums += the part of group g that has one scale: the whole group, or one half of it.
template <WeightType type, int rows, int part>
inline void add_part_avx512(const __m512i* pairs, const std::int16_t* const* x,
                            const GroupScale* const* scales, int g,
                            const GroupScales& group_scales, __m512* sums) {
  constexpr int count = group_pairs / scale_parts(type);
  __m512i dots[rows];
  for (int r = 0; r < rows; ++r)
    dots[r] = weight_offset(type) == 0
                  ? _mm512_setzero_si512()
                  : _mm512_set1_epi32(offset_correction<type>(scales[r][g], part));
#pragma GCC unroll 16
  for (int p = part * count; p < (part + 1) * count; ++p)
    for (int r = 0; r < rows; ++r)
      dots[r] = _mm512_dpwssd_epi32(dots[r], pairs[p],
                                    broadcast_pair_512(x[r] + g * group_values + p * 2));
  const __m512 scale = load_scale<SimdAvx512, type>(group_scales, part, 0);
  for (int r = 0; r < rows; ++r) {
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(scales[r][g].scale));
    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), factor, sums[r]);
  }
  if constexpr (has_minimum(type)) {
    const __m512 minimum = load_minimum<SimdAvx512, type>(group_scales, part, 0);
    for (int r = 0; r < rows; ++r)
      sums[r] = _mm512_fmadd_ps(
          minimum, _mm512_set1_ps(minimum_factor<type>(scales[r][g], part)), sums[r]);
  }
}

template <WeightType type, int rows>
inline void matmul_block_avx512(const std::uint8_t* tile, const ActivationRows& input,
                                std::size_t row_first, int out_row, bool prefetch,
                                const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  const std::int16_t* x[rows];
  const GroupScale* scales[rows];
  __m512 sums[rows];
  for (int r = 0; r < rows; ++r) {
    x[r] = input.values + (row_first + r) * input.inputs;
    scales[r] = input.scales + (row_first + r) * groups;
    sums[r] = _mm512_setzero_ps();
  }
  for (int g = 0; g < groups; ++g, quants += quant_bytes(type)) {
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    __m512i pairs[group_pairs];
    unpack_group_avx512<type>(quants, pairs);
    const GroupScales group_scales = scales_of<type>(tile, g);
    add_part_avx512<type, rows, 0>(pairs, x, scales, g, group_scales, sums);
    if constexpr (scale_parts(type) == 2)
      add_part_avx512<type, rows, 1>(pairs, x, scales, g, group_scales, sums);
  }
  for (int r = 0; r < rows; ++r) store_tile_vector<SimdAvx512>(sums[r], output, out_row + r, 0);
}

template <WeightType type>
void matmul_integer_avx512(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                           int row_count, const TileOutput& output) {
  for_row_blocks<8>(row_count, [&](auto rows, int first) {
    matmul_block_avx512<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first),
                                      first, first == 0 && row_count <= prefetch_rows_max, output);
  });
}

}  // namespace
}  // namespace headrace
