// Rows times one tile of quantized weights in plain C++: the meaning of the integer kernels.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/simd_portable.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

// Where input k of a group lies in a row of 16-bit integers, or of bytes.
constexpr int position_in_row(const std::int16_t*, int k) { return stored_position(k); }
constexpr int position_in_row(const std::int8_t*, int k) { return k; }

// Exact integer dot products of inputs [first, end) of one group with all 16 columns.
template <WeightType type, class Integer>
inline void dot_inputs_portable(const std::uint8_t* quants, const Integer* x, int first, int end,
                                std::int32_t* sums) {
  for (int column = 0; column < tile_columns; ++column) sums[column] = 0;
  for (int k = first; k < end; ++k)
    for (int column = 0; column < tile_columns; ++column) {
      const std::uint8_t byte = quants[quant_offset(type, k, static_cast<std::size_t>(column))];
      sums[column] += (stored_weight(type, byte, k) - weight_offset(type)) * x[position_in_row(x, k)];
    }
}

// Of rows whose integers and their scales are these.
template <WeightType type, class Integer>
inline void multiply_portable(const std::uint8_t* tile, const Integer* values,
                              const GroupScale* row_scales, int inputs, int row_first,
                              int row_count, const TileOutput& output) {
  const int groups = inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  for (int r = 0; r < row_count; ++r) {
    const std::size_t row = static_cast<std::size_t>(row_first + r);
    const Integer* x = values + row * inputs;
    const GroupScale* scales = row_scales + row * groups;
    float sums[tile_columns] = {};
    for (int g = 0; g < groups; ++g) {
      const GroupScales group_scales = scales_of<type>(tile, g);
      constexpr int part_inputs = group_values / scale_parts(type);
      for (int part = 0; part < scale_parts(type); ++part) {
        std::int32_t dots[tile_columns];
        dot_inputs_portable<type>(quants + g * quant_bytes(type), x + g * group_values,
                                  part * part_inputs, (part + 1) * part_inputs, dots);
        float scale[tile_columns], minimum[tile_columns];
        for (int c = 0; c < tile_columns; c += SimdPortable::width) {
          SimdPortable::store(scale + c, load_scale<SimdPortable, type>(group_scales, part, c));
          if constexpr (has_minimum(type))
            SimdPortable::store(minimum + c,
                                load_minimum<SimdPortable, type>(group_scales, part, c));
        }
        for (int c = 0; c < tile_columns; ++c) {
          sums[c] += static_cast<float>(dots[c]) * (scale[c] * scales[g].scale);
          if constexpr (has_minimum(type)) sums[c] += minimum[c] * minimum_factor<type>(scales[g], part);
        }
      }
    }
    SimdPortable::V halves[2] = {SimdPortable::load(sums), SimdPortable::load(sums + 8)};
    store_tile_vector<SimdPortable>(halves[0], output, r, 0);
    store_tile_vector<SimdPortable>(halves[1], output, r, 8);
  }
}

template <WeightType type>
void matmul_integer_portable(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                             int row_count, const TileOutput& output) {
  multiply_portable<type>(tile, input.values, input.scales, input.inputs, row_first, row_count,
                          output);
}

template <WeightType type>
void matmul_bytes_portable(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                           int row_count, const TileOutput& output) {
  multiply_portable<type>(tile, input.bytes, input.byte_scales, input.inputs, row_first, row_count,
                          output);
}

}  // namespace
}  // namespace headrace
