// Rows times one tile of float weights (F32, F16, BF16), laid out as (inputs, 16): every output is
// one chain of multiply-adds over the inputs in order.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/row_blocks.hpp"

namespace headrace {
namespace {

template <class S, WeightType type>
inline typename S::V load_weights(const std::uint8_t* tile, std::size_t index) {
  if constexpr (type == WeightType::f32) {
    return S::load(reinterpret_cast<const float*>(tile) + index);
  } else if constexpr (type == WeightType::f16) {
    return S::load_f16(reinterpret_cast<const std::uint16_t*>(tile) + index);
  } else {
    return S::load_bf16(reinterpret_cast<const std::uint16_t*>(tile) + index);
  }
}

template <class S>
inline void store_tile_vector(typename S::V sum, const TileOutput& output, int row, int column) {
  float* out = output.values + static_cast<std::size_t>(row) * output.stride + column;
  if (output.bias != nullptr) sum = S::add(sum, S::load(output.bias + column));
  if (output.accumulate) sum = S::add(S::load(out), sum);
  S::store(out, sum);
}

template <class S, WeightType type>
void matmul_float(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                  int row_count, const TileOutput& output) {
  constexpr int vectors = tile_columns / S::width;
  for_row_blocks<S::rows>(row_count, [&](auto rows, int block_first) {
    const float* x[rows()];
    typename S::V sums[rows()][vectors];
    for (int r = 0; r < rows(); ++r) {
      x[r] = input.floats + static_cast<std::size_t>(row_first + block_first + r) *
                                input.float_stride;
      for (int j = 0; j < vectors; ++j) sums[r][j] = S::set1(0.0f);
    }
    for (int k = 0; k < input.inputs; ++k) {
      typename S::V weight[vectors];
      for (int j = 0; j < vectors; ++j)
        weight[j] = load_weights<S, type>(tile, static_cast<std::size_t>(k) * tile_columns +
                                                    j * S::width);
      for (int r = 0; r < rows(); ++r) {
        const auto value = S::set1(x[r][k]);
        for (int j = 0; j < vectors; ++j) sums[r][j] = S::fma(value, weight[j], sums[r][j]);
      }
    }
    for (int r = 0; r < rows(); ++r)
      for (int j = 0; j < vectors; ++j)
        store_tile_vector<S>(sums[r][j], output, block_first + r, j * S::width);
  });
}

}  // namespace
}  // namespace headrace
