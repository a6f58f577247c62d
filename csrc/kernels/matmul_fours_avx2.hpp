// Rows of fours times one tile of 8-bit weights with registers of 256 bits. Weights become unsigned bytes,
// four inputs a column, so that one instruction multiplies 32 of them, and the sums of those that share a
// multiplier still fit 16 bits (four_peak); the second instruction multiplies these and makes 32 bits of
// them. 16-bit activations take twice as many of both. All sums of integers are exact.
// D: DotAvx2 or DotAvxVnni.
#pragma once

#include "kernels/elementwise.hpp"
#include "kernels/matmul_wide_avx2.hpp"

namespace headrace {
namespace {

constexpr int fours_rows = 4;       // of a register block that meets weights unpacked once
constexpr int few_fours_rows = 6;   // up to here one block, whose sums need not fit the registers, is faster
constexpr int eights = group_values / 8;   // inputs whose fours share an instruction's multipliers

template <WeightType type>
using WideFours = WideGroups<type, std::uint8_t, scale_parts(type)>;

// The weights of eight inputs as bytes, for both halves of the columns: as position_in_fours has them.
struct EightWeights {
  __m256i even[2];
  __m256i odd[2];
};

// Pairs 2 apart of a group's 8-bit weights (tile_layout.hpp) side by side in each column.
[[gnu::always_inline]] inline void join_pairs(const std::uint8_t* pair, __m256i (&out)[2]) {
  const auto* at = reinterpret_cast<const __m256i*>(pair);
  const __m256i first = _mm256_permute4x64_epi64(_mm256_loadu_si256(at), 0xD8);   // unpacking works
  const __m256i second = _mm256_permute4x64_epi64(_mm256_loadu_si256(at + 2), 0xD8);   // within 128 bits
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(four_weight_offset));
  out[0] = _mm256_xor_si256(_mm256_unpacklo_epi16(first, second), offset);
  out[1] = _mm256_xor_si256(_mm256_unpackhi_epi16(first, second), offset);
}

[[gnu::always_inline]] inline EightWeights unpack_eight(const std::uint8_t* quants, int eight) {
  const std::uint8_t* pairs = quants + eight * 8 * tile_columns;
  EightWeights out;
  join_pairs(pairs, out.even);
  join_pairs(pairs + 2 * tile_columns, out.odd);
  return out;
}

[[gnu::always_inline]] inline void store_eight(const EightWeights& weights, std::uint8_t* group, int eight) {
  auto* out = reinterpret_cast<__m256i*>(group + eight * 8 * tile_columns);
  for (int h = 0; h < 2; ++h) {
    _mm256_store_si256(out + h, weights.even[h]);
    _mm256_store_si256(out + 2 + h, weights.odd[h]);
  }
}

[[gnu::always_inline]] inline EightWeights load_eight(const std::uint8_t* group, int eight) {
  const auto* in = reinterpret_cast<const __m256i*>(group + eight * 8 * tile_columns);
  EightWeights out;
  for (int h = 0; h < 2; ++h) {
    out.even[h] = _mm256_load_si256(in + h);
    out.odd[h] = _mm256_load_si256(in + 2 + h);
    settle(out.even[h]);   // loaded once, not for each row
    settle(out.odd[h]);
  }
  return out;
}

// Where the sums of a part of a group start, from memory: not by way of a general register.
template <int parts>
[[gnu::always_inline]] inline __m256i start_of(const ScaledFours& x, int part) {
  const __m256i second = broadcast(&x.second_start);
  if (part == 1) return second;
  const __m256i whole = broadcast(&x.start);
  return parts == 1 ? whole : _mm256_sub_epi32(whole, second);
}

// What happens to a group's weights before they are multiplied.
enum class Unpacking { keep, once, done };   // and are left to other rows; alone; lie there unpacked

// The exact sums of a group for `rows` rows, of weights without their offset: of each part.
template <class D, WeightType type, Unpacking unpacking, int rows>
[[gnu::always_inline]] inline void dot_fours(const std::uint8_t* quants, std::uint8_t* weights,
                                             const ScaledFours* const* x, RowDots<rows>* out) {
  constexpr int parts = scale_parts(type);
  RowDots<rows> dots;
#pragma GCC unroll 4
  for (int eight = 0; eight < eights; ++eight) {
    if (eight % (eights / parts) == 0)
      for (int r = 0; r < rows; ++r) {
        for (int h = 0; h < 2; ++h) dots[r][h] = start_of<parts>(*x[r], eight * parts / eights);
      }
    const EightWeights of = unpacking == Unpacking::done ? load_eight(weights, eight)
                                                         : unpack_eight(quants, eight);
    if constexpr (unpacking == Unpacking::keep) store_eight(of, weights, eight);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
      D::add_fours(of.even, of.odd, x[r]->bytes + eight * 8, x[r]->multipliers + eight * 2, dots[r]);
    if ((eight + 1) % (eights / parts) == 0) keep_dots<rows>(dots, out[eight * parts / eights]);
  }
}

// multiply_wide, of fours. far_groups: of each row, if rows are to be asked for; else 0.
template <class D, WeightType type, bool first_rows, int rows>
inline void multiply_fours(const std::uint8_t* quants, WideFours<type>& wide, int count,
                           const ScaledFours* const* row_values, int far_groups, bool rows_shift,
                           float (*sums)[tile_columns], ReadAhead& ahead) {
  constexpr int parts = scale_parts(type);
  constexpr Unpacking unpacking = first_rows ? Unpacking::keep : Unpacking::done;
  RowDots<rows> kept[wide_groups * parts];
  std::uint8_t* weights = wide.weights;
  const ScaledFours* x[rows];
  for (int r = 0; r < rows; ++r) x[r] = row_values[r];
  for (int g = 0; g < count; ++g) {
    ahead.ask();
    if (far_groups != 0)
      for (int r = 0; r < rows; ++r) __builtin_prefetch(x[r] + rows * far_groups);
    dot_fours<D, type, unpacking, rows>(quants, weights, x, kept + g * parts);
    quants += quant_bytes(type);
    weights += group_values * tile_columns;
    for (int r = 0; r < rows; ++r) ++x[r];
  }
  if (!(rows_shift && wide.shifts)) [[unlikely]]
    return scale_unshifted<D, type, rows>(wide, count, kept, row_values, sums);
  scale_wide<D, type, true, rows>(wide, count, kept, row_values, sums);
}

// Up to wide_rows_max rows, which share unpacked weights.
template <class D, WeightType type>
inline void matmul_wide_fours(const std::uint8_t* tile, const ActivationRows& input,
                              std::size_t row_first, int row_count, int out_row,
                              const TileOutput& output) {
  WideFours<type> wide;
  alignas(64) float sums[wide_rows_max][tile_columns];
  std::fill_n(sums[0], row_count * tile_columns, 0.0f);
  const int groups = input.inputs / group_values;
  const int passes = (groups + wide_groups - 1) / wide_groups;
  const int blocks = (row_count + fours_rows - 1) / fours_rows;
  ReadAhead ahead(tile, tile_bytes(type, input.inputs), groups * blocks);
  const bool far = static_cast<std::size_t>(row_count * groups) * sizeof(ScaledFours) > second_cache_bytes;
  for (int pass = 0; pass < passes; ++pass) {
    const int first = groups * pass / passes;
    const int count = groups * (pass + 1) / passes - first;
    widen_scales(tile, first, count, wide);
    const std::uint8_t* quants = tile + quants_offset(type, groups) +
                                 static_cast<std::size_t>(first) * quant_bytes(type);
    for_row_blocks<fours_rows>(row_count, [&](auto rows, int block) {
      const ScaledFours* x[rows()];
      for (int r = 0; r < rows(); ++r)
        x[r] = input.fours + (row_first + static_cast<std::size_t>(block + r)) * groups + first;
      const auto multiply = block == 0 ? multiply_fours<D, type, true, rows()>
                                       : multiply_fours<D, type, false, rows()>;
      multiply(quants, wide, count, x, far ? groups : 0, input.shifts, sums + block, ahead);
    });
  }
  for (int r = 0; r < row_count; ++r)
    for (int h = 0; h < 2; ++h)
      store_tile_vector<SimdAvx2>(SimdAvx2::load(sums[r] + h * 8), output, out_row + r, h * 8);
}

// sums += one part of a group.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void scale_fours(const RowDots<rows>& dots, const ScaledFours* const* x,
                                               const GroupScales& scales, int part,
                                               __m256 (&sums)[rows][2]) {
  using S = SimdAvx2;
  for (int h = 0; h < 2; ++h) {
    const __m256 scale = load_scale<S, type>(scales, part, h * 8);
    for (int r = 0; r < rows; ++r) {
      const __m256 factor = S::mul(scale, S::set1(x[r]->scale));
      sums[r][h] = S::fma(_mm256_cvtepi32_ps(dots[r][h]), factor, sums[r][h]);
      if constexpr (has_minimum(type))
        sums[r][h] = S::fma(load_minimum<S, type>(scales, part, h * 8), S::set1(x[r]->scaled_sum),
                            sums[r][h]);
    }
  }
}

// A register block of rows that meet each weight once.
template <class D, WeightType type, int rows>
inline void matmul_few_fours(const std::uint8_t* tile, const ActivationRows& input,
                             std::size_t row_first, const TileOutput& output) {
  constexpr int parts = scale_parts(type);
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  const ScaledFours* x[rows];
  __m256 sums[rows][2];
  for (int r = 0; r < rows; ++r) {
    x[r] = input.fours + (row_first + static_cast<std::size_t>(r)) * groups;
    for (int h = 0; h < 2; ++h) sums[r][h] = _mm256_setzero_ps();
  }
  for (int g = 0; g < groups; ++g, quants += quant_bytes(type)) {
    prefetch_group(quants, quant_bytes(type));
    RowDots<rows> dots[parts];
    dot_fours<D, type, Unpacking::once, rows>(quants, nullptr, x, dots);
    for (int part = 0; part < parts; ++part)
      scale_fours<type, rows>(dots[part], x, scales_of<type>(tile, g), part, sums);
    for (int r = 0; r < rows; ++r) ++x[r];
  }
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < 2; ++h) store_tile_vector<SimdAvx2>(sums[r][h], output, r, h * 8);
}

template <class D, WeightType type>
void matmul_fours_avx2(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                       int row_count, const TileOutput& output) {
  const std::size_t first = static_cast<std::size_t>(row_first);
  if (row_count <= few_fours_rows)
    return for_row_blocks<few_fours_rows>(row_count, [&](auto rows, int) {
      matmul_few_fours<D, type, rows()>(tile, input, first, output);
    });
  for (int done = 0; done < row_count; done += wide_rows_max)
    matmul_wide_fours<D, type>(tile, input, first + static_cast<std::size_t>(done),
                               std::min(wide_rows_max, row_count - done), done, output);
}

// The same table with D's products of 8-bit weights and fours.
template <class D>
constexpr KernelTable with_four_products(const KernelTable& table) {
  return with_fours(table, quantize_fours<SimdAvx2>, matmul_fours_avx2<D, WeightType::q8_0>,
                    matmul_fours_avx2<D, WeightType::q5_k>, matmul_fours_avx2<D, WeightType::q6_k>,
                    matmul_fours_avx2<D, WeightType::grid8>);
}

}  // namespace
}  // namespace headrace
