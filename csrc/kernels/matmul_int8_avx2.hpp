// Rows times one tile of quantized weights with AVX2: vpmaddubsw of unsigned 4-bit planes against
// signed activations. The sums are exact: a group adds eight pair sums of at most 2 * 15 * 127 =
// 3810 in 16 bits, 30480 < 32768. Eight-bit weights are two such planes, 16 * high + low, because
// vpmaddubsw of whole bytes saturates.
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

inline __m256i broadcast4(const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}

inline __m256i load_bytes(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// dots[r] = exact sums of one group for 8 columns, the weight offset not yet taken off.
template <WeightType type, int rows>
inline void dot_group_avx2(const std::uint8_t* quants, const std::int8_t* const* x, __m256i* dots) {
  const __m256i low_mask = _mm256_set1_epi8(15);
  __m256i low_sums[rows];
  __m256i high_sums[rows];
  constexpr int vectors = static_cast<int>(quant_bytes(type) / vector_bytes);
  constexpr int high_step = type == WeightType::q8_0 ? 0 : 16;
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const __m256i raw = load_bytes(quants + v * vector_bytes);
    const __m256i low = _mm256_and_si256(raw, low_mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low_mask);
    for (int r = 0; r < rows; ++r) {
      const __m256i low_products = _mm256_maddubs_epi16(low, broadcast4(x[r] + v * 4));
      const __m256i high_products =
          _mm256_maddubs_epi16(high, broadcast4(x[r] + high_step + v * 4));
      if constexpr (type == WeightType::q8_0) {
        low_sums[r] = v == 0 ? low_products : _mm256_add_epi16(low_sums[r], low_products);
        high_sums[r] = v == 0 ? high_products : _mm256_add_epi16(high_sums[r], high_products);
      } else {
        low_sums[r] = v == 0 ? low_products : _mm256_add_epi16(low_sums[r], low_products);
        low_sums[r] = _mm256_add_epi16(low_sums[r], high_products);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    dots[r] = _mm256_madd_epi16(low_sums[r], _mm256_set1_epi16(1));
    if constexpr (type == WeightType::q8_0)
      dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(high_sums[r], _mm256_set1_epi16(16)));
  }
}

template <WeightType type, int rows>
inline void matmul_block_avx2(const std::uint8_t* tile, const ActivationRows& input,
                              std::size_t row_first, int half, int out_row,
                              const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups) + half * 32;
  const std::uint8_t* weight_scales = tile + half * 16;
  const std::int8_t* x[rows];
  const GroupScale* scales[rows];
  __m256 sums[rows];
  for (int r = 0; r < rows; ++r) {
    x[r] = input.values + (row_first + r) * input.inputs;
    scales[r] = input.scales + (row_first + r) * groups;
    sums[r] = _mm256_setzero_ps();
  }
  for (int g = 0; g < groups; ++g) {
    __m256i dots[rows];
    dot_group_avx2<type, rows>(quants, x, dots);
    const auto* halves = reinterpret_cast<const std::uint16_t*>(weight_scales);
    const __m256 scale = SimdAvx2::load_f16(halves);
    for (int r = 0; r < rows; ++r) {
      if constexpr (weight_offset(type) != 0) {
        const __m256i offset = _mm256_set1_epi32(weight_offset(type) * scales[r][g].sum);
        dots[r] = _mm256_sub_epi32(dots[r], offset);
      }
      const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(scales[r][g].scale));
      sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), factor, sums[r]);
      if constexpr (type == WeightType::q4_1) {
        const __m256 minimum = SimdAvx2::load_f16(halves + tile_columns);
        sums[r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(scales[r][g].scaled_sum), sums[r]);
      }
      x[r] += group_values;
    }
    quants += quant_bytes(type);
    weight_scales += scale_bytes(type);
  }
  for (int r = 0; r < rows; ++r)
    store_tile_vector<SimdAvx2>(sums[r], output, out_row + r, half * 8);
}

template <WeightType type>
void matmul_int8_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                      int row_count, const TileOutput& output) {
  constexpr int block_rows = type == WeightType::q8_0 ? 3 : 5;
  for_row_blocks<block_rows>(row_count, [&](auto rows, int first) {
    const std::size_t row = static_cast<std::size_t>(row_first + first);
    matmul_block_avx2<type, rows()>(tile, input, row, 0, first, output);
    matmul_block_avx2<type, rows()>(tile, input, row, 1, first, output);
  });
}

}  // namespace
}  // namespace headrace
