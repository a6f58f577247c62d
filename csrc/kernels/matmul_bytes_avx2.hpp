// Rows of 8-bit activations times one tile of 4-bit weights with registers of 256 bits: nibbles (0..15)
// meet four bytes of a row, broadcast (dot_avx2.hpp). All sums are exact. D: DotAvx2 or DotAvxVnni.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernels/matmul_integer_avx2.hpp"

namespace headrace {
namespace {

constexpr int group_fours = group_values / 4;

static_assert(group_fours * 2 * 15 * byte_peak <= 32767, "a group fits DotAvx2's 16 bits");

// Inputs 4q..4q+3 of a group as bytes, for half h of the columns (tile_layout.hpp).
template <int q>
[[gnu::always_inline]] inline __m256i unpack_four(const std::uint8_t* quants, int h) {
  __m256i raw = _mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(quants + q % 4 * vector_bytes + h * 32));
  settle(raw);
  if constexpr (q >= 4) raw = _mm256_srli_epi16(raw, 4);
  return _mm256_and_si256(raw, _mm256_set1_epi8(15));
}

// dots = the sums of fours [q, end) of a group, which D::join ends.
template <class D, int rows, int q, int end, bool first = true>
[[gnu::always_inline]] inline void dot_fours(const std::uint8_t* quants,
                                             const std::int8_t* const* x, RowDots<rows>& dots) {
  if constexpr (q < end) {
    const __m256i weights[2] = {unpack_four<q>(quants, 0), unpack_four<q>(quants, 1)};
    for (int r = 0; r < rows; ++r) D::add(weights, x[r] + 4 * q, first, dots[r]);
    dot_fours<D, rows, q + 1, end, false>(quants, x, dots);
  }
}

// The sums of `count` groups, a part with a scale of its own after the other; moves `x` on.
template <class D, WeightType type, int rows>
[[gnu::always_inline]] inline void dot_byte_groups(const std::uint8_t* quants, int count,
                                                   bool prefetch, const std::int8_t** x,
                                                   RowDots<rows>* kept) {
  constexpr int fours = group_fours / scale_parts(type);
  for (int g = 0; g < count; ++g, quants += quant_bytes(type)) {
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    RowDots<rows> dots;
    dot_fours<D, rows, 0, fours>(quants, x, dots);
    keep_dots<rows>(dots, *kept++);
    if constexpr (scale_parts(type) == 2) {
      dot_fours<D, rows, fours, 2 * fours>(quants, x, dots);
      keep_dots<rows>(dots, *kept++);
    }
    for (int r = 0; r < rows; ++r) x[r] += group_values;
  }
}

template <class D, int rows>
[[gnu::always_inline]] inline void join_dots(RowDots<rows>& dots) {
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) dots[r][h] = D::join(dots[r][h]);
}

template <class D, WeightType type, int rows>
inline void byte_block_avx2(const std::uint8_t* tile, const ActivationRows& input,
                            std::size_t row_first, int out_row, bool prefetch,
                            const TileOutput& output) {
  constexpr int parts = scale_parts(type);
  static constexpr int kept_groups = D::blocking(type, 8).kept_groups;
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  const std::int8_t* x[rows];
  const GroupScale* scales[rows];
  RowDots<rows> kept[kept_groups * parts];
  __m256 sums[rows][2];
  for (int r = 0; r < rows; ++r) {
    x[r] = input.bytes + (row_first + r) * input.inputs;
    scales[r] = input.byte_scales + (row_first + r) * groups;
    for (int h = 0; h < 2; ++h) sums[r][h] = _mm256_setzero_ps();
  }
  for (int first = 0; first < groups; first += kept_groups) {
    const int count = std::min(kept_groups, groups - first);
    dot_byte_groups<D, type, rows>(quants, count, prefetch, x, kept);
    quants += static_cast<std::size_t>(count) * quant_bytes(type);
    for (int i = 0; i < count * parts; ++i) {
      const int g = first + i / parts;
      join_dots<D, rows>(kept[i]);
      scale_part<type, rows>(kept[i], scales, g, i % parts, scales_of<type>(tile, g), sums);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h)
      store_tile_vector<SimdAvx2>(sums[r][h], output, out_row + r, h * 8);
}

template <class D, WeightType type>
inline void matmul_narrow_bytes_avx2(const std::uint8_t* tile, const ActivationRows& input,
                                     int row_first, int row_count, const TileOutput& output) {
  for_row_blocks<D::blocking(type, 8).rows>(row_count, [&](auto rows, int first) {
    byte_block_avx2<D, type, rows()>(tile, input, static_cast<std::size_t>(row_first + first),
                                     first, first == 0, output);
  });
}

}  // namespace
}  // namespace headrace
