// The block layouts of quantized tensors in GGUF files, decoded group by group into tile weights.
//
// Every type lands on a tile grid that holds its weights exactly: codes stay integers, and a product
// of a half-precision scale and a small integer fits a float.
//
//   tile type      file types
//   q4_0           Q4_0
//   q4_1           Q4_1
//   q8_0           Q8_0, Q5_0, IQ4_NL
//   q4_k           Q4_K
//   q5_k           Q5_K
//   q6_k           Q6_K
//   grid8          Q5_1, IQ4_XS, MXFP4
//   grid4_halves   Q2_K, Q3_K
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.hpp"

namespace headrace {

// 32 weights of one output: weight = scale * code + minimum, the scale of a half where there are two.
struct WeightGroup {
  std::int16_t codes[group_values];   // without the offset that the tile adds
  std::uint16_t half_scale;           // float16, for q4_0, q4_1, q8_0; of the K types the factor
  std::uint16_t half_minimum;         // float16, for q4_1; of the K types the factor
  std::int8_t scale_codes[2];         // for the K types
  std::int8_t minimum_codes[2];
  float scales[2];                    // for the grids
  float minimums[2];
};

struct FileBlock {
  int ggml_type;
  WeightType tile_type;
  int values;
  std::size_t bytes;
  void (*decode)(const std::uint8_t* block, int group, WeightGroup& out);   // group: of the block
};

// The layout of a quantized GGML type, or null if there is none for it here.
const FileBlock* find_file_block(int ggml_type);

}  // namespace headrace
