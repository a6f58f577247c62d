// Many rows times one tile of quantized weights with registers of 256 bits: the weights of up to 16
// groups are unpacked once, to as many bits as the rows have (16 or 8), and their scales to floats, then
// every row meets them. From a dozen rows on that is cheaper than unpacking them for each register
// block; the numbers are the same to the bit. D: DotAvx2 or DotAvxVnni.
#pragma once

#include <algorithm>
#include <iterator>

#include "kernels/matmul_bytes_avx2.hpp"
#include "kernels/matmul_integer_avx2.hpp"

namespace headrace {
namespace {

constexpr int wide_rows_max = 128;   // of one pass: their sums are kept beside the weights
constexpr int wide_groups = 16;      // 16 KiB of weights at most, half of the first cache

// Integer: of the rows, std::int16_t or std::int8_t, and of the weights here.
template <WeightType type, class Integer>
struct WideGroups {
  static constexpr int scale_count = wide_groups * scale_parts(type) * tile_columns;
  alignas(64) Integer weights[wide_groups * group_values * tile_columns];
  alignas(64) float scales[scale_count];
  alignas(64) float minimums[has_minimum(type) ? scale_count : 1];
};

// The rows' integers and scales, and inputs that one multiplication adds up.
template <class Integer>
struct WideInput;

template <>
struct WideInput<std::int16_t> {
  static constexpr int inputs = 2;
  const std::int16_t* values;
  const GroupScale* scales;
  explicit WideInput(const ActivationRows& rows) : values(rows.values), scales(rows.scales) {}
};

template <>
struct WideInput<std::int8_t> {
  static constexpr int inputs = 4;
  const std::int8_t* values;
  const GroupScale* scales;
  explicit WideInput(const ActivationRows& rows) : values(rows.bytes), scales(rows.byte_scales) {}
};

// A group's weights, without the offset of stored ones.
template <WeightType type, int p = 0>
[[gnu::always_inline]] inline void widen_group(const std::uint8_t* quants, std::int16_t* out) {
  if constexpr (p < group_pairs) {
    for (int h = 0; h < 2; ++h) {
      __m256i weights = unpack_pair<type, p>(quants, h);
      if constexpr (weight_offset(type) != 0)
        weights = _mm256_sub_epi16(weights, _mm256_set1_epi16(weight_offset(type)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + (p * 2 + h) * 16), weights);
    }
    widen_group<type, p + 1>(quants, out);
  }
}

// The same as stored, 0..15.
template <WeightType type, int q = 0>
[[gnu::always_inline]] inline void widen_group(const std::uint8_t* quants, std::int8_t* out) {
  if constexpr (q < group_fours) {
    for (int h = 0; h < 2; ++h)
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + (q * 2 + h) * 32),
                         unpack_four<q>(quants, h));
    widen_group<type, q + 1>(quants, out);
  }
}

// Groups [first, first + count) of a tile.
template <WeightType type, class Integer>
inline void widen_groups(const std::uint8_t* tile, int groups, int first, int count,
                         WideGroups<type, Integer>& out) {
  using S = SimdAvx2;
  const std::uint8_t* quants =
      tile + quants_offset(type, groups) + static_cast<std::size_t>(first) * quant_bytes(type);
  float* scale_out = out.scales;
  float* minimum_out = out.minimums;
  for (int g = 0; g < count; ++g, quants += quant_bytes(type)) {
    widen_group<type>(quants, out.weights + g * group_values * tile_columns);
    const GroupScales scales = scales_of<type>(tile, first + g);
    for (int part = 0; part < scale_parts(type); ++part) {
      for (int column = 0; column < tile_columns; column += S::width) {
        S::store(scale_out + column, load_scale<S, type>(scales, part, column));
        if constexpr (has_minimum(type))
          S::store(minimum_out + column, load_minimum<S, type>(scales, part, column));
      }
      scale_out += tile_columns;
      minimum_out += tile_columns;
    }
  }
}

// The exact sums of a part of a group, for `rows` rows and both halves of the 16 columns.
template <class D, int rows, int part_values, class Integer>
[[gnu::always_inline]] inline void dot_wide(const Integer* weights, const Integer* const* x,
                                            RowDots<rows>& dots) {
  constexpr int inputs = WideInput<Integer>::inputs;
#pragma GCC unroll 16
  for (int k = 0; k < part_values; k += inputs) {
    const auto* at = reinterpret_cast<const __m256i*>(weights + k * tile_columns);
    __m256i halves[2] = {_mm256_load_si256(at), _mm256_load_si256(at + 1)};
    for (int h = 0; h < 2; ++h) settle(halves[h]);   // loaded once, not for each row
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) D::add(halves, x[r] + k, k == 0, dots[r]);
  }
}

// A column's sum of one part of a group, of weights without their offset.
template <class D, WeightType type, class Integer>
[[gnu::always_inline]] inline __m256i finish_dot(__m256i dot, const GroupScale& scale, int part) {
  if constexpr (sizeof(Integer) == 2) return dot;
  dot = D::join(dot);
  if constexpr (weight_offset(type) != 0)
    dot = _mm256_add_epi32(dot, _mm256_set1_epi32(offset_correction<type>(scale, part)));
  return dot;
}

// sums += what `count` groups' integer sums are worth: of each part of a group, part after part.
template <class D, WeightType type, int rows, class Integer>
inline void scale_wide(const WideGroups<type, Integer>& wide, int count, const RowDots<rows>* kept,
                       const GroupScale* const* row_scales, float (*sums)[tile_columns]) {
  using S = SimdAvx2;
  constexpr int parts = scale_parts(type);
  __m256 totals[rows][2];
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) totals[r][h] = S::load(sums[r] + h * 8);
  const float* scales = wide.scales;
  const float* minimums = wide.minimums;
  for (int i = 0; i < count * parts; ++i, scales += tile_columns, minimums += tile_columns) {
    const __m256 column_scales[2] = {S::load(scales), S::load(scales + 8)};
    for (int r = 0; r < rows; ++r) {
      const GroupScale& row_scale = row_scales[r][i / parts];
      const __m256 scale = S::set1(row_scale.scale);
      for (int h = 0; h < 2; ++h) {
        const __m256i dot = finish_dot<D, type, Integer>(kept[i][r][h], row_scale, i % parts);
        const __m256 factor = S::mul(column_scales[h], scale);
        totals[r][h] = S::fma(_mm256_cvtepi32_ps(dot), factor, totals[r][h]);
        if constexpr (has_minimum(type))
          totals[r][h] = S::fma(S::load(minimums + h * 8),
                                S::set1(minimum_factor<type>(row_scale, i % parts)), totals[r][h]);
      }
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) S::store(sums[r] + h * 8, totals[r][h]);
}

// sums += `count` groups, for `rows` rows: the integer sums of all groups first, then the floats.
template <class D, WeightType type, int rows, class Integer>
inline void multiply_wide(const WideGroups<type, Integer>& wide, int count,
                          const Integer* const* row_values, const GroupScale* const* row_scales,
                          float (*sums)[tile_columns], ReadAhead& ahead) {
  constexpr int parts = scale_parts(type);
  RowDots<rows> kept[wide_groups * parts];
  const Integer* weights = wide.weights;
  const Integer* x[rows];
  for (int r = 0; r < rows; ++r) x[r] = row_values[r];
  for (int i = 0; i < count * parts; ++i) {
    ahead.ask();
    RowDots<rows> dots;
    dot_wide<D, rows, group_values / parts>(weights, x, dots);
    keep_dots<rows>(dots, kept[i]);
    weights += group_values / parts * tile_columns;
    for (int r = 0; r < rows; ++r) x[r] += group_values / parts;
  }
  scale_wide<D, type, rows>(wide, count, kept, row_scales, sums);
}

// Up to wide_rows_max rows.
template <class D, WeightType type, class Integer>
inline void matmul_wide_avx2(const std::uint8_t* tile, const ActivationRows& input,
                             std::size_t row_first, int row_count, int out_row,
                             const TileOutput& output) {
  constexpr int wide_rows = D::blocking(type, 8 * sizeof(Integer)).wide_rows;
  const WideInput<Integer> rows_in(input);
  WideGroups<type, Integer> wide;
  alignas(64) float sums[wide_rows_max][tile_columns];
  std::fill_n(sums[0], row_count * tile_columns, 0.0f);
  const int groups = input.inputs / group_values;
  const int passes = (groups + wide_groups - 1) / wide_groups;
  const int blocks = (row_count + wide_rows - 1) / wide_rows;
  ReadAhead ahead(tile, tile_bytes(type, input.inputs), groups * scale_parts(type) * blocks);
  for (int pass = 0; pass < passes; ++pass) {
    const int first = groups * pass / passes;
    const int count = groups * (pass + 1) / passes - first;
    widen_groups<type>(tile, groups, first, count, wide);
    for_row_blocks<wide_rows>(row_count, [&](auto rows, int block) {
      const Integer* x[rows()];
      const GroupScale* scales[rows()];
      for (int r = 0; r < rows(); ++r) {
        const std::size_t row = row_first + static_cast<std::size_t>(block + r);
        x[r] = rows_in.values + row * static_cast<std::size_t>(input.inputs) + first * group_values;
        scales[r] = rows_in.scales + row * static_cast<std::size_t>(groups) + first;
      }
      multiply_wide<D, type, rows()>(wide, count, x, scales, sums + block, ahead);
    });
  }
  for (int r = 0; r < row_count; ++r)
    for (int h = 0; h < 2; ++h)
      store_tile_vector<SimdAvx2>(SimdAvx2::load(sums[r] + h * 8), output, out_row + r, h * 8);
}

template <class D, WeightType type, class Integer>
inline void matmul_many_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                             int row_count, const TileOutput& output) {
  for (int done = 0; done < row_count; done += wide_rows_max)
    matmul_wide_avx2<D, type, Integer>(tile, input, static_cast<std::size_t>(row_first + done),
                                    std::min(wide_rows_max, row_count - done), done, output);
}

template <class D, WeightType type>
void matmul_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                 int row_count, const TileOutput& output) {
  constexpr int wide_rows_min = D::blocking(type, 16).wide_rows_min;
  if constexpr (wide_rows_min != 0) {
    if (row_count >= wide_rows_min)
      return matmul_many_avx2<D, type, std::int16_t>(tile, input, row_first, row_count, output);
  }
  matmul_narrow_avx2<D, type>(tile, input, row_first, row_count, output);
}

template <class D, WeightType type>
void matmul_bytes_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                       int row_count, const TileOutput& output) {
  constexpr int wide_rows_min = D::blocking(type, 8).wide_rows_min;
  if constexpr (wide_rows_min != 0) {
    if (row_count >= wide_rows_min)
      return matmul_many_avx2<D, type, std::int8_t>(tile, input, row_first, row_count, output);
  }
  matmul_narrow_bytes_avx2<D, type>(tile, input, row_first, row_count, output);
}

// The table with D's products of quantized weights and 16-bit activations.
template <class D>
constexpr KernelTable with_products(KernelTable table) {
  table.name = D::name;
  const MatmulTile products[] = {
      matmul_avx2<D, WeightType::q4_0>,  matmul_avx2<D, WeightType::q4_1>,
      matmul_avx2<D, WeightType::q8_0>,  matmul_avx2<D, WeightType::q4_k>,
      matmul_avx2<D, WeightType::q5_k>,  matmul_avx2<D, WeightType::q6_k>,
      matmul_avx2<D, WeightType::grid8>, matmul_avx2<D, WeightType::grid4_halves>};
  std::copy(std::begin(products), std::end(products), table.matmul + static_cast<int>(WeightType::q4_0));
  return table;
}

// The same table with D's products of 4-bit weights and 8-bit activations.
template <class D>
constexpr KernelTable with_byte_products(const KernelTable& table) {
  return with_bytes(table, matmul_bytes_avx2<D, WeightType::q4_0>,
                    matmul_bytes_avx2<D, WeightType::q4_1>, matmul_bytes_avx2<D, WeightType::q4_k>,
                    matmul_bytes_avx2<D, WeightType::grid4_halves>);
}

}  // namespace
}  // namespace headrace
