// Many rows times one tile of quantized weights with AVX-512 VNNI, by half of the multiplications:
//
//   x0 * w0 + x1 * w1 = (x0 + w1) * (x1 + w0) - x0 * x1 - w0 * w1
//
// (S. Winograd, "A new algorithm for inner product", IEEE Transactions on Computers C-17, 1968.) The
// last products are one number a row and one a column, for each group of inputs: quantize_in_pairs
// and widen_groups add them up, once. A machine that multiplies on two vector pipes and adds on four
// (Zen 4) then takes 1.5 cycles for what took 2; one that does both on two (Intel) takes longer, so
// dispatch.cpp chooses by the maker. Everything is exact: the sums of two 16-bit numbers fit 16 bits by
// quantized_peak, and 32-bit sums that wrap on the way are right in the end, because a group's true sum
// fits. So the numbers are those of matmul_integer_avx512.hpp, to the bit.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.hpp"
#include "kernels/matmul_integer_avx512.hpp"

namespace headrace {
namespace {

static_assert(quantized_peak + 32 * 128 <= 32767, "an activation plus a weight must fit 16 bits");

// From here on it pays to widen weights first.
constexpr int wide_rows_min_512(WeightType type) { return sum_parts(type) == 1 ? 24 : 32; }
constexpr int wide_rows_max_512 = 128;   // of one pass: their sums are kept beside the weights
constexpr int wide_block_rows_512 = 8;   // of a register block
constexpr int wide_groups_512 = 16;      // 16 KiB of weights, half of the first cache

template <WeightType type>
struct WideGroups512 {
  static constexpr int number_count = wide_groups_512 * sum_parts(type) * tile_columns;
  // By quads: even and odd ones of 16 columns (QuadWeights), without the offset of stored weights.
  alignas(64) std::int16_t weights[wide_groups_512 * group_values * tile_columns];
  // By parts with one scale and columns: minus the products of neighbouring weights.
  alignas(64) std::int32_t starts[number_count];
  alignas(64) float scales[number_count];
  alignas(64) float minimums[has_minimum(type) ? number_count : 1];
};

constexpr int quad_weights = 4 * tile_columns;

// Quads [q, end) of a group; the products of neighbours are taken off `starts`.
template <WeightType type, int q, int end>
[[gnu::always_inline]] inline void widen_quads(const std::uint8_t* quants, const GroupScales& scales,
                                               std::int16_t* out, __m512i& products) {
  if constexpr (q < end) {
    QuadWeights quad = coded_quad<type, q>(quants, scales);
    if constexpr (weight_offset(type) != 0) {
      quad.even = _mm512_sub_epi16(quad.even, _mm512_set1_epi16(weight_offset(type)));
      quad.odd = _mm512_sub_epi16(quad.odd, _mm512_set1_epi16(weight_offset(type)));
    }
    products = _mm512_dpwssd_epi32(products, quad.even, quad.odd);
    _mm512_store_si512(out + q * quad_weights, quad.even);
    _mm512_store_si512(out + q * quad_weights + 2 * tile_columns, quad.odd);
    widen_quads<type, q + 1, end>(quants, scales, out, products);
  }
}

// Part `part` of a group, which is number `index` of the parts in `out`.
template <WeightType type, int part>
[[gnu::always_inline]] inline void widen_part(const std::uint8_t* quants,
                                              const GroupScales& scales, std::int16_t* weights,
                                              int index, WideGroups512<type>& out) {
  using S = SimdAvx512;
  constexpr int quads = group_quads / sum_parts(type);
  __m512i products = _mm512_setzero_si512();
  widen_quads<type, part * quads, (part + 1) * quads>(quants, scales, weights, products);
  const int at = index * tile_columns;
  _mm512_store_si512(out.starts + at, _mm512_sub_epi32(_mm512_setzero_si512(), products));
  S::store(out.scales + at, load_sum_scale<S, type>(scales, part, 0));
  if constexpr (has_minimum(type))
    S::store(out.minimums + at, load_minimum<S, type>(scales, part, 0));
}

// Groups [first, first + count) of a tile.
template <WeightType type>
inline void widen_groups(const std::uint8_t* tile, int groups, int first, int count,
                         WideGroups512<type>& out) {
  constexpr int parts = sum_parts(type);
  const std::uint8_t* quants =
      tile + quants_offset(type, groups) + static_cast<std::size_t>(first) * quant_bytes(type);
  std::int16_t* weights = out.weights;
  for (int g = 0; g < count; ++g) {
    const GroupScales scales = scales_of<type>(tile, first + g);
    widen_part<type, 0>(quants, scales, weights, g * parts, out);
    if constexpr (parts == 2) widen_part<type, 1>(quants, scales, weights, g * parts + 1, out);
    quants += quant_bytes(type);
    weights += group_values * tile_columns;
  }
}

// The products of neighbours in one part of a row's group, modulo 2^32.
template <WeightType type>
inline std::int32_t pair_correction(const GroupScale& scale, int part) {
  if constexpr (sum_parts(type) == 1) return scale.pair_sum;
  if (part == 0) return scale.first_pair_sum;
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(scale.pair_sum) -
                                   static_cast<std::uint32_t>(scale.first_pair_sum));
}

inline __m512i broadcast_pair_512(const std::int16_t* x) {
  std::int32_t pair;
  std::memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}

// The exact sums of part `part` of a group.
template <WeightType type, int part, int rows>
[[gnu::always_inline]] inline void dot_wide(const std::int16_t* weights,
                                            const std::int32_t* column_starts,
                                            const RowAddresses<std::int16_t, rows>& x,
                                            const RowAddresses<GroupScale, rows>& row_scales,
                                            __m512i (&dots)[rows]) {
  constexpr int quads = group_quads / sum_parts(type);
  const __m512i starts = _mm512_load_si512(column_starts);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    dots[r] = _mm512_sub_epi32(
        starts, _mm512_set1_epi32(pair_correction<type>(*row_scales.row(r), part)));
#pragma GCC unroll 8
  for (int q = 0; q < quads; ++q) {
    __m512i even = _mm512_load_si512(weights + q * quad_weights);
    __m512i odd = _mm512_load_si512(weights + q * quad_weights + 2 * tile_columns);
    settle(even);
    settle(odd);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const std::int16_t* inputs = x.row(r) + 4 * (part * quads + q);
      const __m512i even_inputs = broadcast_pair_512(inputs);
      const __m512i odd_inputs = broadcast_pair_512(inputs + 2);
      dots[r] = _mm512_dpwssd_epi32(dots[r], _mm512_add_epi16(even_inputs, odd),
                                    _mm512_add_epi16(odd_inputs, even));
      settle(dots[r]);
    }
  }
}

// sums += groups [first, first + count), for `rows` rows. Not inlined: see matmul_block_avx512.
template <WeightType type, int rows>
[[gnu::noinline]] void multiply_wide(const WideGroups512<type>& wide, int first, int count,
                                     const ActivationRows& input, std::size_t row,
                                     float (*sums)[tile_columns]) {
  const std::size_t inputs = static_cast<std::size_t>(input.inputs);
  const std::size_t row_groups = inputs / group_values;
  RowAddresses<std::int16_t, rows> x(input.values + row * inputs + first * group_values, inputs);
  RowAddresses<GroupScale, rows> row_scales(input.scales + row * row_groups + first, row_groups);
  const std::int16_t* weights = wide.weights;
  __m512 totals[rows];
  unrolled<rows>([&](auto r) __attribute__((always_inline)) {
    totals[r] = _mm512_load_ps(sums[r]);
  });
  int at = 0;   // of a part's numbers
  for (int g = 0; g < count; ++g) {
    row_scales.hold();
    unrolled<sum_parts(type)>([&](auto part) __attribute__((always_inline)) {
      x.hold();
      __m512i dots[rows];
      dot_wide<type, part>(weights, wide.starts + at, x, row_scales, dots);
      __m512 minimum = _mm512_setzero_ps();
      if constexpr (has_minimum(type)) minimum = _mm512_load_ps(wide.minimums + at);
      scale_dots<type, 0, part>(dots, row_scales, _mm512_load_ps(wide.scales + at), minimum,
                                totals);
      weights += group_values / sum_parts(type) * tile_columns;
      at += tile_columns;
    });
    x.advance(group_values);
    row_scales.advance(1);
  }
  unrolled<rows>([&](auto r) __attribute__((always_inline)) {
    _mm512_store_ps(sums[r], totals[r]);
  });
}

// Up to wide_rows_max_512 rows.
template <WeightType type>
inline void matmul_wide_avx512(const std::uint8_t* tile, const ActivationRows& input,
                               std::size_t row_first, int row_count, int out_row,
                               const TileOutput& output) {
  WideGroups512<type> wide;
  alignas(64) float sums[wide_rows_max_512][tile_columns];
  std::fill_n(sums[0], row_count * tile_columns, 0.0f);
  const int groups = input.inputs / group_values;
  const int passes = (groups + wide_groups_512 - 1) / wide_groups_512;
  const int blocks = (row_count + wide_block_rows_512 - 1) / wide_block_rows_512;
  ReadAhead ahead(tile, tile_bytes(type, input.inputs), passes * blocks);
  for (int pass = 0; pass < passes; ++pass) {
    const int first = groups * pass / passes;
    const int count = groups * (pass + 1) / passes - first;
    widen_groups<type>(tile, groups, first, count, wide);
    for_row_blocks<wide_block_rows_512>(row_count, [&](auto rows, int block) {
      ahead.ask();
      multiply_wide<type, rows()>(wide, first, count, input,
                                  row_first + static_cast<std::size_t>(block), sums + block);
    });
  }
  for (int r = 0; r < row_count; ++r)
    store_tile_vector<SimdAvx512>(_mm512_load_ps(sums[r]), output, out_row + r, 0);
}

template <WeightType type>
void matmul_sums_avx512(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                        int row_count, const TileOutput& output) {
  if (row_count < wide_rows_min_512(type)) {
    matmul_avx512<type>(tile, input, row_first, row_count, output);
    return;
  }
  for (int done = 0; done < row_count; done += wide_rows_max_512)
    matmul_wide_avx512<type>(tile, input, static_cast<std::size_t>(row_first + done),
                             std::min(wide_rows_max_512, row_count - done), done, output);
}

// The products of neighbours among 16 stored values, modulo 2^32: inputs 0 and 2 of each four lie
// before inputs 1 and 3.
inline std::int32_t neighbour_products(const std::int16_t* values) {
  const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
  return SimdAvx2::sum_of(_mm256_madd_epi16(stored, _mm256_srli_epi64(stored, 32)));
}

// quantize, and the sums of products that multiply_wide takes off.
inline bool quantize_in_pairs(const float* row, int count, const QuantizedRow& out) {
  const bool shifts = quantize<SimdAvx512>(row, count, out);
  for (int g = 0; g < count / group_values; ++g) {
    const std::int16_t* values = out.values + g * group_values;
    GroupScale& scale = out.scales[g];
    scale.first_pair_sum = neighbour_products(values);
    scale.pair_sum = static_cast<std::int32_t>(
        static_cast<std::uint32_t>(scale.first_pair_sum) +
        static_cast<std::uint32_t>(neighbour_products(values + group_values / 2)));
  }
  return shifts;
}

}  // namespace
}  // namespace headrace
