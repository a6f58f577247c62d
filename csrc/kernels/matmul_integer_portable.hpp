// Rows times one tile of quantized weights in plain C++: the meaning of the integer kernels.
#pragma once

#include <cstring>

#include "base/half.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/simd_portable.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

// Exact integer dot products of inputs [first, end) of one group with all 16 columns.
template <WeightType type>
inline void dot_inputs_portable(const std::uint8_t* quants, const std::int16_t* x, int first,
                                int end, std::int32_t* sums) {
  for (int column = 0; column < tile_columns; ++column) sums[column] = 0;
  for (int k = first; k < end; ++k) {
    const bool high = weight_bits(type) == 4 && k >= 16;
    const int step = high ? k - 16 : k;
    const std::uint8_t* stored = quants + step / 4 * vector_bytes + step % 4;
    for (int column = 0; column < tile_columns; ++column) {
      const int byte = stored[column * 4];
      const int code = weight_bits(type) == 8 ? byte : high ? byte >> 4 : byte & 15;
      sums[column] += (code - weight_offset(type)) * x[stored_position(k)];
    }
  }
}

template <WeightType type>
inline float read_scale(const std::uint8_t* numbers, int index) {
  if constexpr (has_float_scales(type)) {
    float value;
    std::memcpy(&value, numbers + index * 4, 4);
    return value;
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, numbers + index * 2, 2);
    return float_of_half(bits);
  }
}

template <WeightType type>
void matmul_integer_portable(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                          int row_count, const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  for (int r = 0; r < row_count; ++r) {
    const std::size_t row = static_cast<std::size_t>(row_first + r);
    const std::int16_t* x = input.values + row * input.inputs;
    const GroupScale* scales = input.scales + row * groups;
    float sums[tile_columns] = {};
    for (int g = 0; g < groups; ++g) {
      const std::uint8_t* group_scales = tile + g * scale_bytes(type);
      constexpr int part_inputs = group_values / scale_parts(type);
      for (int part = 0; part < scale_parts(type); ++part) {
        std::int32_t dots[tile_columns];
        dot_inputs_portable<type>(quants + g * quant_bytes(type), x + g * group_values,
                                  part * part_inputs, (part + 1) * part_inputs, dots);
        for (int c = 0; c < tile_columns; ++c) {
          sums[c] += static_cast<float>(dots[c]) *
                     (read_scale<type>(group_scales, part * tile_columns + c) * scales[g].scale);
          if constexpr (has_minimum(type))
            sums[c] += read_scale<type>(group_scales + minimums_offset(type),
                                        part * tile_columns + c) *
                       minimum_factor<type>(scales[g], part);
        }
      }
    }
    SimdPortable::V halves[2] = {SimdPortable::load(sums), SimdPortable::load(sums + 8)};
    store_tile_vector<SimdPortable>(halves[0], output, r, 0);
    store_tile_vector<SimdPortable>(halves[1], output, r, 8);
  }
}

}  // namespace
}  // namespace headrace
