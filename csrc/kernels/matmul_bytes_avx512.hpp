// Rows of 8-bit activations times one tile of 4-bit weights with AVX-512 VNNI: vpdpbusd adds four exact
// products of a nibble (0..15) and a byte to 32-bit sums, 16 columns an instruction. The weight offset
// is where the sums start.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/matmul_integer_avx512.hpp"

namespace headrace {
namespace {

inline __m512i broadcast_four_512(const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

// Inputs 4q..4q+3 of a group as bytes (tile_layout.hpp).
template <int q>
[[gnu::always_inline]] inline __m512i unpack_four_512(const std::uint8_t* quants) {
  __m512i raw = _mm512_loadu_si512(quants + q % 4 * vector_bytes);
  if constexpr (q >= 4) raw = _mm512_srli_epi16(raw, 4);
  return _mm512_and_si512(raw, _mm512_set1_epi8(15));
}

// dots += fours [q, end) of a group.
template <int rows, int q, int end>
[[gnu::always_inline]] inline void add_fours(const std::uint8_t* quants,
                                             const RowPointers<std::int8_t>& x,
                                             __m512i (&dots)[rows]) {
  if constexpr (q < end) {
    __m512i weights = unpack_four_512<q>(quants);
    settle(weights);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      dots[r] = _mm512_dpbusd_epi32(dots[r], weights, broadcast_four_512(x.row(r) + 4 * q));
      settle(dots[r]);
    }
    add_fours<rows, q + 1, end>(quants, x, dots);
  }
}

// sums += the part of a group that has one scale: the whole group, or one half of it.
template <WeightType type, int rows, int part>
[[gnu::always_inline]] inline void add_byte_part(const std::uint8_t* quants,
                                                 const RowPointers<std::int8_t>& x,
                                                 const RowPointers<GroupScale>& row_scales,
                                                 const GroupScales& scales,
                                                 __m512 (&sums)[rows]) {
  constexpr int fours = group_quads / scale_parts(type);
  __m512i dots[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    dots[r] = weight_offset(type) == 0
                  ? _mm512_setzero_si512()
                  : _mm512_set1_epi32(offset_correction<type>(*row_scales.row(r), part));
  add_fours<rows, part * fours, (part + 1) * fours>(quants, x, dots);
  __m512 minimum = _mm512_setzero_ps();
  if constexpr (has_minimum(type)) minimum = load_minimum<SimdAvx512, type>(scales, part, 0);
  scale_dots<type, rows>(dots, row_scales, part, load_scale<SimdAvx512, type>(scales, part, 0),
                         minimum, sums);
}

// Not inlined: among other blocks the compiler would keep its sums in memory.
template <WeightType type, int rows>
[[gnu::noinline]] void byte_block_avx512(const std::uint8_t* tile, const ActivationRows& input,
                                         std::size_t row_first, int out_row, bool prefetch,
                                         const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::size_t inputs = static_cast<std::size_t>(input.inputs);
  const std::size_t row_groups = inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  RowPointers<std::int8_t> x(input.bytes + row_first * inputs, inputs);
  RowPointers<GroupScale> row_scales(input.byte_scales + row_first * row_groups, row_groups);
  __m512 sums[rows];
  for (int r = 0; r < rows; ++r) sums[r] = _mm512_setzero_ps();
  for (int g = 0; g < groups; ++g, quants += quant_bytes(type)) {
    x.hold();
    row_scales.hold();
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    const GroupScales scales = scales_of<type>(tile, g);
    add_byte_part<type, rows, 0>(quants, x, row_scales, scales, sums);
    if constexpr (scale_parts(type) == 2)
      add_byte_part<type, rows, 1>(quants, x, row_scales, scales, sums);
    x.advance(group_values);
    row_scales.advance(1);
  }
  for (int r = 0; r < rows; ++r) store_tile_vector<SimdAvx512>(sums[r], output, out_row + r, 0);
}

template <WeightType type>
void matmul_bytes_avx512(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                         int row_count, const TileOutput& output) {
  for_row_blocks<block_rows_512>(row_count, [&](auto rows, int first) {
    byte_block_avx512<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first), first,
                                    first == 0, output);
  });
}

}  // namespace
}  // namespace headrace
