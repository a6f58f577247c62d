// Many rows of 8-bit activations times two neighbouring tiles of 4-bit weights with AVX-512 VNNI. With one
// tile each number of a row is loaded for one product, and loads are what the core waits for next to its
// multiplications; here it is loaded once for both tiles' columns. Seven rows a register block share too
// little unpacking, so the first rows leave unpacked weights and scales to the others. The numbers are
// those of matmul_bytes_avx512.hpp to the bit.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernels/matmul_bytes_avx512.hpp"

namespace headrace {
namespace {

constexpr int pair_block_rows = 7;    // two sums of integers and two of floats each: 28 of 32 registers
constexpr int pair_rows_min = 40;     // from here on it pays
constexpr int pair_rows_max = 128;    // of one pass: their sums are kept beside the weights
constexpr int pair_groups = 16;       // 16 KiB of weights, a third of the first cache

// Groups of both tiles as the first rows leave them to the others.
template <WeightType type>
struct PairGroups {
  alignas(64) std::uint8_t weights[pair_groups][group_quads][2][vector_bytes];
  alignas(64) float scales[pair_groups][2][tile_columns];
  alignas(64) float minimums[has_minimum(type) ? pair_groups : 1][2][tile_columns];
};

using PairSums = float[2][tile_columns];   // of a row

// Where a group's weights and scales of both tiles lie in memory.
template <WeightType type>
struct PairSource {
  const std::uint8_t* tile;
  std::size_t stride;   // bytes from one tile to the other
  int groups;

  const std::uint8_t* quants(int group, int which) const {
    return tile + static_cast<std::size_t>(which) * stride + quants_offset(type, groups) +
           static_cast<std::size_t>(group) * quant_bytes(type);
  }
  GroupScales scales(int group, int which) const {
    return scales_of<type>(tile + static_cast<std::size_t>(which) * stride, group);
  }
};

// dots += both tiles' products of one group; its weights go unpacked to `weights`, or come from there.
template <bool first_rows, class Source, int rows>
[[gnu::always_inline]] inline void add_pair_group(const Source& source, int group,
                                                  std::uint8_t (*weights)[2][vector_bytes],
                                                  const RowAddresses<std::int8_t, rows>& x,
                                                  __m512i (&dots)[2][rows]) {
  unrolled<group_quads>([&](auto q) __attribute__((always_inline)) {
    __m512i both[2];
    for (int which = 0; which < 2; ++which) {
      if constexpr (first_rows) {
        both[which] = unpack_four_512<q>(source.quants(group, which));
        _mm512_store_si512(weights[q][which], both[which]);
      } else {
        both[which] = _mm512_load_si512(weights[q][which]);
      }
      settle(both[which]);
    }
    unrolled<rows>([&](auto r) __attribute__((always_inline)) {
      const __m512i four = number_of<r, 4 * q>(x);
      for (int which = 0; which < 2; ++which) {
        dots[which][r] = _mm512_dpbusd_epi32(dots[which][r], both[which], four);
        settle(dots[which][r]);
      }
    });
  });
}

// totals += `count` groups from `first` on, for `rows` rows at `values` and `scales`.
template <WeightType type, bool first_rows, int rows>
[[gnu::noinline]] void multiply_pair(const PairSource<type>& source, PairGroups<type>& unpacked,
                                     int first, int count, const std::int8_t* values,
                                     const GroupScale* scales, PairSums* totals, ReadAhead& ahead) {
  RowAddresses<std::int8_t, rows> x(values + first * group_values,
                                    static_cast<std::size_t>(source.groups) * group_values);
  RowAddresses<GroupScale, rows> row_scales(scales + first,
                                            static_cast<std::size_t>(source.groups));
  __m512 sums[2][rows];
  for (int r = 0; r < rows; ++r)
    for (int which = 0; which < 2; ++which) sums[which][r] = _mm512_load_ps(totals[r][which]);
  for (int g = 0; g < count; ++g) {
    ahead.ask();
    __m512i dots[2][rows];
    unrolled<rows>([&](auto r) __attribute__((always_inline)) {
      constexpr int at = scale_field(0, offsetof(GroupScale, offset_sum));
      dots[0][r] = _mm512_setzero_si512();
      if constexpr (weight_offset(type) != 0) dots[0][r] = number_of<r, at>(row_scales);
      dots[1][r] = dots[0][r];
      settle(dots[0][r]);
      settle(dots[1][r]);
    });
    add_pair_group<first_rows>(source, first + g, unpacked.weights[g], x, dots);
    for (int which = 0; which < 2; ++which) {
      float* scale_at = unpacked.scales[g][which];
      float* minimum_at = unpacked.minimums[has_minimum(type) ? g : 0][which];
      if constexpr (first_rows) {
        const GroupScales numbers = source.scales(first + g, which);
        _mm512_store_ps(scale_at, load_scale<SimdAvx512, type>(numbers, 0, 0));
        if constexpr (has_minimum(type))
          _mm512_store_ps(minimum_at, load_minimum<SimdAvx512, type>(numbers, 0, 0));
      }
      __m512 minimum = _mm512_setzero_ps();
      if constexpr (has_minimum(type)) minimum = _mm512_load_ps(minimum_at);
      scale_dots<type, 0, 0>(dots[which], row_scales, _mm512_load_ps(scale_at), minimum,
                             sums[which]);
    }
    x.advance(group_values);
    row_scales.advance(1);
  }
  for (int r = 0; r < rows; ++r)
    for (int which = 0; which < 2; ++which) _mm512_store_ps(totals[r][which], sums[which][r]);
}

// Up to pair_rows_max rows, `at` those of the input before them.
template <WeightType type>
inline void multiply_pair_rows(const PairSource<type>& source, const ActivationRows& input,
                               std::size_t at, int row_count, int out_row,
                               const TileOutput& output) {
  PairGroups<type> unpacked;
  alignas(64) PairSums totals[pair_rows_max];
  std::fill_n(totals[0][0], row_count * 2 * tile_columns, 0.0f);
  const std::size_t groups = static_cast<std::size_t>(source.groups);
  const int passes = (source.groups + pair_groups - 1) / pair_groups;
  const int blocks = (row_count + pair_block_rows - 1) / pair_block_rows;
  ReadAhead ahead(source.tile, 2 * source.stride, source.groups * blocks);
  for (int pass = 0; pass < passes; ++pass) {
    const int first = source.groups * pass / passes;
    const int count = source.groups * (pass + 1) / passes - first;
    for_row_blocks<pair_block_rows>(row_count, [&](auto rows, int block) {
      const std::size_t row = (at + static_cast<std::size_t>(block)) * groups;
      const auto multiply =
          block == 0 ? multiply_pair<type, true, rows()> : multiply_pair<type, false, rows()>;
      multiply(source, unpacked, first, count, input.bytes + row * group_values,
               input.byte_scales + row, totals + block, ahead);
    });
  }
  for (int r = 0; r < row_count; ++r)
    for (int which = 0; which < 2; ++which)
      store_tile_vector<SimdAvx512>(_mm512_load_ps(totals[r][which]), output, out_row + r,
                                    which * tile_columns);
}

// Rows times a tile and the one behind it, whose columns and bias lie side by side in `output`.
template <WeightType type>
void matmul_pairs_avx512(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                         int row_count, const TileOutput& output) {
  static_assert(scale_parts(type) == 1);
  const std::size_t stride = tile_bytes(type, input.inputs);
  if (row_count < pair_rows_min) {
    matmul_bytes_avx512<type>(tile, input, row_first, row_count, output);
    matmul_bytes_avx512<type>(tile + stride, input, row_first, row_count, second_tile(output));
    return;
  }
  const PairSource<type> source{tile, stride, input.inputs / group_values};
  for (int done = 0; done < row_count; done += pair_rows_max)
    multiply_pair_rows<type>(source, input, static_cast<std::size_t>(row_first + done),
                             std::min(pair_rows_max, row_count - done), done, output);
}

}  // namespace
}  // namespace headrace
