// Rows times one tile of quantized weights with registers of 256 bits: weights widened to 16 bits meet
// 16-bit activations, a pair of inputs a column (dot_avx2.hpp). The sums are exact: 32 products of at
// most 128 * 32767 stay under 2^31. D: DotAvx2 or DotAvxVnni.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernels/dot_avx2.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/simd_avx2.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

// Pair p of a group's inputs as 16-bit weights, for half h of the columns (tile_layout.hpp). Nibbles
// are read anew for each pair: a load is cheaper than the registers that unpacked pairs would take.
template <WeightType type, int p>
[[gnu::always_inline]] inline __m256i unpack_pair(const std::uint8_t* quants, int h) {
  if constexpr (weight_bits(type) == 8) {
    return _mm256_cvtepi8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(quants + (p * 2 + h) * tile_columns)));
  } else {
    constexpr int shift = p % 2 * 8 + p / 8 * 4;
    __m256i raw = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(quants + p % 8 / 2 * vector_bytes + h * 32));
    settle(raw);
    if constexpr (shift == 12) return _mm256_srli_epi16(raw, 12);
    return _mm256_and_si256(_mm256_srli_epi16(raw, shift), _mm256_set1_epi16(15));
  }
}

// dots = or += one pair of inputs, for `rows` rows and both halves of the 16 columns.
template <class D, WeightType type, int rows, int p, bool first>
[[gnu::always_inline]] inline void add_pair(const std::uint8_t* quants, const std::int16_t* const* x,
                     __m256i (&dots)[rows][2]) {
  const __m256i weights[2] = {unpack_pair<type, p>(quants, 0), unpack_pair<type, p>(quants, 1)};
  for (int r = 0; r < rows; ++r) D::add(weights, x[r] + 2 * p, first, dots[r]);
}

// The exact sums of pairs [p, end) of a group, as stored. A call left standing would put the sums
// into memory.
template <class D, WeightType type, int rows, int p, int end, bool first = true>
[[gnu::always_inline]] inline void dot_pairs(const std::uint8_t* quants, const std::int16_t* const* x,
                      __m256i (&dots)[rows][2]) {
  if constexpr (p < end) {
    constexpr bool nibbles = weight_bits(type) == 4 && scale_parts(type) == 1;
    constexpr int at = nibbles ? p / 4 * 2 + p % 2 + p / 2 % 2 * 8 : p;   // a vector's pairs together
    add_pair<D, type, rows, at, first>(quants, x, dots);
    dot_pairs<D, type, rows, p + 1, end, false>(quants, x, dots);
  }
}

template <int rows>
using RowDots = __m256i[rows][2];   // of both halves of the 16 columns

template <int rows>
[[gnu::always_inline]] inline void keep_dots(const RowDots<rows>& dots, RowDots<rows>& out) {
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) out[r][h] = dots[r][h];
}

// The exact sums of `count` groups, a part with a scale of its own after the other; moves `x` on.
template <class D, WeightType type, int rows>
[[gnu::always_inline]] inline void dot_groups(const std::uint8_t* quants, int count, bool prefetch,
                                              const std::int16_t** x, RowDots<rows>* kept) {
  constexpr int pairs = group_pairs / scale_parts(type);
  for (int g = 0; g < count; ++g, quants += quant_bytes(type)) {
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    __m256i dots[rows][2];
    dot_pairs<D, type, rows, 0, pairs>(quants, x, dots);
    keep_dots<rows>(dots, *kept++);
    if constexpr (scale_parts(type) == 2) {
      dot_pairs<D, type, rows, pairs, 2 * pairs>(quants, x, dots);
      keep_dots<rows>(dots, *kept++);
    }
    for (int r = 0; r < rows; ++r) x[r] += group_values;
  }
}

// sums += one part of a group.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void scale_part(const RowDots<rows>& dots,
                                              const GroupScale* const* scales, int g, int part,
                                              const GroupScales& group_scales,
                                              __m256 (&sums)[rows][2]) {
  for (int h = 0; h < 2; ++h) {
    const __m256 scale = load_scale<SimdAvx2, type>(group_scales, part, h * 8);
    __m256 minimum = _mm256_setzero_ps();
    if constexpr (has_minimum(type))
      minimum = load_minimum<SimdAvx2, type>(group_scales, part, h * 8);
    for (int r = 0; r < rows; ++r) {
      const GroupScale& row_scale = scales[r][g];
      __m256i dot = dots[r][h];
      if constexpr (weight_offset(type) != 0)
        dot = _mm256_add_epi32(dot, _mm256_set1_epi32(offset_correction<type>(row_scale, part)));
      const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(row_scale.scale));
      sums[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), factor, sums[r][h]);
      if constexpr (has_minimum(type))
        sums[r][h] = _mm256_fmadd_ps(
            minimum, _mm256_set1_ps(minimum_factor<type>(row_scale, part)), sums[r][h]);
    }
  }
}

template <class D, WeightType type, int rows>
inline void matmul_block_avx2(const std::uint8_t* tile, const ActivationRows& input,
                              std::size_t row_first, int out_row, bool prefetch,
                              const TileOutput& output) {
  constexpr int parts = scale_parts(type);
  static constexpr int kept_groups = D::blocking(type, 16).kept_groups;
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  const std::int16_t* x[rows];
  const GroupScale* scales[rows];
  RowDots<rows> kept[kept_groups * parts];
  __m256 sums[rows][2];
  for (int r = 0; r < rows; ++r) {
    x[r] = input.values + (row_first + r) * input.inputs;
    scales[r] = input.scales + (row_first + r) * groups;
    for (int h = 0; h < 2; ++h) sums[r][h] = _mm256_setzero_ps();
  }
  for (int first = 0; first < groups; first += kept_groups) {
    const int count = std::min(kept_groups, groups - first);
    dot_groups<D, type, rows>(quants, count, prefetch, x, kept);
    quants += static_cast<std::size_t>(count) * quant_bytes(type);
    for (int i = 0; i < count * parts; ++i) {
      const int g = first + i / parts;
      scale_part<type, rows>(kept[i], scales, g, i % parts, scales_of<type>(tile, g), sums);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h)
      store_tile_vector<SimdAvx2>(sums[r][h], output, out_row + r, h * 8);
}

template <class D, WeightType type>
inline void matmul_narrow_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                               int row_count, const TileOutput& output) {
  for_row_blocks<D::blocking(type, 16).rows>(row_count, [&](auto rows, int first) {
    matmul_block_avx2<D, type, rows()>(tile, input, static_cast<std::size_t>(row_first + first),
                                       first, first == 0, output);
  });
}

}  // namespace
}  // namespace headrace
