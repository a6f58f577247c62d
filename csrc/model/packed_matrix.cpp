#include "model/packed_matrix.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "base/half.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {

namespace {

constexpr std::size_t half_bytes = sizeof(std::uint16_t);

std::size_t raw_block_bytes(WeightType type) {   // of 32 quantized values
  switch (type) {
    case WeightType::q4_0:
      return 18;
    case WeightType::q4_1:
      return 20;
    default:
      return 34;
  }
}

std::size_t float_bytes(WeightType type) { return type == WeightType::f32 ? 4 : 2; }

float read_float(WeightType type, const std::uint8_t* data, std::size_t index) {
  if (type == WeightType::f32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return type == WeightType::f16 ? float_of_half(bits) : float_of_bfloat16(bits);
}

float read_half(const std::uint8_t* data) { return read_float(WeightType::f16, data, 0); }

}  // namespace

WeightType weight_type_of(int ggml_type, const std::string& tensor) {
  switch (ggml_type) {
    case 0:
      return WeightType::f32;
    case 1:
      return WeightType::f16;
    case 30:
      return WeightType::bf16;
    case 2:
      return WeightType::q4_0;
    case 3:
      return WeightType::q4_1;
    case 8:
      return WeightType::q8_0;
    default:
      throw ModelFileError("tensor " + tensor + " has GGML type " + std::to_string(ggml_type) +
                           ", which the CPU kernels do not read; use a file with F32, F16, BF16, "
                           "Q4_0, Q4_1 or Q8_0 weights");
  }
}

std::size_t raw_row_bytes(WeightType type, int inputs, const std::string& tensor) {
  if (!is_quantized(type)) return static_cast<std::size_t>(inputs) * float_bytes(type);
  if (inputs % group_values != 0)
    throw ModelFileError("tensor " + tensor + " is quantized in blocks of 32 but its rows have " +
                         std::to_string(inputs) + " values; the file is corrupt");
  return static_cast<std::size_t>(inputs / group_values) * raw_block_bytes(type);
}

PackedMatrix::PackedMatrix(const RawTensor& raw)
    : type_(weight_type_of(raw.ggml_type, raw.name)), outputs_(raw.outputs), inputs_(raw.inputs) {
  const std::size_t row_bytes = raw_row_bytes(type_, inputs_, raw.name);
  if (raw.byte_count != row_bytes * static_cast<std::size_t>(outputs_))
    throw ModelFileError("tensor " + raw.name + " has " + std::to_string(raw.byte_count) +
                         " bytes where its shape needs " +
                         std::to_string(row_bytes * static_cast<std::size_t>(outputs_)));
  tile_bytes_ = round_up(tile_bytes(type_, inputs_), cache_line_bytes);
  data_ = Buffer<std::uint8_t>(tile_bytes_ * static_cast<std::size_t>(tile_count()));
  for (int output = 0; output < outputs_; ++output) {
    const std::uint8_t* row = raw.data + row_bytes * static_cast<std::size_t>(output);
    is_quantized(type_) ? pack_quantized_row(row, output) : pack_float_row(row, output);
  }
}

void PackedMatrix::pack_float_row(const std::uint8_t* row, int output) {
  const std::size_t size = float_bytes(type_);
  std::uint8_t* tile = data_.data() + static_cast<std::size_t>(output / tile_columns) * tile_bytes_;
  const std::size_t column = static_cast<std::size_t>(output % tile_columns);
  for (std::size_t k = 0; k < static_cast<std::size_t>(inputs_); ++k)
    std::memcpy(tile + (k * tile_columns + column) * size, row + k * size, size);
}

void PackedMatrix::pack_quantized_row(const std::uint8_t* row, int output) {
  const int groups = inputs_ / group_values;
  std::uint8_t* tile = data_.data() + static_cast<std::size_t>(output / tile_columns) * tile_bytes_;
  const std::size_t column = static_cast<std::size_t>(output % tile_columns);
  const bool has_minimum = type_ == WeightType::q4_1;
  const std::size_t header = (has_minimum ? 2 : 1) * half_bytes;
  for (int g = 0; g < groups; ++g, row += raw_block_bytes(type_)) {
    std::uint8_t* scales = tile + static_cast<std::size_t>(g) * scale_bytes(type_);
    std::memcpy(scales + column * half_bytes, row, half_bytes);
    if (has_minimum)
      std::memcpy(scales + (tile_columns + column) * half_bytes, row + half_bytes, half_bytes);
    std::uint8_t* quants =
        tile + quants_offset(type_, groups) + static_cast<std::size_t>(g) * quant_bytes(type_);
    const int vectors = static_cast<int>(quant_bytes(type_) / vector_bytes);
    const std::uint8_t flip = type_ == WeightType::q8_0 ? 0x80 : 0;   // int8 to int8 + 128
    for (int v = 0; v < vectors; ++v)   // the file's nibble order is the tile's: low 0-15, high 16-31
      for (int j = 0; j < 4; ++j)
        quants[static_cast<std::size_t>(v) * vector_bytes + column * 4 + static_cast<std::size_t>(j)] =
            row[header + static_cast<std::size_t>(v * 4 + j)] ^ flip;
  }
}

void PackedMatrix::read_row(int output, float* out) const {
  const std::uint8_t* tile = this->tile(output / tile_columns);
  const std::size_t column = static_cast<std::size_t>(output % tile_columns);
  if (!is_quantized(type_)) {
    for (std::size_t k = 0; k < static_cast<std::size_t>(inputs_); ++k)
      out[k] = read_float(type_, tile, k * tile_columns + column);
    return;
  }
  const int groups = inputs_ / group_values;
  const float offset = static_cast<float>(weight_offset(type_));
  for (int g = 0; g < groups; ++g, out += group_values) {
    const std::uint8_t* scales = tile + static_cast<std::size_t>(g) * scale_bytes(type_);
    const float scale = read_half(scales + column * half_bytes);
    const float minimum = type_ == WeightType::q4_1
                              ? read_half(scales + (tile_columns + column) * half_bytes)
                              : 0.0f;
    const std::uint8_t* quants =
        tile + quants_offset(type_, groups) + static_cast<std::size_t>(g) * quant_bytes(type_);
    const int vectors = static_cast<int>(quant_bytes(type_) / vector_bytes);
    for (int k = 0; k < vectors * 4; ++k) {
      const int stored = quants[static_cast<std::size_t>(k / 4) * vector_bytes + column * 4 +
                                static_cast<std::size_t>(k % 4)];
      if (type_ == WeightType::q8_0) {
        out[k] = scale * (static_cast<float>(stored) - offset);
      } else {
        out[k] = scale * (static_cast<float>(stored & 15) - offset) + minimum;
        out[k + 16] = scale * (static_cast<float>(stored >> 4) - offset) + minimum;
      }
    }
  }
}

Buffer<float> read_vector(const RawTensor& raw, std::size_t padded_count) {
  const WeightType type = weight_type_of(raw.ggml_type, raw.name);
  if (is_quantized(type))
    throw ModelFileError("tensor " + raw.name + " must be F32, F16 or BF16");
  const std::size_t count = static_cast<std::size_t>(raw.inputs);
  if (raw.byte_count != count * float_bytes(type))
    throw ModelFileError("tensor " + raw.name + " has " + std::to_string(raw.byte_count) +
                         " bytes where its shape needs " +
                         std::to_string(count * float_bytes(type)));
  Buffer<float> out(padded_count);
  for (std::size_t i = 0; i < count; ++i) out[i] = read_float(type, raw.data, i);
  return out;
}

}  // namespace headrace
