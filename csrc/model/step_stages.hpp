// How stages of a step are cut into units for the team.
#pragma once

#include <algorithm>

namespace headrace {

constexpr int row_block = 128;   // rows whose int16 inputs stay in the L2 cache under a tile
constexpr int unit_columns = 32;   // of a feed-forward unit: one quantization group, two tiles
constexpr int chunks_per_thread = 8;
constexpr int sampled_block = 32;    // rows whose logits are held at once

inline int blocks_of(int count, int block) { return (count + block - 1) / block; }

inline int chunk_of(int count, int threads) {
  return std::max(1, count / (threads * chunks_per_thread));
}

// Of tiles, whose neighbours may be multiplied together: even, or 1.
inline int tile_chunk_of(int count, int threads) {
  const int chunk = chunk_of(count, threads);
  return chunk > 1 ? chunk / 2 * 2 : 1;
}

}  // namespace headrace
