// Rows times one tile of quantized weights with AVX2: vpmaddwd of weights widened to 16 bits and
// 16-bit activations, a pair of inputs a column. The sums are exact: 32 products of at most
// 255 * 32767 stay under 2^31.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/simd_avx2.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

constexpr int avx2_rows = 6;   // whose sums fill the registers, two for each row

inline __m256i broadcast_pair(const std::int16_t* x) {
  std::int32_t pair;
  std::memcpy(&pair, x, 4);
  return _mm256_set1_epi32(pair);
}

// Keeps the compiler from gathering many sums' additions at the end, which spills every product.
inline void settle(__m256i& sum) {
#if defined(__GNUC__)
  asm volatile("" : "+x"(sum));
#endif
}

// Pair `pair` of a vector's inputs as 16-bit weights of 8 columns. A 32-bit lane holds a column's 4
// bytes (tile_layout.hpp); every second byte or nibble falls out by a shift and a mask. Read anew for
// each pair: a load is cheaper than the registers that four unpacked pairs would take.
template <WeightType type, int pair>
inline __m256i unpack_pair(const std::uint8_t* vector) {
  __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vector));
  settle(raw);
  if constexpr (weight_bits(type) == 8)
    return pair == 0 ? _mm256_and_si256(raw, _mm256_set1_epi16(255)) : _mm256_srli_epi16(raw, 8);
  constexpr int shift = pair % 2 * 8 + pair / 2 * 4;
  if constexpr (shift == 12) return _mm256_srli_epi16(raw, 12);
  return _mm256_and_si256(_mm256_srli_epi16(raw, shift), _mm256_set1_epi16(15));
}

// dots += one pair of inputs, for `rows` rows and both halves of the 16 columns.
template <WeightType type, int rows, int pair>
inline void add_pair(const std::uint8_t* vector, const std::int16_t* const* x, int offset,
                     __m256i (&dots)[rows][2]) {
  const __m256i weights[2] = {unpack_pair<type, pair>(vector),
                              unpack_pair<type, pair>(vector + vector_bytes / 2)};
  for (int r = 0; r < rows; ++r) {
    const __m256i inputs = broadcast_pair(x[r] + offset);
    for (int h = 0; h < 2; ++h) {
      dots[r][h] = _mm256_add_epi32(dots[r][h], _mm256_madd_epi16(weights[h], inputs));
      settle(dots[r][h]);
    }
  }
}

// The exact sums of a part of a group. Low nibbles are inputs 0..15 of the group, high ones 16..31.
template <WeightType type, int rows, int part>
inline void dot_part(const std::uint8_t* quants, const std::int16_t* const* x,
                     __m256i (&dots)[rows][2]) {
  constexpr bool whole = scale_parts(type) == 1;
  constexpr int vectors = weight_bits(type) == 4 || whole ? weight_bits(type) : 4;
  constexpr int first = weight_bits(type) == 8 ? part * vectors : 0;
#pragma GCC unroll 8
  for (int v = first; v < first + vectors; ++v) {
    const std::uint8_t* vector = quants + v * vector_bytes;
    if constexpr (weight_bits(type) == 8 || whole || part == 0) {
      add_pair<type, rows, 0>(vector, x, v * 4, dots);
      add_pair<type, rows, 1>(vector, x, v * 4 + 2, dots);
    }
    if constexpr (weight_bits(type) == 4 && (whole || part == 1)) {
      add_pair<type, rows, 2>(vector, x, 16 + v * 4, dots);
      add_pair<type, rows, 3>(vector, x, 16 + v * 4 + 2, dots);
    }
  }
}

// sums += the part of group g that has one scale: the whole group, or one half of it.
template <WeightType type, int rows, int part>
inline void add_part(const std::uint8_t* quants, const std::int16_t* const* x,
                     const GroupScale* const* scales, int g, const std::uint8_t* group_scales,
                     __m256 (&sums)[rows][2]) {
  __m256i dots[rows][2];
  for (int r = 0; r < rows; ++r)
    dots[r][0] = dots[r][1] =
        weight_offset(type) == 0
            ? _mm256_setzero_si256()
            : _mm256_set1_epi32(offset_correction<type>(scales[r][g], part));
  dot_part<type, rows, part>(quants, x, dots);
  for (int h = 0; h < 2; ++h) {
    const __m256 scale = load_scale<SimdAvx2, type>(group_scales, part, h * 8);
    for (int r = 0; r < rows; ++r) {
      const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(scales[r][g].scale));
      sums[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][h]), factor, sums[r][h]);
      if constexpr (has_minimum(type)) {
        const __m256 minimum = load_minimum<SimdAvx2, type>(group_scales, part, h * 8);
        sums[r][h] = _mm256_fmadd_ps(
            minimum, _mm256_set1_ps(minimum_factor<type>(scales[r][g], part)), sums[r][h]);
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
  const std::int16_t* x[rows];
  const GroupScale* scales[rows];
  __m256 sums[rows][2];   // lives in memory: the registers hold the integer sums
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
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h)
      store_tile_vector<SimdAvx2>(sums[r][h], output, out_row + r, h * 8);
}

template <WeightType type>
void matmul_integer_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                         int row_count, const TileOutput& output) {
  for_row_blocks<avx2_rows>(row_count, [&](auto rows, int first) {
    matmul_block_avx2<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first), first,
                                    first == 0 && row_count <= prefetch_rows_max, output);
  });
}

}  // namespace
}  // namespace headrace
