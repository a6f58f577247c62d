// A few rows times one tile of quantized weights with AVX-512 VNNI: vpdpwssd adds two exact products
// to 32-bit sums, 16 columns an instruction, the activations broadcast from memory. The weight offset
// is where the sums start. Many rows: matmul_wide_avx512.hpp.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/row_pointers.hpp"
#include "kernels/simd_avx512.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

constexpr int group_quads = group_values / 4;   // fours of inputs: two pairs each
constexpr int block_rows_512 = RowPointers<std::int16_t>::rows_max;

inline __m512i broadcast_pair_512(const std::int16_t* x) {
  std::int32_t pair;
  std::memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}

// Keeps the compiler from computing in another order, for which the registers do not suffice.
inline void settle(__m512i& vector) {
#if defined(__GNUC__)
  asm volatile("" : "+v"(vector));
#endif
}

// Four inputs' weights as 16-bit lanes: inputs 0 and 2, and inputs 1 and 3.
struct QuadWeights {
  __m512i even;
  __m512i odd;
};

// Quad q of a group, as stored.
template <WeightType type, int q>
[[gnu::always_inline]] inline QuadWeights unpack_quad(const std::uint8_t* quants) {
  if constexpr (weight_bits(type) == 8) {
    const auto* pairs = reinterpret_cast<const __m256i*>(quants) + 2 * q;
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(pairs)),
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(pairs + 1))};
  } else {
    __m512i raw = _mm512_loadu_si512(quants + q % 4 * vector_bytes);
    settle(raw);
    const __m512i low_mask = _mm512_set1_epi16(15);
    if constexpr (q < 4)
      return {_mm512_and_si512(raw, low_mask),
              _mm512_and_si512(_mm512_srli_epi16(raw, 8), low_mask)};
    return {_mm512_and_si512(_mm512_srli_epi16(raw, 4), low_mask), _mm512_srli_epi16(raw, 12)};
  }
}

// dots += quads [q, end) of a group.
template <WeightType type, int rows, int q, int end>
[[gnu::always_inline]] inline void add_quads(const std::uint8_t* quants,
                                             const RowPointers<std::int16_t>& x,
                                             __m512i (&dots)[rows]) {
  if constexpr (q < end) {
    QuadWeights weights = unpack_quad<type, q>(quants);
    settle(weights.even);
    settle(weights.odd);
    for (int pair = 0; pair < 2; ++pair) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        dots[r] = _mm512_dpwssd_epi32(dots[r], pair == 0 ? weights.even : weights.odd,
                                      broadcast_pair_512(x.row(r) + 4 * q + 2 * pair));
        settle(dots[r]);
      }
    }
    add_quads<type, rows, q + 1, end>(quants, x, dots);
  }
}

// sums += a part's exact sums `dots`, by its scales and those of the rows.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void scale_dots(const __m512i (&dots)[rows],
                                              const RowPointers<GroupScale>& row_scales, int part,
                                              __m512 scale, __m512 minimum, __m512 (&sums)[rows]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const GroupScale& row_scale = *row_scales.row(r);
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale.scale));
    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), factor, sums[r]);
    if constexpr (has_minimum(type))
      sums[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(minimum_factor<type>(row_scale, part)),
                                sums[r]);
  }
}

// sums += the part of a group that has one scale: the whole group, or one half of it.
template <WeightType type, int rows, int part>
[[gnu::always_inline]] inline void add_part_avx512(const std::uint8_t* quants,
                                                   const RowPointers<std::int16_t>& x,
                                                   const RowPointers<GroupScale>& row_scales,
                                                   const GroupScales& scales,
                                                   __m512 (&sums)[rows]) {
  constexpr int quads = group_quads / scale_parts(type);
  __m512i dots[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    dots[r] = weight_offset(type) == 0
                  ? _mm512_setzero_si512()
                  : _mm512_set1_epi32(offset_correction<type>(*row_scales.row(r), part));
  add_quads<type, rows, part * quads, (part + 1) * quads>(quants, x, dots);
  __m512 minimum = _mm512_setzero_ps();
  if constexpr (has_minimum(type)) minimum = load_minimum<SimdAvx512, type>(scales, part, 0);
  scale_dots<type, rows>(dots, row_scales, part, load_scale<SimdAvx512, type>(scales, part, 0),
                         minimum, sums);
}

// Not inlined: among other blocks the compiler would keep its sums in memory.
template <WeightType type, int rows>
[[gnu::noinline]] void matmul_block_avx512(const std::uint8_t* tile, const ActivationRows& input,
                                           std::size_t row_first, int out_row, bool prefetch,
                                           const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::size_t inputs = static_cast<std::size_t>(input.inputs);
  const std::size_t row_groups = inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  RowPointers<std::int16_t> x(input.values + row_first * inputs, inputs);
  RowPointers<GroupScale> row_scales(input.scales + row_first * row_groups, row_groups);
  __m512 sums[rows];
  for (int r = 0; r < rows; ++r) sums[r] = _mm512_setzero_ps();
  for (int g = 0; g < groups; ++g, quants += quant_bytes(type)) {
    x.hold();
    row_scales.hold();
    if (prefetch) prefetch_group(quants, quant_bytes(type));
    const GroupScales scales = scales_of<type>(tile, g);
    add_part_avx512<type, rows, 0>(quants, x, row_scales, scales, sums);
    if constexpr (scale_parts(type) == 2)
      add_part_avx512<type, rows, 1>(quants, x, row_scales, scales, sums);
    x.advance(group_values);
    row_scales.advance(1);
  }
  for (int r = 0; r < rows; ++r) store_tile_vector<SimdAvx512>(sums[r], output, out_row + r, 0);
}

template <WeightType type>
inline void matmul_narrow_avx512(const std::uint8_t* tile, const ActivationRows& input,
                                 int row_first, int row_count, const TileOutput& output) {
  for_row_blocks<block_rows_512>(row_count, [&](auto rows, int first) {
    matmul_block_avx512<type, rows()>(tile, input, static_cast<std::size_t>(row_first + first),
                                      first, first == 0, output);
  });
}

}  // namespace
}  // namespace headrace
