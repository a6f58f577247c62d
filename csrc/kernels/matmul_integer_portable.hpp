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

// A row's groups of integers, and their scales.
template <class Integer>
struct IntegerRow {
  const Integer* values;
  const GroupScale* scales;
  const Integer* group(int g) const { return values + g * group_values; }
  GroupScale scale(int g) const { return scales[g]; }
};

// A row of fours as 16-bit integers.
struct FoursRow {
  const ScaledFours* groups;
  std::int16_t integers[group_values];
  const std::int16_t* group(int g) {
    for (int k = 0; k < group_values; ++k)
      integers[stored_position(k)] = static_cast<std::int16_t>(groups[g].bytes[position_in_fours(k)] *
                                                               groups[g].multipliers[k / 4]);
    return integers;
  }
  GroupScale scale(int g) const {
    const ScaledFours& from = groups[g];
    return {from.scale, from.scaled_sum, from.start_of(0) / -four_weight_offset,
            from.start_of(1) / -four_weight_offset, 0, 0, 0};
  }
};

// row_at(r): the row r from here on.
template <WeightType type, class RowAt>
inline void multiply_portable(const std::uint8_t* tile, RowAt row_at, int inputs, int row_count,
                              const TileOutput& output) {
  const int groups = inputs / group_values;
  const std::uint8_t* quants = tile + quants_offset(type, groups);
  for (int r = 0; r < row_count; ++r) {
    auto row = row_at(static_cast<std::size_t>(r));
    float sums[tile_columns] = {};
    for (int g = 0; g < groups; ++g) {
      const GroupScales group_scales = scales_of<type>(tile, g);
      const auto* x = row.group(g);
      const GroupScale row_scale = row.scale(g);
      constexpr int part_inputs = group_values / scale_parts(type);
      for (int part = 0; part < scale_parts(type); ++part) {
        std::int32_t dots[tile_columns];
        dot_inputs_portable<type>(quants + g * quant_bytes(type), x, part * part_inputs,
                                  (part + 1) * part_inputs, dots);
        float scale[tile_columns], minimum[tile_columns];
        for (int c = 0; c < tile_columns; c += SimdPortable::width) {
          SimdPortable::store(scale + c, load_scale<SimdPortable, type>(group_scales, part, c));
          if constexpr (has_minimum(type))
            SimdPortable::store(minimum + c,
                                load_minimum<SimdPortable, type>(group_scales, part, c));
        }
        for (int c = 0; c < tile_columns; ++c) {
          sums[c] += static_cast<float>(dots[c]) * (scale[c] * row_scale.scale);
          if constexpr (has_minimum(type)) sums[c] += minimum[c] * minimum_factor<type>(row_scale, part);
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
  const std::size_t inputs = static_cast<std::size_t>(input.inputs);
  multiply_portable<type>(
      tile,
      [&](std::size_t r) {
        const std::size_t row = static_cast<std::size_t>(row_first) + r;
        return IntegerRow<std::int16_t>{input.values + row * inputs,
                                        input.scales + row * (inputs / group_values)};
      },
      input.inputs, row_count, output);
}

template <WeightType type>
void matmul_bytes_portable(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                           int row_count, const TileOutput& output) {
  const std::size_t inputs = static_cast<std::size_t>(input.inputs);
  multiply_portable<type>(
      tile,
      [&](std::size_t r) {
        const std::size_t row = static_cast<std::size_t>(row_first) + r;
        return IntegerRow<std::int8_t>{input.bytes + row * inputs,
                                       input.byte_scales + row * (inputs / group_values)};
      },
      input.inputs, row_count, output);
}

template <WeightType type>
void matmul_fours_portable(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                           int row_count, const TileOutput& output) {
  const std::size_t groups = static_cast<std::size_t>(input.inputs / group_values);
  multiply_portable<type>(
      tile,
      [&](std::size_t r) {
        return FoursRow{input.fours + (static_cast<std::size_t>(row_first) + r) * groups, {}};
      },
      input.inputs, row_count, output);
}

}  // namespace
}  // namespace headrace
