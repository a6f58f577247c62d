// Rows times one tile of quantized weights with AVX-512 VNNI: exact products of weights and a row's
// integers, broadcast from memory, are added to 32-bit sums, 16 columns an instruction: two products of
// 16-bit activations (vpdpwssd), four of bytes (vpdpbusd, matmul_bytes_avx512.hpp). The weight offset is
// where the sums start. Many rows, where machines add on more pipes than they multiply on:
// matmul_wide_avx512.hpp.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/row_numbers_avx512.hpp"
#include "kernels/row_addresses.hpp"
#include "kernels/simd_avx512.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

constexpr int group_quads = group_values / 4;   // fours of inputs: two pairs each

// Rows of a register block: their sums of floats and of integers are 24 of the 32 registers. Nibbles
// that meet 16 bits, which nobody has unasked, are compiled for fewer.
template <class Integer>
constexpr int block_rows_512(WeightType type) {
  return weight_bits(type) == 4 && sizeof(Integer) == 2 ? 8 : 12;
}

// A sum can take a product when it has the one before, four or five cycles later, and Intel adds two a
// cycle, so that ten sums must be under way: up to 8 rows have two each, of two groups or of a group's
// halves. With fewer than 4 rows memory is what is waited for.
constexpr int sums_of_a_row(int rows) { return rows >= 4 && rows <= 8 ? 2 : 1; }

// Register blocks up to which all ask memory for what comes next, in even parts; of more the first alone
// asks, since it is a small part of them, and one by itself does so at less cost (prefetch_group).
constexpr int even_blocks_max = 4;

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

// The codes of one part of a group, a number a column.
template <int part>
inline __m512i load_codes_512(const GroupScales& scales) {
  const auto* codes = reinterpret_cast<const __m128i*>(scales.numbers) + part;
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(codes));
}

// Where both parts of a group are joined, few rows have their sums multiplied with the codes, and many, which
// share it, have weights that were.
constexpr bool joins_sums_512(WeightType type, int rows) { return joins_parts(type) && rows <= 8; }

// A quad's weights times their codes, if that is how parts are joined.
template <WeightType type, int q>
inline QuadWeights coded_quad(const std::uint8_t* quants, const GroupScales& scales) {
  QuadWeights weights = unpack_quad<type, q>(quants);
  if constexpr (joins_parts(type)) {
    const __m512i code = load_codes_512<q * 2 / group_quads>(scales);
    const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAA, code, _mm512_slli_epi32(code, 16));
    weights.even = _mm512_mullo_epi16(weights.even, both);
    weights.odd = _mm512_mullo_epi16(weights.odd, both);
  }
  return weights;
}

// dots += quad q of the group at `quants`, which is number `group` from where `x` points.
template <WeightType type, int q, int group, int rows>
[[gnu::always_inline]] inline void add_quad(const std::uint8_t* quants, const GroupScales& scales,
                                            const RowAddresses<std::int16_t, rows>& x,
                                            __m512i (&dots)[rows]) {
  constexpr int at = (group * group_values + 4 * q) * static_cast<int>(sizeof(std::int16_t));
  QuadWeights weights = joins_sums_512(type, rows) ? unpack_quad<type, q>(quants)
                                                   : coded_quad<type, q>(quants, scales);
  settle(weights.even);
  settle(weights.odd);
  unrolled<rows>([&](auto r) __attribute__((always_inline)) {
    add_products<r, at>(dots[r], weights.even, x);
  });
  unrolled<rows>([&](auto r) __attribute__((always_inline)) {
    add_products<r, at + 4>(dots[r], weights.odd, x);
  });
}

// Byte of a GroupScale's field, `group` groups on.
constexpr int scale_field(int group, std::size_t offset) {
  return group * static_cast<int>(sizeof(GroupScale)) + static_cast<int>(offset);
}

// sums += the exact sums `dots` of a part of group `group`, by its scales and those of the rows.
template <WeightType type, int group, int part, int rows>
[[gnu::always_inline]] inline void scale_dots(const __m512i (&dots)[rows],
                                              const RowAddresses<GroupScale, rows>& row_scales,
                                              __m512 scale, __m512 minimum,
                                              __m512 (&sums)[rows]) {
  constexpr int scale_at = scale_field(group, offsetof(GroupScale, scale));
  unrolled<rows>([&](auto r) __attribute__((always_inline)) {
    const __m512 factor = times_number<r, scale_at>(scale, row_scales);
    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), factor, sums[r]);
    if constexpr (has_minimum(type) && scale_parts(type) == 1) {
      constexpr int at = scale_field(group, offsetof(GroupScale, scaled_sum));
      add_times_number<r, at>(sums[r], minimum, row_scales);
    } else if constexpr (has_minimum(type)) {
      constexpr int at = scale_field(group, part == 0 ? offsetof(GroupScale, first_sum)
                                                      : offsetof(GroupScale, second_sum));
      const __m512 row_sum = times_number<r, scale_at>(integer_of<r, at>(row_scales), row_scales);
      sums[r] = _mm512_fmadd_ps(minimum, row_sum, sums[r]);
    }
    settle(sums[r]);
  });
}

// Sums of a group that a register block of `rows` rows keeps apart.
constexpr int parts_512(WeightType type, int rows) {
  return joins_sums_512(type, rows) ? scale_parts(type) : sum_parts(type);
}

// dots[0] = both parts' sums, each times its codes.
template <int rows>
[[gnu::always_inline]] inline void join_parts_512(const GroupScales& scales, __m512i (&dots)[2][rows]) {
  const __m512i first = load_codes_512<0>(scales), second = load_codes_512<1>(scales);
  for (int r = 0; r < rows; ++r)
    dots[0][r] = _mm512_add_epi32(_mm512_mullo_epi32(dots[0][r], first),
                                  _mm512_mullo_epi32(dots[1][r], second));
}

// sums += `ways` parts of groups side by side, from part `first` of group g on. A part has one scale: a
// whole group, or one half of it; where parts are joined as sums, a group's scale is the first one's.
template <WeightType type, int first, int ways, class Integer, int rows>
[[gnu::always_inline]] inline void add_parts(const std::uint8_t* tile, int g,
                                             const std::uint8_t* quants,
                                             const RowAddresses<Integer, rows>& x,
                                             const RowAddresses<GroupScale, rows>& row_scales,
                                             __m512 (&sums)[rows]) {
  constexpr int parts = parts_512(type, rows);
  constexpr int quads = group_quads / parts;
  constexpr bool joins = joins_sums_512(type, rows);
  static_assert(!joins || (first == 0 && ways == parts));
  __m512i dots[ways][rows];
  unrolled<ways * rows>([&](auto i) __attribute__((always_inline)) {
    constexpr int way = i / rows, r = i % rows;
    constexpr int at = scale_field((first + way) / parts, offsetof(GroupScale, offset_sum));
    dots[way][r] = _mm512_setzero_si512();
    if constexpr (weight_offset(type) != 0) dots[way][r] = number_of<r, at>(row_scales);
    settle(dots[way][r]);
  });
  unrolled<quads * ways>([&](auto i) __attribute__((always_inline)) {
    constexpr int way = i % ways, group = (first + way) / parts, part = (first + way) % parts;
    add_quad<type, part * quads + i / ways, group>(quants + group * quant_bytes(type),
                                                   scales_of<type>(tile, g + group), x, dots[way]);
  });
  if constexpr (joins) join_parts_512(scales_of<type>(tile, g), dots);
  unrolled<joins ? 1 : ways>([&](auto way) __attribute__((always_inline)) {
    constexpr int group = (first + way) / parts, part = (first + way) % parts;
    const GroupScales scales = scales_of<type>(tile, g + group);
    __m512 scale = load_sum_scale<SimdAvx512, type>(scales, part, 0);
    settle(scale);
    __m512 minimum = _mm512_setzero_ps();
    if constexpr (has_minimum(type)) {
      minimum = load_minimum<SimdAvx512, type>(scales, part, 0);
      settle(minimum);
    }
    scale_dots<type, group, part>(dots[way], row_scales, scale, minimum, sums);
  });
}

// Not inlined: among other blocks the compiler would keep its sums in memory. Ahead: ReadAhead*, which asks
// memory in each group's turn, or bool, whether each group's lines ahead are asked for at once.
template <WeightType type, class Integer, int rows, class Ahead>
[[gnu::noinline]] void matmul_block_avx512(const std::uint8_t* tile, const Integer* values,
                                           const GroupScale* scales, int inputs, int out_row,
                                           Ahead ahead, const TileOutput& output) {
  constexpr int parts = parts_512(type, rows);
  constexpr int ways = joins_sums_512(type, rows) ? parts : sums_of_a_row(rows);
  constexpr int together = std::max(1, ways / parts);   // groups
  const int groups = inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  RowAddresses<Integer, rows> x(values, static_cast<std::size_t>(inputs));
  RowAddresses<GroupScale, rows> row_scales(scales, static_cast<std::size_t>(groups));
  __m512 sums[rows];
  unrolled<rows>([&](auto r) __attribute__((always_inline)) { sums[r] = _mm512_setzero_ps(); });
  int g = 0;
  for (; g + together <= groups; g += together, quants += together * quant_bytes(type)) {
    if constexpr (std::is_same_v<Ahead, bool>) {
      if (ahead) prefetch_group(quants, together * quant_bytes(type));
    } else {
      for (int i = 0; i < together; ++i) ahead->ask();
    }
    add_parts<type, 0, ways>(tile, g, quants, x, row_scales, sums);
    if constexpr (ways < parts) add_parts<type, 1, ways>(tile, g, quants, x, row_scales, sums);
    x.advance(together * group_values);
    row_scales.advance(together);
  }
  if constexpr (together > 1) {
    if (g < groups) add_parts<type, 0, 1>(tile, g, quants, x, row_scales, sums);
  }
  unrolled<rows>([&](auto r) __attribute__((always_inline)) {
    store_tile_vector<SimdAvx512>(sums[r], output, out_row + r, 0);
  });
}

// Rows of integers (rows, inputs) with a scale for each group of them.
template <WeightType type, class Integer>
inline void matmul_rows_avx512(const std::uint8_t* tile, const Integer* values,
                               const GroupScale* scales, int inputs, int row_first, int row_count,
                               const TileOutput& output) {
  constexpr int block_rows = block_rows_512<Integer>(type);
  const int blocks = (row_count + block_rows - 1) / block_rows;
  ReadAhead even(tile, tile_bytes(type, inputs), inputs / group_values * blocks);
  for_row_blocks<block_rows>(row_count, [&](auto rows, int first) {
    const std::size_t at =
        static_cast<std::size_t>(row_first + first) * static_cast<std::size_t>(inputs);
    const auto multiply = [&](auto ahead) __attribute__((always_inline)) {
      matmul_block_avx512<type, Integer, rows(), decltype(ahead)>(
          tile, values + at, scales + at / group_values, inputs, first, ahead, output);
    };
    if constexpr (rows() >= block_rows / 2) {
      if (blocks > 1 && blocks <= even_blocks_max) return multiply(&even);
    }
    multiply(first == 0);
  });
}

template <WeightType type>
void matmul_avx512(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                   int row_count, const TileOutput& output) {
  matmul_rows_avx512<type>(tile, input.values, input.scales, input.inputs, row_first, row_count,
                           output);
}

}  // namespace
}  // namespace headrace
