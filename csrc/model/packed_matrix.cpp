#include "model/packed_matrix.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "base/half.hpp"
#include "kernels/tile_layout.hpp"
#include "model/file_blocks.hpp"

namespace headrace {

namespace {

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

// A scale or minimum of a tile.
float read_number(WeightType type, const std::uint8_t* numbers, std::size_t index) {
  return read_float(has_float_scales(type) ? WeightType::f32 : WeightType::f16, numbers, index);
}

}  // namespace

WeightType weight_type_of(int ggml_type, const std::string& tensor) {
  switch (ggml_type) {
    case 0:
      return WeightType::f32;
    case 1:
      return WeightType::f16;
    case 30:
      return WeightType::bf16;
    default:
      break;
  }
  const FileBlock* block = find_file_block(ggml_type);
  if (block == nullptr)
    throw ModelFileError("tensor " + tensor + " has GGML type " + std::to_string(ggml_type) +
                         ", which the CPU kernels do not read; use a file with F32, F16, BF16, "
                         "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4 "
                         "weights");
  return block->tile_type;
}

std::size_t raw_row_bytes(int ggml_type, int inputs, const std::string& tensor) {
  const WeightType type = weight_type_of(ggml_type, tensor);
  if (!is_quantized(type)) return static_cast<std::size_t>(inputs) * float_bytes(type);
  const FileBlock& block = *find_file_block(ggml_type);
  if (inputs % block.values != 0)
    throw ModelFileError("tensor " + tensor + " is quantized in blocks of " +
                         std::to_string(block.values) + " but its rows have " +
                         std::to_string(inputs) + " values; the file is corrupt");
  return static_cast<std::size_t>(inputs / block.values) * block.bytes;
}

PackedMatrix::PackedMatrix(const RawTensor& raw)
    : type_(weight_type_of(raw.ggml_type, raw.name)), outputs_(raw.outputs), inputs_(raw.inputs) {
  const std::size_t row_bytes = raw_row_bytes(raw.ggml_type, inputs_, raw.name);
  if (raw.byte_count != row_bytes * static_cast<std::size_t>(outputs_))
    throw ModelFileError("tensor " + raw.name + " has " + std::to_string(raw.byte_count) +
                         " bytes where its shape needs " +
                         std::to_string(row_bytes * static_cast<std::size_t>(outputs_)));
  tile_bytes_ = round_up(tile_bytes(type_, inputs_), cache_line_bytes);
  data_ = Buffer<std::uint8_t>(tile_bytes_ * static_cast<std::size_t>(tile_count()));
  for (int output = 0; output < outputs_; ++output) {
    const std::uint8_t* row = raw.data + row_bytes * static_cast<std::size_t>(output);
    is_quantized(type_) ? pack_quantized_row(row, raw.ggml_type, output)
                        : pack_float_row(row, output);
  }
}

void PackedMatrix::pack_float_row(const std::uint8_t* row, int output) {
  const std::size_t size = float_bytes(type_);
  std::uint8_t* tile = data_.data() + static_cast<std::size_t>(output / tile_columns) * tile_bytes_;
  const std::size_t column = static_cast<std::size_t>(output % tile_columns);
  for (std::size_t k = 0; k < static_cast<std::size_t>(inputs_); ++k)
    std::memcpy(tile + (k * tile_columns + column) * size, row + k * size, size);
}

void PackedMatrix::pack_quantized_row(const std::uint8_t* row, int ggml_type, int output) {
  const FileBlock& block = *find_file_block(ggml_type);
  const int block_groups = block.values / group_values;
  std::uint8_t* tile = data_.data() + static_cast<std::size_t>(output / tile_columns) * tile_bytes_;
  const std::size_t column = static_cast<std::size_t>(output % tile_columns);
  const int groups = inputs_ / group_values;
  WeightGroup group{};
  for (int g = 0; g < groups; ++g) {
    block.decode(row + static_cast<std::size_t>(g / block_groups) * block.bytes, g % block_groups,
                 group);
    pack_scales(tile + static_cast<std::size_t>(g) * scale_bytes(type_), column, group);
    std::uint8_t* quants =
        tile + quants_offset(type_, groups) + static_cast<std::size_t>(g) * quant_bytes(type_);
    const bool nibbles = weight_bits(type_) == 4;
    const std::size_t bytes = nibbles ? group_values / 2 : group_values;
    for (std::size_t k = 0; k < bytes; ++k) {
      int stored = group.codes[k] + weight_offset(type_);
      if (nibbles) stored |= (group.codes[k + 16] + weight_offset(type_)) << 4;
      quants[k / 4 * vector_bytes + column * 4 + k % 4] = static_cast<std::uint8_t>(stored);
    }
  }
}

void PackedMatrix::pack_scales(std::uint8_t* numbers, std::size_t column,
                               const WeightGroup& group) const {
  std::uint8_t* minimums = numbers + minimums_offset(type_);
  const std::size_t size = scale_number_bytes(type_);
  for (std::size_t part = 0; part < static_cast<std::size_t>(scale_parts(type_)); ++part) {
    const std::size_t at = (part * tile_columns + column) * size;
    const bool floats = has_float_scales(type_);
    const void* scale = floats ? static_cast<const void*>(&group.scales[part]) : &group.half_scale;
    std::memcpy(numbers + at, scale, size);
    const void* minimum =
        floats ? static_cast<const void*>(&group.minimums[part]) : &group.half_minimum;
    if (has_minimum(type_)) std::memcpy(minimums + at, minimum, size);
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
    const std::uint8_t* numbers = tile + static_cast<std::size_t>(g) * scale_bytes(type_);
    const std::uint8_t* quants =
        tile + quants_offset(type_, groups) + static_cast<std::size_t>(g) * quant_bytes(type_);
    for (std::size_t k = 0; k < group_values; ++k) {
      const bool high = weight_bits(type_) == 4 && k >= 16;
      const std::size_t step = high ? k - 16 : k;
      const int byte = quants[step / 4 * vector_bytes + column * 4 + step % 4];
      const int stored = weight_bits(type_) == 8 ? byte : high ? byte >> 4 : byte & 15;
      const std::size_t part = scale_parts(type_) == 2 && k >= 16 ? 1 : 0;
      const std::size_t index = part * tile_columns + column;
      const float minimum =
          has_minimum(type_) ? read_number(type_, numbers + minimums_offset(type_), index) : 0.0f;
      out[k] = read_number(type_, numbers, index) * (static_cast<float>(stored) - offset) + minimum;
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
