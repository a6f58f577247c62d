// How 16 output columns of a quantized matrix lie in memory, so that kernels read forward only.
//
//   scales   for each group of 32 inputs: 16 scales (two times 16 where each half has its own:
//            inputs 0..15 and 16..31), then as many minimums if the type has them. The K types have
//            int8 codes of them, under 16 float16 factors (and 16 of minimums) that stand before each
//            8 groups. The whole is padded to 64 bytes
//   quants   for each group
//              4 bits   4 vectors of (16 columns x 4 inputs); vector v holds inputs 4v..4v+3 in
//                       its low nibbles and 16+4v..16+4v+3 in its high ones, as 0..15
//              8 bits   16 vectors of (16 columns x a pair of inputs), as int8; on ARM 8 vectors of
//                       (16 columns x 4 inputs)
//
//   type           bits  scales    minimums  weight
//   q4_0           4     float16   -         scale * (stored - 8)
//   q4_1           4     float16   float16   scale * stored + minimum
//   q8_0           8     float16   -         scale * stored
//   q4_k           4     coded     coded     scale * stored + minimum
//   q5_k           8     coded     coded     scale * stored + minimum
//   q6_k           8     2 coded   -         scale * stored
//   grid8          8     float32   float32   scale * stored + minimum
//   grid4_halves   4     2 float32 2 float32 scale * stored + minimum
//
// Pairs of inputs are what vpmaddwd and vpdpwssd multiply (stored_position in kernel_table.hpp): of
// four bits they fall out of 16-bit lanes by a shift and a mask, of eight by sign extension. NEON's
// byte products take four inputs a column (matmul_integer_neon.hpp); AVX2's with fours lay two pairs side
// by side (matmul_fours_avx2.hpp).
#pragma once

#include <cstddef>

#include "kernels/kernel_table.hpp"

namespace headrace {

constexpr std::size_t vector_bytes = 64;

constexpr int weight_bits(WeightType type) {
  return type == WeightType::q8_0 || type == WeightType::q5_k || type == WeightType::q6_k ||
                 type == WeightType::grid8
             ? 8
             : 4;
}

// Whether a table's products with this type read bytes, not 16-bit integers.
constexpr bool reads_bytes(const KernelTable& kernels, WeightType type) {
  return kernels.activation_bits == 8 && is_quantized(type) && weight_bits(type) == 4;
}

// Whether they read ScaledFours.
constexpr bool reads_fours(const KernelTable& kernels, WeightType type) {
  return kernels.quantize_fours != nullptr && is_quantized(type) && weight_bits(type) == 8;
}

constexpr bool has_minimum(WeightType type) {
  return type == WeightType::q4_1 || type == WeightType::q4_k || type == WeightType::q5_k ||
         type >= WeightType::grid8;
}

constexpr bool has_float_scales(WeightType type) { return type >= WeightType::grid8; }

constexpr bool has_coded_scales(WeightType type) {
  return type >= WeightType::q4_k && type <= WeightType::q6_k;
}

// Scales of one group and column: two if each half of the group has its own.
constexpr int scale_parts(WeightType type) {
  return type == WeightType::q6_k || type == WeightType::grid4_halves ? 2 : 1;
}

// Whether x86's kernels multiply a group's weights with their codes, so that both parts make one sum of
// integers, and floats of it once. With weights of 6 bits it fits (quantized_peak).
constexpr bool joins_parts(WeightType type) { return type == WeightType::q6_k; }

// Sums of a group there, each with a scale of its own.
constexpr int sum_parts(WeightType type) { return joins_parts(type) ? 1 : scale_parts(type); }

constexpr std::size_t scale_number_bytes(WeightType type) {
  return has_float_scales(type) ? 4 : has_coded_scales(type) ? 1 : 2;
}

constexpr std::size_t minimums_offset(WeightType type) {   // in one group's scales
  return scale_number_bytes(type) * static_cast<std::size_t>(scale_parts(type)) * tile_columns;
}

constexpr std::size_t scale_bytes(WeightType type) {   // of one group
  return minimums_offset(type) * (has_minimum(type) ? 2 : 1);
}

constexpr int coded_groups = 8;   // that share their factors: a block of 256 inputs
constexpr std::size_t factor_minimums_offset = tile_columns * 2;

constexpr std::size_t factor_bytes(WeightType type) {
  return has_coded_scales(type) ? factor_minimums_offset * (has_minimum(type) ? 2 : 1) : 0;
}

constexpr std::size_t factors_offset(WeightType type, int group) {
  return static_cast<std::size_t>(group / coded_groups) *
         (factor_bytes(type) + coded_groups * scale_bytes(type));
}

constexpr std::size_t scales_offset(WeightType type, int group) {
  if (!has_coded_scales(type)) return static_cast<std::size_t>(group) * scale_bytes(type);
  return factors_offset(type, group) + factor_bytes(type) +
         static_cast<std::size_t>(group % coded_groups) * scale_bytes(type);
}

constexpr std::size_t quant_bytes(WeightType type) {   // of one group
  return vector_bytes * static_cast<std::size_t>(weight_bits(type));
}

constexpr std::size_t quants_offset(WeightType type, int groups) {
  return (scales_offset(type, groups) + 63) / 64 * 64;
}

// Where one column's weight for input k of a group lies in the group's quants.
constexpr std::size_t quant_offset(WeightType type, int k, std::size_t column) {
  if (weight_bits(type) == 4)
    return static_cast<std::size_t>(k % 16 / 4) * vector_bytes + column * 4 +
           static_cast<std::size_t>(k % 4);
  if (!inputs_in_pairs)
    return static_cast<std::size_t>(k / 4) * vector_bytes + column * 4 + static_cast<std::size_t>(k % 4);
  const std::size_t position = static_cast<std::size_t>(stored_position(k));
  return position / 2 * (2 * tile_columns) + column * 2 + position % 2;
}

// The weight there, as stored.
constexpr int stored_weight(WeightType type, std::uint8_t byte, int k) {
  if (weight_bits(type) == 8) return static_cast<std::int8_t>(byte);
  return k >= 16 ? byte >> 4 : byte & 15;
}

// What was added to every stored weight; the kernels take it off by the sum of the activations.
constexpr int weight_offset(WeightType type) {
  return type == WeightType::q4_0 ? stored_offset : 0;
}

constexpr std::size_t tile_bytes(WeightType type, int inputs) {
  const std::size_t width = static_cast<std::size_t>(inputs);
  switch (type) {
    case WeightType::f32:
      return width * tile_columns * 4;
    case WeightType::f16:
    case WeightType::bf16:
      return width * tile_columns * 2;
    default:
      break;
  }
  const int groups = inputs / group_values;
  return quants_offset(type, groups) + static_cast<std::size_t>(groups) * quant_bytes(type);
}

// Where one group's scales lie.
struct GroupScales {
  const std::uint8_t* numbers;
  const std::uint8_t* factors;   // of coded scales
};

template <WeightType type>
inline GroupScales scales_of(const std::uint8_t* tile, int group) {
  return {tile + scales_offset(type, group), tile + factors_offset(type, group)};
}

// The numbers of a register's columns at `numbers`, times their factors where they are codes.
template <class S, WeightType type>
inline typename S::V load_numbers(const std::uint8_t* numbers, const std::uint8_t* factors) {
  if constexpr (has_float_scales(type)) {
    return S::load(reinterpret_cast<const float*>(numbers));
  } else if constexpr (has_coded_scales(type)) {
    return S::mul(S::load_f16(reinterpret_cast<const std::uint16_t*>(factors)),
                  S::load_i8(reinterpret_cast<const std::int8_t*>(numbers)));
  } else {
    return S::load_f16(reinterpret_cast<const std::uint16_t*>(numbers));
  }
}

// The scales of a register's columns, from `column` on, for one part of a group.
template <class S, WeightType type>
inline typename S::V load_scale(const GroupScales& scales, int part, int column) {
  return load_numbers<S, type>(
      scales.numbers +
          static_cast<std::size_t>(part * tile_columns + column) * scale_number_bytes(type),
      scales.factors + column * 2);
}

template <class S, WeightType type>
inline typename S::V load_minimum(const GroupScales& scales, int part, int column) {
  return load_scale<S, type>(
      {scales.numbers + minimums_offset(type), scales.factors + factor_minimums_offset}, part,
      column);
}

// The scales of such a sum: where parts are joined, what their codes are multiplied with.
template <class S, WeightType type>
inline typename S::V load_sum_scale(const GroupScales& scales, int part, int column) {
  if constexpr (joins_parts(type))
    return S::load_f16(reinterpret_cast<const std::uint16_t*>(scales.factors) + column);
  return load_scale<S, type>(scales, part, column);
}

// What a group's minimum is multiplied with, for one part of it.
template <WeightType type>
inline float minimum_factor(const GroupScale& scale, int part) {
  if constexpr (scale_parts(type) == 1) return scale.scaled_sum;
  return scale.scale * static_cast<float>(scale.part_sum(part));
}

template <WeightType type>
inline float minimum_factor(const ScaledFours& fours, int) {
  static_assert(scale_parts(type) == 1, "no 8-bit type has minimums of parts");
  return fours.scaled_sum;
}

// What a stored offset added to the product with one part of a group, negated.
template <WeightType type>
inline std::int32_t offset_correction(const GroupScale& scale, int part) {
  if constexpr (scale_parts(type) == 1 && weight_offset(type) == stored_offset) return scale.offset_sum;
  return -weight_offset(type) * scale.part_sum(part);
}

// How far ahead of the multiplication a kernel that reads weights once asks for them: from memory
// into the second cache, and from there into the first. One distance alone leaves a core at half of
// the memory's rate, because the first cache waits for few lines at a time.
constexpr std::size_t prefetch_far_bytes = 16384;
constexpr std::size_t prefetch_near_bytes = 2048;
constexpr int prefetch_rows_max = 64;   // with more rows the time goes into multiplying
constexpr std::size_t read_line_bytes = 64;

// Asks for the lines ahead of one group's; past the end of a matrix it does no harm.
inline void prefetch_group(const std::uint8_t* quants, std::size_t byte_count) {
#if defined(__GNUC__)
  for (std::size_t line = 0; line < byte_count; line += read_line_bytes) {
    __builtin_prefetch(quants + prefetch_far_bytes + line, 0, 2);
    __builtin_prefetch(quants + prefetch_near_bytes + line, 0, 3);
  }
#endif
}

// Asks for what lies behind a tile, as many bytes as the tile has, in equal parts: one in each of the
// `turns` in which it is multiplied. A kernel that asks in bursts waits in each until memory has taken
// what it asked for, and leaves memory idle in between.
class ReadAhead {
 public:
  ReadAhead(const std::uint8_t* tile, std::size_t byte_count, int turns)
      : turn_bytes_((byte_count + static_cast<std::size_t>(turns) - 1) /
                    static_cast<std::size_t>(turns)),
        at_(tile + prefetch_far_bytes) {}

  void ask() {
#if defined(__GNUC__)
    for (std::size_t byte = 0; byte < turn_bytes_; byte += read_line_bytes)
      __builtin_prefetch(at_ + byte, 0, 2);
#endif
    at_ += turn_bytes_;
  }

 private:
  std::size_t turn_bytes_;
  const std::uint8_t* at_;
};

}  // namespace headrace
