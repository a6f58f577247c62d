// A weight matrix in tiles of 16 outputs (kernels/tile_layout.hpp), made once from the file's rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/buffer.hpp"
#include "kernels/kernel_table.hpp"
#include "model/file_blocks.hpp"
#include "model/packed_file.hpp"
#include "model/raw_tensor.hpp"

namespace headrace {

// The internal type of a GGML type number; ModelFileError naming `tensor` if there is none.
WeightType weight_type_of(int ggml_type, const std::string& tensor);

// Bytes of one row in the file; ModelFileError if `inputs` is no multiple of the type's block.
std::size_t raw_row_bytes(int ggml_type, int inputs, const std::string& tensor);

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Copies: `raw` may go away afterwards. The tiles are in `file` if there is one, which must stay;
  // what it holds already is not packed again.
  explicit PackedMatrix(const RawTensor& raw, PackedFile* file = nullptr);

  WeightType type() const { return type_; }
  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }
  int tile_count() const { return (outputs_ + tile_columns - 1) / tile_columns; }
  const std::uint8_t* tile(int index) const {
    return data_ + static_cast<std::size_t>(index) * tile_bytes_;
  }
  std::size_t byte_count() const { return tile_bytes_ * static_cast<std::size_t>(tile_count()); }

  // Row `output` as floats, for embedding look-ups.
  void read_row(int output, float* out) const;   // (inputs,)

 private:
  void pack_float_row(const std::uint8_t* row, int output, std::uint8_t* out) const;
  void pack_quantized_row(const std::uint8_t* row, int ggml_type, int output,
                          std::uint8_t* out) const;
  void pack_scales(std::uint8_t* numbers, std::uint8_t* factors, std::size_t column,
                   const WeightGroup& group) const;

  WeightType type_ = WeightType::f32;
  int outputs_ = 0;
  int inputs_ = 0;
  std::size_t tile_bytes_ = 0;
  Buffer<std::uint8_t> owned_;             // the tiles, unless they are in a file
  const std::uint8_t* data_ = nullptr;
};

// Bytes of the tensor's tiles; 0 if no kernel reads its type.
std::size_t packed_bytes(const RawTensor& raw);

// A tensor as plain floats: norm weights and biases.
Buffer<float> read_vector(const RawTensor& raw, std::size_t padded_count);

}  // namespace headrace
