// A few rows times one tile of quantized weights with registers of 256 bits: weights unpacked to as many
// bits as the rows have, 16 or 8, meet a pair or four of a row's inputs, broadcast (dot_avx2.hpp). All sums
// are exact: 32 products of at most 128 * 32767 stay under 2^31, and there it says what those of bytes may
// be. More rows: matmul_wide_avx2.hpp. D: DotAvx2 or DotAvxVnni.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernels/dot_avx2.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/row_pointers.hpp"
#include "kernels/simd_avx2.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

static_assert(group_values / 4 * 2 * 15 * byte_peak <= 32767, "a group fits DotAvx2's 16 bits");
static_assert(group_values * 32.0 * 128.0 * quantized_peak <= 2147483647.0,
              "a group of weights of 6 bits times their codes fits 32 bits");

// A product's rows as the integers that they are multiplied as, and inputs that one instruction takes.
template <class Integer>
struct RowIntegers;

template <>
struct RowIntegers<std::int16_t> {
  static constexpr int inputs = 2;
  const std::int16_t* values;
  const GroupScale* scales;
  explicit RowIntegers(const ActivationRows& rows) : values(rows.values), scales(rows.scales) {}
};

template <>
struct RowIntegers<std::int8_t> {
  static constexpr int inputs = 4;
  const std::int8_t* values;
  const GroupScale* scales;
  explicit RowIntegers(const ActivationRows& rows)
      : values(rows.bytes), scales(rows.byte_scales) {}
};

template <int rows>
using RowDots = __m256i[rows][2];   // sums of both halves of the 16 columns

template <class D, class Integer>
constexpr Blocking blocking_of(WeightType type) {
  return D::blocking(type, 8 * static_cast<int>(sizeof(Integer)));
}

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

// Inputs 4q..4q+3 of a group of nibbles as bytes, 0..15, for half h of the columns.
template <int q>
[[gnu::always_inline]] inline __m256i unpack_four(const std::uint8_t* quants, int h) {
  __m256i raw = _mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(quants + q % 4 * vector_bytes + h * 32));
  settle(raw);
  if constexpr (q >= 4) raw = _mm256_srli_epi16(raw, 4);
  return _mm256_and_si256(raw, _mm256_set1_epi8(15));
}

template <WeightType type, class Integer, int step>
[[gnu::always_inline]] inline __m256i unpack_step(const std::uint8_t* quants, int h) {
  if constexpr (sizeof(Integer) == 1) return unpack_four<step>(quants, h);
  return unpack_pair<type, step>(quants, h);
}

// The order of a group's steps: pairs of nibbles that lie in the same vector together.
template <WeightType type, class Integer>
constexpr int step_at(int i) {
  const bool nibbles = weight_bits(type) == 4 && scale_parts(type) == 1;
  return nibbles && sizeof(Integer) == 2 ? i / 4 * 2 + i % 2 + i / 2 % 2 * 8 : i;
}

// dots = the exact sums of steps [i, end) of a group, as stored. A call left standing would put the sums
// into memory.
template <class D, WeightType type, int rows, int i, int end, class Integer, bool first = true>
[[gnu::always_inline]] inline void dot_steps(const std::uint8_t* quants,
                                             const RowPointers<Integer>& x, RowDots<rows>& dots) {
  if constexpr (i < end) {
    constexpr int step = step_at<type, Integer>(i);
    const __m256i weights[2] = {unpack_step<type, Integer, step>(quants, 0),
                                unpack_step<type, Integer, step>(quants, 1)};
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
      D::add(weights, x.row(r) + RowIntegers<Integer>::inputs * step, first, dots[r]);
    dot_steps<D, type, rows, i + 1, end, Integer, false>(quants, x, dots);
  }
}

template <int rows>
[[gnu::always_inline]] inline void keep_dots(const RowDots<rows>& dots, RowDots<rows>& out) {
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) out[r][h] = dots[r][h];
}

// first = first * its codes + second * its own, of a part's 16 columns each.
template <int rows>
[[gnu::always_inline]] inline void join_parts(const RowDots<rows>& second, const std::uint8_t* codes,
                                              RowDots<rows>& first) {
  for (int h = 0; h < 2; ++h) {
    const auto* at = reinterpret_cast<const __m128i*>(codes + h * 8);
    const __m256i one = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at));
    const __m256i two = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at + 1));
    for (int r = 0; r < rows; ++r)
      first[r][h] = _mm256_add_epi32(_mm256_mullo_epi32(first[r][h], one),
                                     _mm256_mullo_epi32(second[r][h], two));
  }
}

// The sums of a group, of one part with a scale of its own after the other.
template <class D, WeightType type, int rows, class Integer>
[[gnu::always_inline]] inline void dot_group(const std::uint8_t* quants, const GroupScales& scales,
                                             const RowPointers<Integer>& x, RowDots<rows>* kept) {
  constexpr int steps = group_values / RowIntegers<Integer>::inputs / scale_parts(type);
  RowDots<rows> dots;
  dot_steps<D, type, rows, 0, steps>(quants, x, dots);
  keep_dots<rows>(dots, kept[0]);
  if constexpr (scale_parts(type) == 2) {
    dot_steps<D, type, rows, steps, 2 * steps>(quants, x, dots);
    if constexpr (joins_parts(type)) {
      join_parts<rows>(dots, scales.numbers, kept[0]);
    } else {
      keep_dots<rows>(dots, kept[1]);
    }
  }
}

// A column's sum of one part of a group in 32 bits.
template <class D, class Integer>
[[gnu::always_inline]] inline __m256i join_dot(__m256i dot) {
  if constexpr (sizeof(Integer) == 1) return D::join(dot);
  return dot;
}

// sums += one part of group g.
template <class D, WeightType type, int rows, class Integer>
[[gnu::always_inline]] inline void scale_part(const RowDots<rows>& dots,
                                              const GroupScale* const* scales, int g, int part,
                                              const GroupScales& group_scales,
                                              __m256 (&sums)[rows][2]) {
  for (int h = 0; h < 2; ++h) {
    const __m256 scale = load_sum_scale<SimdAvx2, type>(group_scales, part, h * 8);
    __m256 minimum = _mm256_setzero_ps();
    if constexpr (has_minimum(type))
      minimum = load_minimum<SimdAvx2, type>(group_scales, part, h * 8);
    for (int r = 0; r < rows; ++r) {
      const GroupScale& row_scale = scales[r][g];
      __m256i dot = join_dot<D, Integer>(dots[r][h]);
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

template <class D, WeightType type, int rows, class Integer>
inline void matmul_block_avx2(const std::uint8_t* tile, const ActivationRows& input,
                              std::size_t row_first, int out_row, bool prefetch,
                              const TileOutput& output) {
  constexpr int parts = sum_parts(type);
  constexpr int kept_groups = blocking_of<D, Integer>(type).kept_groups;
  const RowIntegers<Integer> rows_in(input);
  const std::size_t inputs = static_cast<std::size_t>(input.inputs);
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  RowPointers<Integer> x(rows_in.values + row_first * inputs, inputs);
  const GroupScale* scales[rows];
  RowDots<rows> kept[kept_groups * parts];
  __m256 sums[rows][2];
  for (int r = 0; r < rows; ++r) {
    scales[r] = rows_in.scales + (row_first + r) * groups;
    for (int h = 0; h < 2; ++h) sums[r][h] = _mm256_setzero_ps();
  }
  for (int first = 0; first < groups; first += kept_groups) {
    const int count = std::min(kept_groups, groups - first);
    for (int g = 0; g < count; ++g, quants += quant_bytes(type)) {
      x.hold();
      if (prefetch) prefetch_group(quants, quant_bytes(type));
      dot_group<D, type, rows>(quants, scales_of<type>(tile, first + g), x, kept + g * parts);
      x.advance(group_values);
    }
    for (int i = 0; i < count * parts; ++i) {
      const int g = first + i / parts;
      scale_part<D, type, rows, Integer>(kept[i], scales, g, i % parts, scales_of<type>(tile, g),
                                         sums);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h)
      store_tile_vector<SimdAvx2>(sums[r][h], output, out_row + r, h * 8);
}

template <class D, WeightType type, class Integer>
inline void matmul_narrow_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                               int row_count, const TileOutput& output) {
  for_row_blocks<blocking_of<D, Integer>(type).rows>(row_count, [&](auto rows, int first) {
    matmul_block_avx2<D, type, rows(), Integer>(tile, input,
                                                static_cast<std::size_t>(row_first + first), first,
                                                first == 0, output);
  });
}

}  // namespace
}  // namespace headrace
