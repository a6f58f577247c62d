// How 16 output columns of a quantized matrix lie in memory, so that kernels read forward only.
//
//   scales   for each group of 32 inputs: 16 float16 scales, then 16 float16 minimums (Q4_1 only);
//            the whole padded to 64 bytes
//   quants   for each group: 64-byte vectors of (16 columns x 4 inputs)
//              Q4_0, Q4_1   4 vectors; vector v holds inputs 4v..4v+3 in its low nibbles and
//                           16+4v..16+4v+3 in its high ones, as 0..15
//              Q8_0         8 vectors; vector v holds inputs 4v..4v+3, as int8 + 128
//
// Unsigned weights against signed activations is what both vpmaddubsw and vpdpbusd multiply.
#pragma once

#include <cstddef>

#include "kernels/kernel_table.hpp"

namespace headrace {

constexpr std::size_t vector_bytes = 64;

constexpr std::size_t scale_bytes(WeightType type) {   // of one group
  return (type == WeightType::q4_1 ? 2 : 1) * tile_columns * sizeof(std::uint16_t);
}

constexpr std::size_t quant_bytes(WeightType type) {   // of one group
  return vector_bytes * (type == WeightType::q8_0 ? 8 : 4);
}

constexpr std::size_t quants_offset(WeightType type, int groups) {
  return (static_cast<std::size_t>(groups) * scale_bytes(type) + 63) / 64 * 64;
}

// What was added to every stored weight; the kernels take it off by the sum of the activations.
constexpr int weight_offset(WeightType type) {
  return type == WeightType::q4_0 ? 8 : type == WeightType::q8_0 ? 128 : 0;
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

// How far ahead of the multiplication a kernel that reads weights once asks memory for them.
constexpr std::size_t prefetch_bytes = 2048;
constexpr int prefetch_rows_max = 16;   // with more rows the time goes into multiplying

// Asks for one group's lines, `prefetch_bytes` ahead; past the end of a matrix it does no harm.
inline void prefetch_group(const std::uint8_t* quants, std::size_t byte_count) {
#if defined(__GNUC__)
  for (std::size_t line = 0; line < byte_count; line += 64)
    __builtin_prefetch(quants + prefetch_bytes + line, 0, 3);
#endif
}

}  // namespace headrace
