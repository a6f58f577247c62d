// Rows times one tile of quantized weights with AVX2: vpmaddubsw of unsigned 4-bit planes against
// signed activations. The sums are exact: a group adds eight pair sums of at most 2 * 15 * 127 =
// 3810 in 16 bits, 30480 < 32768. Eight-bit weights are two such planes, 16 * high + low, because
// vpmaddubsw of whole bytes saturates.
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

// Sums of one group in 16 bits, for `rows` rows and both halves of the 16 columns.
template <int rows>
struct GroupSums {
  __m256i low[rows][2];
  __m256i high[rows][2];   // of Q8_0's high nibbles; Q4 adds both to `low`
};

// The inputs of one 64-byte vector: a broadcast of four activations meets both column halves.
template <WeightType type, int rows, bool first>
inline void add_vector(const std::uint8_t* quants, const std::int8_t* const* x, int v,
                       GroupSums<rows>& sums) {
  const __m256i low_mask = _mm256_set1_epi8(15);
  const __m256i raw[2] = {load_bytes(quants + v * vector_bytes),
                          load_bytes(quants + v * vector_bytes + 32)};
  const __m256i low[2] = {_mm256_and_si256(raw[0], low_mask), _mm256_and_si256(raw[1], low_mask)};
  for (int r = 0; r < rows; ++r) {
    const __m256i four = broadcast4(x[r] + v * 4);
    for (int h = 0; h < 2; ++h) add_products<first>(sums.low[r][h], low[h], four);
  }
  const __m256i high[2] = {_mm256_and_si256(_mm256_srli_epi16(raw[0], 4), low_mask),
                           _mm256_and_si256(_mm256_srli_epi16(raw[1], 4), low_mask)};
  for (int r = 0; r < rows; ++r) {
    if constexpr (type == WeightType::q8_0) {
      const __m256i four = broadcast4(x[r] + v * 4);
      for (int h = 0; h < 2; ++h) add_products<first>(sums.high[r][h], high[h], four);
    } else {
      const __m256i four = broadcast4(x[r] + 16 + v * 4);
      for (int h = 0; h < 2; ++h) add_products<false>(sums.low[r][h], high[h], four);
    }
  }
}

// The exact sums of a row's group for 8 columns, in 32 bits.
template <WeightType type, int rows>
inline __m256i widen(const GroupSums<rows>& sums, int r, int half, const GroupScale& scale) {
  __m256i dots = _mm256_madd_epi16(sums.low[r][half], _mm256_set1_epi16(1));
  if constexpr (type == WeightType::q8_0)
    dots = _mm256_add_epi32(dots,
                            _mm256_madd_epi16(sums.high[r][half], _mm256_set1_epi16(16)));
  if constexpr (weight_offset(type) != 0)
    dots = _mm256_sub_epi32(dots, _mm256_set1_epi32(weight_offset(type) * scale.sum));
  return dots;
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
    GroupSums<rows> group;
    add_vector<type, rows, true>(quants, x, 0, group);
    constexpr int vectors = static_cast<int>(quant_bytes(type) / vector_bytes);
#pragma GCC unroll 8
    for (int v = 1; v < vectors; ++v) add_vector<type, rows, false>(quants, x, v, group);
    const auto* halves = reinterpret_cast<const std::uint16_t*>(tile + g * scale_bytes(type));
    for (int h = 0; h < 2; ++h) {
      const __m256 scale = SimdAvx2::load_f16(halves + h * 8);
      for (int r = 0; r < rows; ++r) {
        const GroupScale& row_scale = scales[r][g];
        const __m256 dots = _mm256_cvtepi32_ps(widen<type, rows>(group, r, h, row_scale));
        const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(row_scale.scale));
        sums[r][h] = _mm256_fmadd_ps(dots, factor, sums[r][h]);
        if constexpr (type == WeightType::q4_1) {
          const __m256 minimum = SimdAvx2::load_f16(halves + tile_columns + h * 8);
          sums[r][h] =
              _mm256_fmadd_ps(minimum, _mm256_set1_ps(row_scale.scaled_sum), sums[r][h]);
        }
      }
    }
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
  constexpr int block_rows = type == WeightType::q8_0 ? 3 : 5;
  for_row_blocks<block_rows>(row_count, [&](auto rows, int first) {
    matmul_block_avx2<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first), first,
                                    first == 0 && row_count <= prefetch_rows_max, output);
  });
}

}  // namespace
}  // namespace headrace
