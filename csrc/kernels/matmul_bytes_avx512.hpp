// Rows of 8-bit activations times one tile of 4-bit weights with AVX-512 VNNI: vpdpbusd adds four exact
// products of a nibble (0..15) and a byte. All else is as with 16 bits (matmul_integer_avx512.hpp).
#pragma once

#include <immintrin.h>

#include "kernels/matmul_integer_avx512.hpp"

namespace headrace {
namespace {

// Inputs 4q..4q+3 of a group as bytes (tile_layout.hpp).
template <int q>
[[gnu::always_inline]] inline __m512i unpack_four_512(const std::uint8_t* quants) {
  __m512i raw = _mm512_loadu_si512(quants + q % 4 * vector_bytes);
  if constexpr (q >= 4) raw = _mm512_srli_epi16(raw, 4);
  return _mm512_and_si512(raw, _mm512_set1_epi8(15));
}

// dots += quad q of the group at `quants`, which is number `group` from where `x` points.
template <WeightType type, int q, int group, int rows>
[[gnu::always_inline]] inline void add_quad(const std::uint8_t* quants, const GroupScales&,
                                            const RowAddresses<std::int8_t, rows>& x,
                                            __m512i (&dots)[rows]) {
  static_assert(!joins_parts(type));
  __m512i weights = unpack_four_512<q>(quants);
  settle(weights);
  unrolled<rows>([&](auto r) __attribute__((always_inline)) {
    add_products<r, group * group_values + 4 * q>(dots[r], weights, x);
  });
}

template <WeightType type>
void matmul_bytes_avx512(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                         int row_count, const TileOutput& output) {
  matmul_rows_avx512<type>(tile, input.bytes, input.byte_scales, input.inputs, row_first, row_count,
                           output);
}

}  // namespace
}  // namespace headrace
