// Many rows times one tile of quantized weights with registers of 256 bits: the first rows unpack the
// weights of up to 16 groups, to 16 bits or to bytes as the rows want, and leave them to the others,
// with their scales as floats. That is cheaper than unpacking them for each register block; the numbers
// are the same to the bit. D: DotAvx2 or DotAvxVnni.
#pragma once

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "kernels/matmul_integer_avx2.hpp"

namespace headrace {
namespace {

constexpr int wide_rows_max = 128;   // of one pass: their sums are kept beside the weights
constexpr int wide_groups = 16;      // 16 KiB of weights at most, half of the first cache

// A group's factor is its column's scale times its row's. That of 16-bit rows and of fours is a power of two, so the
// exponents can be added up as integers, on any of three pipes where two multiply floats. For that the row's
// is at most 1 (ActivationRows::shifts) and the magnitude of the column's between 2^-50 and 2^50, as bits:
constexpr std::uint32_t least_shifted = (127 - 50) << 23;
constexpr std::uint32_t shifted_range = 100 << 23;
constexpr std::int32_t bits_of_one = 127 << 23;

inline __m256i load_bits(const float* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

// The larger of `worst` and how far a scale is above least_shifted; far above anything if it is below.
inline __m256i worst_of(__m256i worst, __m256i scale) {
  const __m256i size = _mm256_and_si256(scale, _mm256_set1_epi32(0x7FFFFFFF));
  return _mm256_max_epu32(worst, _mm256_sub_epi32(size, _mm256_set1_epi32(least_shifted)));
}

inline bool all_shift(__m256i worst) {
  const __m256i range = _mm256_set1_epi32(shifted_range);
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_max_epu32(worst, range), range)) == -1;
}

// What the weights of a group are multiplied with where its parts are joined: each column's code, for both
// inputs of a pair; of a part and half of the columns.
using GroupCodes = __m256i[2][2];

inline void load_codes(const std::uint8_t* codes, GroupCodes& out) {
  for (int i = 0; i < 4; ++i) {
    const auto* at = reinterpret_cast<const __m128i*>(codes + i * 8);
    const __m256i code = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at));
    out[i / 2][i % 2] = _mm256_blend_epi16(code, _mm256_slli_epi32(code, 16), 0xAA);
  }
}

// Integer: of the rows, std::int16_t or std::int8_t, and of the weights here; std::uint8_t: of weights that
// meet fours. parts: sums of a group, each with a scale of its own.
template <WeightType type, class Integer, int parts = sum_parts(type)>
struct WideGroups {
  static constexpr bool joins = parts < scale_parts(type);
  static constexpr int scale_count = wide_groups * parts * tile_columns;
  alignas(64) Integer weights[wide_groups * group_values * tile_columns];
  alignas(64) float scales[scale_count];   // their bits less `bias`
  alignas(64) float minimums[has_minimum(type) ? scale_count : 1];
  static constexpr std::int32_t bias = std::is_same_v<Integer, std::int8_t> ? 0 : bits_of_one;   // 0: never
  bool shifts;   // whether all of these scales allow it
  GroupCodes codes[joins ? wide_groups : 1];
};

// A step's weights for half h of the columns: of 16 bits without the offset of stored ones, of 8 as stored.
template <WeightType type, class Integer, int step>
[[gnu::always_inline]] inline __m256i widen_step(const std::uint8_t* quants, int h) {
  const __m256i weights = unpack_step<type, Integer, step>(quants, h);
  if constexpr (sizeof(Integer) == 1 || weight_offset(type) == 0) return weights;
  return _mm256_sub_epi16(weights, _mm256_set1_epi16(weight_offset(type)));
}

// The scales of groups [first, first + count) of a tile.
template <WeightType type, class Integer, int parts>
inline void widen_scales(const std::uint8_t* tile, int first, int count,
                         WideGroups<type, Integer, parts>& out) {
  using S = SimdAvx2;
  float* scale_out = out.scales;
  float* minimum_out = out.minimums;
  __m256i worst = _mm256_setzero_si256();
  for (int i = 0; i < count * parts; ++i) {
    const int part = i % parts;
    const GroupScales scales = scales_of<type>(tile, first + i / parts);
    if constexpr (out.joins) load_codes(scales.numbers, out.codes[i]);
    for (int column = 0; column < tile_columns; column += S::width) {
      const __m256i bits = _mm256_castps_si256(out.joins ? load_sum_scale<S, type>(scales, part, column)
                                                         : load_scale<S, type>(scales, part, column));
      if constexpr (out.bias != 0) worst = worst_of(worst, bits);
      _mm256_store_si256(reinterpret_cast<__m256i*>(scale_out + column),
                         _mm256_sub_epi32(bits, _mm256_set1_epi32(out.bias)));
      if constexpr (has_minimum(type))
        S::store(minimum_out + column, load_minimum<S, type>(scales, part, column));
    }
    scale_out += tile_columns;
    minimum_out += tile_columns;
  }
  out.shifts = out.bias != 0 && all_shift(worst);
}

// The exact sums of steps [i, end) of a group for `rows` rows, with both halves of the columns. Its weights
// go unpacked to `weights` on the way: between products that costs half of what it costs alone.
template <class D, WeightType type, int rows, int i, int end, class Integer, bool first = true>
[[gnu::always_inline]] inline void dot_widening(const std::uint8_t* quants, const GroupCodes& codes,
                                                Integer* weights, const Integer* const* x,
                                                RowDots<rows>& dots) {
  if constexpr (i < end) {
    constexpr int k = i * RowIntegers<Integer>::inputs;
    auto* out = reinterpret_cast<__m256i*>(weights + k * tile_columns);
    __m256i halves[2];
    for (int h = 0; h < 2; ++h) {
      halves[h] = widen_step<type, Integer, i>(quants, h);
      if constexpr (joins_parts(type))
        halves[h] = _mm256_mullo_epi16(halves[h], codes[k * 2 / group_values][h]);
      _mm256_store_si256(out + h, halves[h]);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) D::add(halves, x[r] + k, first, dots[r]);
    dot_widening<D, type, rows, i + 1, end, Integer, false>(quants, codes, weights, x, dots);
  }
}

// The same of inputs [k_first, k_end) with weights that lie there unpacked.
template <class D, int rows, int k_first, int k_end, class Integer>
[[gnu::always_inline]] inline void dot_wide(const Integer* weights, const Integer* const* x,
                                            RowDots<rows>& dots) {
#pragma GCC unroll 16
  for (int k = k_first; k < k_end; k += RowIntegers<Integer>::inputs) {
    const auto* at = reinterpret_cast<const __m256i*>(weights + k * tile_columns);
    __m256i halves[2] = {_mm256_load_si256(at), _mm256_load_si256(at + 1)};
    for (int h = 0; h < 2; ++h) settle(halves[h]);   // loaded once, not for each row
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) D::add(halves, x[r] + k, k == k_first, dots[r]);
  }
}

// The sums of one part of a group; the first rows that meet it unpack it.
template <class D, WeightType type, int part, bool first_rows, int rows, class Integer>
[[gnu::always_inline]] inline void dot_part(const std::uint8_t* quants, const GroupCodes& codes,
                                            Integer* weights, const Integer* const* x,
                                            RowDots<rows>& out) {
  constexpr int values = group_values / sum_parts(type);
  RowDots<rows> dots;
  if constexpr (first_rows) {
    constexpr int steps = values / RowIntegers<Integer>::inputs;
    dot_widening<D, type, rows, part * steps, (part + 1) * steps>(quants, codes, weights, x,
                                                                  dots);
  } else {
    dot_wide<D, rows, part * values, (part + 1) * values>(weights, x, dots);
  }
  keep_dots<rows>(dots, out);
}

// A column's sum of one part of a group, of weights without their offset.
template <class D, WeightType type, class Integer, class Scale>
[[gnu::always_inline]] inline __m256i finish_dot(__m256i dot, const Scale& scale, int part) {
  if constexpr (!std::is_same_v<Integer, std::int8_t>) return dot;
  dot = join_dot<D, Integer>(dot);
  if constexpr (weight_offset(type) != 0)
    dot = _mm256_add_epi32(dot, _mm256_set1_epi32(offset_correction<type>(scale, part)));
  return dot;
}

// sums += what `count` groups' integer sums are worth: of each part of a group, part after part.
// Scale: GroupScale or ScaledFours.
template <class D, WeightType type, bool shifted, int rows, class Integer, int parts, class Scale>
inline void scale_wide(const WideGroups<type, Integer, parts>& wide, int count,
                       const RowDots<rows>* kept, const Scale* const* row_scales,
                       float (*sums)[tile_columns]) {
  using S = SimdAvx2;
  __m256 totals[rows][2];
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) totals[r][h] = S::load(sums[r] + h * 8);
  const float* scales = wide.scales;
  const float* minimums = wide.minimums;
  const __m256i bias = _mm256_set1_epi32(shifted ? 0 : wide.bias);   // of scales as floats again
  for (int i = 0; i < count * parts; ++i, scales += tile_columns, minimums += tile_columns) {
    const __m256i column_bits[2] = {_mm256_add_epi32(load_bits(scales), bias),
                                    _mm256_add_epi32(load_bits(scales + 8), bias)};
    for (int r = 0; r < rows; ++r) {
      const Scale& row_scale = row_scales[r][i / parts];
      const __m256 scale = S::set1(row_scale.scale);
      for (int h = 0; h < 2; ++h) {
        const __m256i dot = finish_dot<D, type, Integer>(kept[i][r][h], row_scale, i % parts);
        const __m256 factor =
            shifted ? _mm256_castsi256_ps(_mm256_add_epi32(column_bits[h], _mm256_castps_si256(scale)))
                    : S::mul(_mm256_castsi256_ps(column_bits[h]), scale);
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

// Apart, so that it takes no registers where scales are shifted: of zeros, numbers that are none, and so on.
template <class D, WeightType type, int rows, class Integer, int parts, class Scale>
[[gnu::noinline]] void scale_unshifted(const WideGroups<type, Integer, parts>& wide, int count,
                                       const RowDots<rows>* kept, const Scale* const* row_scales,
                                       float (*sums)[tile_columns]) {
  scale_wide<D, type, false, rows>(wide, count, kept, row_scales, sums);
}

// Rows that take more than this are read from the last cache, and the core alone asks for them late.
constexpr std::size_t second_cache_bytes = 1 << 20;

// Asks for group g of the `rows` rows behind those at x, of `inputs` inputs each.
template <int rows, class Integer>
[[gnu::always_inline]] inline void ask_next_rows(const Integer* const* x,
                                                 const GroupScale* const* row_scales, int g,
                                                 int inputs) {
  constexpr int line_groups = read_line_bytes / (group_values * sizeof(Integer));
  for (int r = 0; r < rows; ++r) {
    if (g % line_groups == 0) __builtin_prefetch(x[r] + rows * static_cast<std::ptrdiff_t>(inputs));
    if (g % 2 == 0) __builtin_prefetch(row_scales[r] + g + rows * (inputs / group_values));
  }
}

// sums += `count` groups, for `rows` rows: the integer sums of all groups first, then the floats.
// far_inputs: of each row, if rows are to be asked for; else 0.
template <class D, WeightType type, bool first_rows, int rows, class Integer>
inline void multiply_wide(const std::uint8_t* quants, WideGroups<type, Integer>& wide, int count,
                          const Integer* const* row_values, const GroupScale* const* row_scales,
                          int far_inputs, bool rows_shift, float (*sums)[tile_columns],
                          ReadAhead& ahead) {
  constexpr int parts = sum_parts(type);
  RowDots<rows> kept[wide_groups * parts];
  Integer* weights = wide.weights;
  const Integer* x[rows];
  for (int r = 0; r < rows; ++r) x[r] = row_values[r];
  for (int g = 0; g < count; ++g) {
    ahead.ask();
    if (far_inputs != 0) ask_next_rows<rows>(x, row_scales, g, far_inputs);
    const GroupCodes& codes = wide.codes[joins_parts(type) ? g : 0];
    dot_part<D, type, 0, first_rows>(quants, codes, weights, x, kept[g * parts]);
    if constexpr (parts == 2)
      dot_part<D, type, 1, first_rows>(quants, codes, weights, x, kept[g * parts + 1]);
    quants += quant_bytes(type);
    weights += group_values * tile_columns;
    for (int r = 0; r < rows; ++r) x[r] += group_values;
  }
  if constexpr (wide.bias != 0) {
    if (!(rows_shift && wide.shifts)) [[unlikely]]
      return scale_unshifted<D, type, rows>(wide, count, kept, row_scales, sums);
  }
  scale_wide<D, type, wide.bias != 0, rows>(wide, count, kept, row_scales, sums);
}

// Up to wide_rows_max rows.
template <class D, WeightType type, class Integer>
inline void matmul_wide_avx2(const std::uint8_t* tile, const ActivationRows& input,
                             std::size_t row_first, int row_count, int out_row,
                             const TileOutput& output) {
  constexpr int wide_rows = blocking_of<D, Integer>(type).wide_rows;
  const RowIntegers<Integer> rows_in(input);
  WideGroups<type, Integer> wide;
  alignas(64) float sums[wide_rows_max][tile_columns];
  std::fill_n(sums[0], row_count * tile_columns, 0.0f);
  const int groups = input.inputs / group_values;
  const int passes = (groups + wide_groups - 1) / wide_groups;
  const int blocks = (row_count + wide_rows - 1) / wide_rows;
  ReadAhead ahead(tile, tile_bytes(type, input.inputs), groups * blocks);
  const std::size_t group_bytes = group_values * sizeof(Integer) + sizeof(GroupScale);
  const bool far = static_cast<std::size_t>(row_count * groups) * group_bytes > second_cache_bytes;
  const int far_inputs = far ? input.inputs : 0;
  for (int pass = 0; pass < passes; ++pass) {
    const int first = groups * pass / passes;
    const int count = groups * (pass + 1) / passes - first;
    widen_scales<type>(tile, first, count, wide);
    const std::uint8_t* quants = tile + quants_offset(type, groups) +
                                 static_cast<std::size_t>(first) * quant_bytes(type);
    for_row_blocks<wide_rows>(row_count, [&](auto rows, int block) {
      const Integer* x[rows()];
      const GroupScale* scales[rows()];
      for (int r = 0; r < rows(); ++r) {
        const std::size_t row = row_first + static_cast<std::size_t>(block + r);
        x[r] = rows_in.values + row * static_cast<std::size_t>(input.inputs) + first * group_values;
        scales[r] = rows_in.scales + row * static_cast<std::size_t>(groups) + first;
      }
      if (block == 0) {
        multiply_wide<D, type, true, rows()>(quants, wide, count, x, scales, far_inputs,
                                             input.shifts, sums, ahead);
      } else {
        multiply_wide<D, type, false, rows()>(quants, wide, count, x, scales, far_inputs,
                                              input.shifts, sums + block, ahead);
      }
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

// Products with rows of Integer, std::int16_t or std::int8_t.
template <class D, WeightType type, class Integer>
void matmul_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                 int row_count, const TileOutput& output) {
  constexpr int wide_rows_min = blocking_of<D, Integer>(type).wide_rows_min;
  if constexpr (wide_rows_min != 0) {
    if (row_count >= wide_rows_min)
      return matmul_many_avx2<D, type, Integer>(tile, input, row_first, row_count, output);
  }
  matmul_narrow_avx2<D, type, Integer>(tile, input, row_first, row_count, output);
}

// The table with D's products of quantized weights and 16-bit activations.
template <class D>
constexpr KernelTable with_products(KernelTable table) {
  using Integer = std::int16_t;
  table.name = D::name;
  const MatmulTile products[] = {
      matmul_avx2<D, WeightType::q4_0, Integer>,  matmul_avx2<D, WeightType::q4_1, Integer>,
      matmul_avx2<D, WeightType::q8_0, Integer>,  matmul_avx2<D, WeightType::q4_k, Integer>,
      matmul_avx2<D, WeightType::q5_k, Integer>,  matmul_avx2<D, WeightType::q6_k, Integer>,
      matmul_avx2<D, WeightType::grid8, Integer>, matmul_avx2<D, WeightType::grid4_halves, Integer>};
  std::copy(std::begin(products), std::end(products), table.matmul + static_cast<int>(WeightType::q4_0));
  return table;
}

// The same table with D's products of 4-bit weights and 8-bit activations.
template <class D>
constexpr KernelTable with_byte_products(const KernelTable& table) {
  using Integer = std::int8_t;
  return with_bytes(table, matmul_avx2<D, WeightType::q4_0, Integer>,
                    matmul_avx2<D, WeightType::q4_1, Integer>,
                    matmul_avx2<D, WeightType::q4_k, Integer>,
                    matmul_avx2<D, WeightType::grid4_halves, Integer>);
}

}  // namespace
}  // namespace headrace
