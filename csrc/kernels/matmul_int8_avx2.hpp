// Rows times one tile of quantized weights with AVX2: vpmaddubsw of unsigned weights against signed
// activations. The sums are exact. Four bits: a group adds eight pair sums of at most 2 * 15 * 127 =
// 3810 in 16 bits, 30480 < 32768. Eight bits: the weight's sign goes to the activation, and a pair
// sum is at most 2 * 128 * 127 = 32512; it is widened at once.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/outliers.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/simd_avx2.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

inline __m256i broadcast4(const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}

inline __m256i load_bytes(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Keeps the compiler from gathering many sums' additions at the end, which spills every product.
inline void settle(__m256i& sum) {
#if defined(__GNUC__)
  asm volatile("" : "+x"(sum));
#endif
}

template <bool first>
inline void add_products(__m256i& sum, __m256i weights, __m256i x) {
  const __m256i products = _mm256_maddubs_epi16(weights, x);
  sum = first ? products : _mm256_add_epi16(sum, products);
  settle(sum);
}

// 16-bit sums of 4-bit weights, for `rows` rows and both halves of the 16 columns.
template <int rows>
using PairSums = __m256i[rows][2];

// One plane of a 64-byte vector: a broadcast of four activations meets both column halves.
template <int rows, bool first>
inline void add_plane(const __m256i* plane, const std::int8_t* const* x, int offset,
                      PairSums<rows>& sums) {
  for (int r = 0; r < rows; ++r) {
    const __m256i four = broadcast4(x[r] + offset);
    for (int h = 0; h < 2; ++h) add_products<first>(sums[r][h], plane[h], four);
  }
}

// Low nibbles are inputs 0..15 of the group, high ones 16..31; a part with its own scale is one.
template <WeightType type, int rows, int part, bool first>
inline void add_vector(const std::uint8_t* quants, const std::int8_t* const* x, int v,
                       PairSums<rows>& sums) {
  const __m256i low_mask = _mm256_set1_epi8(15);
  const __m256i raw[2] = {load_bytes(quants + v * vector_bytes),
                          load_bytes(quants + v * vector_bytes + 32)};
  constexpr bool whole = scale_parts(type) == 1;
  if constexpr (whole || part == 0) {
    const __m256i low[2] = {_mm256_and_si256(raw[0], low_mask),
                            _mm256_and_si256(raw[1], low_mask)};
    add_plane<rows, first>(low, x, v * 4, sums);
  }
  if constexpr (whole || part == 1) {
    const __m256i high[2] = {_mm256_and_si256(_mm256_srli_epi16(raw[0], 4), low_mask),
                             _mm256_and_si256(_mm256_srli_epi16(raw[1], 4), low_mask)};
    add_plane<rows, first && !whole>(high, x, 16 + v * 4, sums);
  }
}

// The exact sums of a part of a group, 4-bit weights as stored.
template <WeightType type, int rows, int part>
inline void dot_nibbles(const std::uint8_t* quants, const std::int8_t* const* x,
                        __m256i (&dots)[rows][2]) {
  PairSums<rows> sums;
  add_vector<type, rows, part, true>(quants, x, 0, sums);
#pragma GCC unroll 8
  for (int v = 1; v < 4; ++v) add_vector<type, rows, part, false>(quants, x, v, sums);
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h)
      dots[r][h] = _mm256_madd_epi16(sums[r][h], _mm256_set1_epi16(1));
}

// The exact sums of a part of a group, 8-bit weights with their sign.
template <WeightType type, int rows, int part>
inline void dot_bytes(const std::uint8_t* quants, const std::int8_t* const* x,
                      __m256i (&dots)[rows][2]) {
  constexpr int vectors = 8 / scale_parts(type);
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) dots[r][h] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int v = part * vectors; v < (part + 1) * vectors; ++v) {
    for (int h = 0; h < 2; ++h) {
      const __m256i weights = _mm256_xor_si256(load_bytes(quants + v * vector_bytes + h * 32),
                                               _mm256_set1_epi8(-128));
      const __m256i magnitudes = _mm256_abs_epi8(weights);   // -128 becomes 128, unsigned
      for (int r = 0; r < rows; ++r) {
        const __m256i pairs = _mm256_maddubs_epi16(
            magnitudes, _mm256_sign_epi8(broadcast4(x[r] + v * 4), weights));
        dots[r][h] =
            _mm256_add_epi32(dots[r][h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        settle(dots[r][h]);
      }
    }
  }
}

// sums += the part of group g that has one scale: the whole group, or one half of it.
template <WeightType type, int rows, int part>
inline void add_part(const std::uint8_t* quants, const std::int8_t* const* x,
                     const GroupScale* const* scales, int g, const std::uint8_t* group_scales,
                     __m256 (&sums)[rows][2]) {
  __m256i dots[rows][2];
  if constexpr (weight_bits(type) == 8) {
    dot_bytes<type, rows, part>(quants, x, dots);
  } else {
    dot_nibbles<type, rows, part>(quants, x, dots);
  }
  for (int h = 0; h < 2; ++h) {
    const __m256 scale = load_scale<SimdAvx2, type>(group_scales, part, h * 8);
    for (int r = 0; r < rows; ++r) {
      const GroupScale& row_scale = scales[r][g];
      if constexpr (type == WeightType::q4_0)
        dots[r][h] = _mm256_sub_epi32(
            dots[r][h], _mm256_set1_epi32(weight_offset(type) * row_scale.sum));
      const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(row_scale.scale));
      sums[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][h]), factor, sums[r][h]);
      if constexpr (has_minimum(type)) {
        const __m256 minimum = load_minimum<SimdAvx2, type>(group_scales, part, h * 8);
        sums[r][h] = _mm256_fmadd_ps(
            minimum, _mm256_set1_ps(minimum_factor<type>(row_scale, part)), sums[r][h]);
      }
    }
  }
}

template <WeightType type, int rows>
inline void matmul_block_avx2(const std::uint8_t* tile, const ActivationRows& input,
                              std::size_t row_first, int out_row, bool prefetch,
                              const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  const std::int8_t* x[rows];
  const GroupScale* scales[rows];
  __m256 sums[rows][2];   // lives in memory: the registers hold the 16-bit sums
  for (int r = 0; r < rows; ++r) {
    x[r] = input.values + (row_first + r) * input.inputs;
    scales[r] = input.scales + (row_first + r) * groups;
    for (int h = 0; h < 2; ++h) sums[r][h] = _mm256_setzero_ps();
  }
  for (int g = 0; g < groups; ++g) {
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    const std::uint8_t* group_scales = tile + g * scale_bytes(type);
    add_part<type, rows, 0>(quants, x, scales, g, group_scales, sums);
    if constexpr (scale_parts(type) == 2)
      add_part<type, rows, 1>(quants, x, scales, g, group_scales, sums);
    for (int r = 0; r < rows; ++r) x[r] += group_values;
    quants += quant_bytes(type);
  }
  for (int r = 0; r < rows; ++r) {
    add_outliers<SimdAvx2, type, 2>(tile, groups, input, row_first + r, 0, sums[r]);
    for (int h = 0; h < 2; ++h)
      store_tile_vector<SimdAvx2>(sums[r][h], output, out_row + r, h * 8);
  }
}

template <WeightType type>
void matmul_int8_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                      int row_count, const TileOutput& output) {
  constexpr int block_rows = weight_bits(type) == 8 ? 5 : 5;
  for_row_blocks<block_rows>(row_count, [&](auto rows, int first) {
    matmul_block_avx2<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first), first,
                                    first == 0 && row_count <= prefetch_rows_max, output);
  });
}

}  // namespace
}  // namespace headrace
