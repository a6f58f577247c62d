// Rows times tiles of a matrix: one tile, or two neighbours at once where the kernels have that.
#pragma once

#include "model/packed_matrix.hpp"

namespace headrace {

// How many of the `count` tiles that are left to somebody one call takes: 2 or 1.
inline int tiles_at_once(const KernelTable& kernels, const PackedMatrix& matrix, int count) {
  const bool pairs = kernels.matmul_pair[static_cast<int>(matrix.type())] != nullptr;
  return pairs && count > 1 ? 2 : 1;
}

// Of tiles [tile, tile + width), a width that tiles_at_once gave; `output` is the first one's.
inline void multiply_tiles(const KernelTable& kernels, const PackedMatrix& matrix, int tile,
                           int width, const ActivationRows& rows, int row_first, int row_count,
                           const TileOutput& output) {
  const auto& products = width == 2 ? kernels.matmul_pair : kernels.matmul;
  products[static_cast<int>(matrix.type())](matrix.tile(tile), rows, row_first, row_count, output);
}

}  // namespace headrace
