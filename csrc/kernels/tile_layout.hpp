// How 16 output columns of a quantized matrix lie in memory, so that kernels read forward only.
//
//   scales   for each group of 32 inputs: 16 scales (two times 16 for the halves types: inputs 0..15
//            and 16..31), then as many minimums if the type has them; the whole padded to 64 bytes
//   quants   for each group: 64-byte vectors of (16 columns x 4 inputs)
//              4 bits   4 vectors; vector v holds inputs 4v..4v+3 in its low nibbles and
//                       16+4v..16+4v+3 in its high ones, as 0..15
//              8 bits   8 vectors; vector v holds inputs 4v..4v+3, as int8 + 128
//
//   type           bits  scales    minimums  weight
//   q4_0           4     float16   -         scale * (stored - 8)
//   q4_1           4     float16   float16   scale * stored + minimum
//   q8_0           8     float16   -         scale * (stored - 128)
//   grid4          4     float32   float32   scale * stored + minimum
//   grid8          8     float32   float32   scale * (stored - 128) + minimum
//   grid4_halves   4     2 float32 2 float32 scale * stored + minimum
//   grid8_halves   8     2 float32 -         scale * (stored - 128)
//
// A 32-bit lane holds one column's four inputs: as 16-bit lanes, shifted and masked, they are the
// pairs of inputs that vpmaddwd and vpdpwssd multiply (stored_position in kernel_table.hpp).
#pragma once

#include <cstddef>

#include "kernels/kernel_table.hpp"

namespace headrace {

constexpr std::size_t vector_bytes = 64;

constexpr int weight_bits(WeightType type) {
  return type == WeightType::q8_0 || type == WeightType::grid8 || type == WeightType::grid8_halves
             ? 8
             : 4;
}

constexpr bool has_minimum(WeightType type) {
  return type == WeightType::q4_1 || type == WeightType::grid4 || type == WeightType::grid8 ||
         type == WeightType::grid4_halves;
}

constexpr bool has_float_scales(WeightType type) { return type >= WeightType::grid4; }

// Scales of one group and column: two if each half of the group has its own.
constexpr int scale_parts(WeightType type) {
  return type == WeightType::grid4_halves || type == WeightType::grid8_halves ? 2 : 1;
}

constexpr std::size_t scale_number_bytes(WeightType type) { return has_float_scales(type) ? 4 : 2; }

constexpr std::size_t minimums_offset(WeightType type) {   // in one group's scales
  return scale_number_bytes(type) * static_cast<std::size_t>(scale_parts(type)) * tile_columns;
}

constexpr std::size_t scale_bytes(WeightType type) {   // of one group
  return minimums_offset(type) * (has_minimum(type) ? 2 : 1);
}

constexpr std::size_t quant_bytes(WeightType type) {   // of one group
  return vector_bytes * static_cast<std::size_t>(weight_bits(type));
}

constexpr std::size_t quants_offset(WeightType type, int groups) {
  return (static_cast<std::size_t>(groups) * scale_bytes(type) + 63) / 64 * 64;
}

// What was added to every stored weight; the kernels take it off by the sum of the activations.
constexpr int weight_offset(WeightType type) {
  return type == WeightType::q4_0 ? 8 : weight_bits(type) == 8 ? 128 : 0;
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

// The scales (or minimums) of a register's columns, from `column` on, for one part of a group.
template <class S, WeightType type>
inline typename S::V load_scale(const std::uint8_t* group_scales, int part, int column) {
  const std::uint8_t* at =
      group_scales + static_cast<std::size_t>(part * tile_columns + column) * scale_number_bytes(type);
  if constexpr (has_float_scales(type)) {
    return S::load(reinterpret_cast<const float*>(at));
  } else {
    return S::load_f16(reinterpret_cast<const std::uint16_t*>(at));
  }
}

template <class S, WeightType type>
inline typename S::V load_minimum(const std::uint8_t* group_scales, int part, int column) {
  return load_scale<S, type>(group_scales + minimums_offset(type), part, column);
}

// What a group's minimum is multiplied with, for one part of it.
template <WeightType type>
inline float minimum_factor(const GroupScale& scale, int part) {
  if constexpr (scale_parts(type) == 1) return scale.scaled_sum;
  return scale.scale * static_cast<float>(scale.part_sum(part));
}

// What a stored offset added to the product with one part of a group, negated.
template <WeightType type>
inline std::int32_t offset_correction(const GroupScale& scale, int part) {
  return -weight_offset(type) * (scale_parts(type) == 1 ? scale.sum : scale.part_sum(part));
}

// How far ahead of the multiplication a kernel that reads weights once asks for them: from memory
// into the second cache, and from there into the first. One distance alone leaves a core at half of
// the memory's rate, because the first cache waits for few lines at a time.
constexpr std::size_t prefetch_far_bytes = 16384;
constexpr std::size_t prefetch_near_bytes = 2048;
constexpr int prefetch_rows_max = 64;   // with more rows the time goes into multiplying

// Asks for the lines ahead of one group's; past the end of a matrix it does no harm.
inline void prefetch_group(const std::uint8_t* quants, std::size_t byte_count) {
#if defined(__GNUC__)
  for (std::size_t line = 0; line < byte_count; line += 64) {
    __builtin_prefetch(quants + prefetch_far_bytes + line, 0, 2);
    __builtin_prefetch(quants + prefetch_near_bytes + line, 0, 3);
  }
#endif
}

}  // namespace headrace
