// Rows times one tile of quantized weights in plain C++: the meaning of the integer kernels.
#pragma once

#include <cstring>

#include "base/half.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/matmul_float.hpp"
#include "kernels/outliers.hpp"
#include "kernels/simd_portable.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

// Exact integer dot products of one group with all 16 columns.
template <WeightType type>
inline void dot_group_portable(const std::uint8_t* quants, const std::int8_t* x,
                               std::int32_t offset, std::int32_t* sums) {
  for (int column = 0; column < tile_columns; ++column) sums[column] = -offset;
  constexpr int vectors = static_cast<int>(quant_bytes(type) / vector_bytes);
  for (int v = 0; v < vectors; ++v) {
    for (int column = 0; column < tile_columns; ++column) {
      for (int j = 0; j < 4; ++j) {
        const int stored = quants[v * vector_bytes + column * 4 + j];
        if constexpr (type == WeightType::q8_0) {
          sums[column] += stored * x[v * 4 + j];
        } else {
          sums[column] += (stored & 15) * x[v * 4 + j] + (stored >> 4) * x[16 + v * 4 + j];
        }
      }
    }
  }
}

template <WeightType type>
void matmul_int8_portable(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                          int row_count, const TileOutput& output) {
  const int groups = input.inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  for (int r = 0; r < row_count; ++r) {
    const std::size_t row = static_cast<std::size_t>(row_first + r);
    const std::int8_t* x = input.values + row * input.inputs;
    const GroupScale* scales = input.scales + row * groups;
    float sums[tile_columns] = {};
    for (int g = 0; g < groups; ++g) {
      std::uint16_t weight_scales[2 * tile_columns];
      std::memcpy(weight_scales, tile + g * scale_bytes(type), scale_bytes(type));
      std::int32_t dots[tile_columns];
      dot_group_portable<type>(quants + g * quant_bytes(type), x + g * group_values,
                               weight_offset(type) * scales[g].sum, dots);
      for (int c = 0; c < tile_columns; ++c) {
        sums[c] += static_cast<float>(dots[c]) * (float_of_half(weight_scales[c]) * scales[g].scale);
        if constexpr (type == WeightType::q4_1)
          sums[c] += float_of_half(weight_scales[tile_columns + c]) * scales[g].scaled_sum;
      }
    }
    SimdPortable::V halves[2] = {SimdPortable::load(sums), SimdPortable::load(sums + 8)};
    add_outliers<SimdPortable, type, 2>(tile, groups, input, row, 0, halves);
    store_tile_vector<SimdPortable>(halves[0], output, r, 0);
    store_tile_vector<SimdPortable>(halves[1], output, r, 8);
  }
}

}  // namespace
}  // namespace headrace
