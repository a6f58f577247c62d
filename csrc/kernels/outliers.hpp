// Adds the products of a row's outlier activations, which the integer kernels left out.
#pragma once

#include <bit>

#include "kernels/kernel_table.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

// sums (of the tile's columns from `column` on, `vectors` registers) += outliers x weights.
template <class S, WeightType type, int vectors>
inline void add_outliers(const std::uint8_t* tile, int groups, const ActivationRows& input,
                         std::size_t row, int column, typename S::V* sums) {
  const std::uint8_t* flags = input.outlier_flags + row * input.flag_stride;
  const Outlier* outliers = input.outliers + row * static_cast<std::size_t>(groups);
  const auto offset = S::set1(static_cast<float>(weight_offset(type)));
  for (int base = 0; base < groups; base += 32) {
    for (std::uint32_t mask = S::top_bits(flags + base); mask != 0; mask &= mask - 1) {
      const int g = base + std::countr_zero(mask);
      const int position = outliers[g].position;
      const bool high = weight_bits(type) == 4 && position >= 16;
      const int part = scale_parts(type) == 2 && position >= 16 ? 1 : 0;
      const int step = high ? position - 16 : position;
      const int shift = step % 4 * 8 + (high ? 4 : 0);
      const std::uint8_t* quants = tile + quants_offset(type, groups) + g * quant_bytes(type) +
                                   step / 4 * vector_bytes + column * 4;
      const std::uint8_t* scales = tile + g * scale_bytes(type);
      const auto value = S::set1(outliers[g].value);
      for (int j = 0; j < vectors; ++j) {
        const auto scale = load_scale<S, type>(scales, part, column + j * S::width);
        auto weight = S::load_bits(quants + j * S::width * 4, shift,
                                   weight_bits(type) == 8 ? 255 : 15);
        if constexpr (weight_offset(type) != 0) weight = S::sub(weight, offset);
        if constexpr (has_minimum(type)) {
          const auto minimum = load_minimum<S, type>(scales, part, column + j * S::width);
          weight = S::fma(scale, weight, minimum);
        } else {
          weight = S::mul(scale, weight);
        }
        sums[j] = S::fma(value, weight, sums[j]);
      }
    }
  }
}

}  // namespace
}  // namespace headrace
