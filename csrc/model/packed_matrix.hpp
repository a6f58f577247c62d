// A weight matrix in tiles of 16 outputs (kernels/tile_layout.hpp), made once from the file's rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/buffer.hpp"
#include "kernels/kernel_table.hpp"
#include "model/file_blocks.hpp"

namespace headrace {

// A tensor as it lies in a model file: `outputs` rows of `inputs` values.
struct RawTensor {
  std::string name;
  int ggml_type = 0;
  int outputs = 0;   // 1 for a vector
  int inputs = 0;
  const std::uint8_t* data = nullptr;
  std::size_t byte_count = 0;
};

// The internal type of a GGML type number; ModelFileError naming `tensor` if there is none.
WeightType weight_type_of(int ggml_type, const std::string& tensor);

// Bytes of one row in the file; ModelFileError if `inputs` is no multiple of the type's block.
std::size_t raw_row_bytes(int ggml_type, int inputs, const std::string& tensor);

class PackedMatrix {
 public:
  PackedMatrix() = default;
  explicit PackedMatrix(const RawTensor& raw);   // copies; `raw` may go away afterwards

  WeightType type() const { return type_; }
  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }
  int tile_count() const { return (outputs_ + tile_columns - 1) / tile_columns; }
  const std::uint8_t* tile(int index) const {
    return data_.data() + static_cast<std::size_t>(index) * tile_bytes_;
  }
  std::size_t byte_count() const { return data_.size(); }

  // Row `output` as floats, for embedding look-ups.
  void read_row(int output, float* out) const;   // (inputs,)

 private:
  void pack_float_row(const std::uint8_t* row, int output);
  void pack_quantized_row(const std::uint8_t* row, int ggml_type, int output);
  void pack_scales(std::uint8_t* numbers, std::uint8_t* factors, std::size_t column,
                   const WeightGroup& group) const;

  WeightType type_ = WeightType::f32;
  int outputs_ = 0;
  int inputs_ = 0;
  std::size_t tile_bytes_ = 0;
  Buffer<std::uint8_t> data_;
};

// A tensor as plain floats: norm weights and biases.
Buffer<float> read_vector(const RawTensor& raw, std::size_t padded_count);

}  // namespace headrace
