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

// A scale or minimum of a tile, times its factor where it is a code.
float read_number(WeightType type, const std::uint8_t* numbers, std::size_t index,
                  const std::uint8_t* factors, std::size_t column) {
  if (has_coded_scales(type))
    return read_float(WeightType::f16, factors, column) *
           static_cast<float>(static_cast<std::int8_t>(numbers[index]));
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

PackedMatrix::PackedMatrix(const RawTensor& raw, PackedFile* file)
    : type_(weight_type_of(raw.ggml_type, raw.name)), outputs_(raw.outputs), inputs_(raw.inputs) {
  const std::size_t row_bytes = raw_row_bytes(raw.ggml_type, inputs_, raw.name);
  tile_bytes_ = round_up(tile_bytes(type_, inputs_), cache_line_bytes);
  if (file == nullptr) owned_ = Buffer<std::uint8_t>(byte_count());
  std::uint8_t* out = file == nullptr ? owned_.data() : file->take(raw, byte_count());
  data_ = out;
  if (file != nullptr && !file->is_new()) return;
  const RawBytes bytes = raw.bytes(row_bytes * static_cast<std::size_t>(outputs_));
  for (int output = 0; output < outputs_; ++output) {
    const std::uint8_t* row = bytes.data.get() + row_bytes * static_cast<std::size_t>(output);
    is_quantized(type_) ? pack_quantized_row(row, raw.ggml_type, output, out)
                        : pack_float_row(row, output, out);
  }
}

std::size_t packed_bytes(const RawTensor& raw) {
  const bool floats = raw.ggml_type == 0 || raw.ggml_type == 1 || raw.ggml_type == 30;
  if (!floats && find_file_block(raw.ggml_type) == nullptr) return 0;
  const std::size_t tiles = static_cast<std::size_t>((raw.outputs + tile_columns - 1) / tile_columns);
  return tiles * round_up(tile_bytes(weight_type_of(raw.ggml_type, raw.name), raw.inputs),
                          cache_line_bytes);
}

void PackedMatrix::pack_float_row(const std::uint8_t* row, int output, std::uint8_t* out) const {
  const std::size_t size = float_bytes(type_);
  std::uint8_t* tile = out + static_cast<std::size_t>(output / tile_columns) * tile_bytes_;
  const std::size_t column = static_cast<std::size_t>(output % tile_columns);
  for (std::size_t k = 0; k < static_cast<std::size_t>(inputs_); ++k)
    std::memcpy(tile + (k * tile_columns + column) * size, row + k * size, size);
}

void PackedMatrix::pack_quantized_row(const std::uint8_t* row, int ggml_type, int output,
                                      std::uint8_t* out) const {
  const FileBlock& block = *find_file_block(ggml_type);
  const int block_groups = block.values / group_values;
  std::uint8_t* tile = out + static_cast<std::size_t>(output / tile_columns) * tile_bytes_;
  const std::size_t column = static_cast<std::size_t>(output % tile_columns);
  const int groups = inputs_ / group_values;
  WeightGroup group{};
  for (int g = 0; g < groups; ++g) {
    block.decode(row + static_cast<std::size_t>(g / block_groups) * block.bytes, g % block_groups,
                 group);
    pack_scales(tile + scales_offset(type_, g), tile + factors_offset(type_, g), column, group);
    std::uint8_t* quants =
        tile + quants_offset(type_, groups) + static_cast<std::size_t>(g) * quant_bytes(type_);
    const bool nibbles = weight_bits(type_) == 4;
    const int bytes = nibbles ? group_values / 2 : group_values;
    for (int k = 0; k < bytes; ++k) {
      int stored = group.codes[k] + weight_offset(type_);
      if (nibbles) stored |= (group.codes[k + 16] + weight_offset(type_)) << 4;
      quants[quant_offset(type_, k, column)] = static_cast<std::uint8_t>(stored);
    }
  }
}

void PackedMatrix::pack_scales(std::uint8_t* numbers, std::uint8_t* factors, std::size_t column,
                               const WeightGroup& group) const {
  const std::size_t size = scale_number_bytes(type_);
  const bool floats = has_float_scales(type_);
  const bool coded = has_coded_scales(type_);
  if (coded) std::memcpy(factors + column * 2, &group.half_scale, 2);
  if (coded && has_minimum(type_))
    std::memcpy(factors + factor_minimums_offset + column * 2, &group.half_minimum, 2);
  for (std::size_t part = 0; part < static_cast<std::size_t>(scale_parts(type_)); ++part) {
    const void* scale = &group.half_scale;
    const void* minimum = &group.half_minimum;
    if (floats) scale = &group.scales[part], minimum = &group.minimums[part];
    if (coded) scale = &group.scale_codes[part], minimum = &group.minimum_codes[part];
    std::uint8_t* at = numbers + (part * tile_columns + column) * size;
    std::memcpy(at, scale, size);
    if (has_minimum(type_)) std::memcpy(at + minimums_offset(type_), minimum, size);
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
    const std::uint8_t* numbers = tile + scales_offset(type_, g);
    const std::uint8_t* factors = tile + factors_offset(type_, g);
    const std::uint8_t* quants =
        tile + quants_offset(type_, groups) + static_cast<std::size_t>(g) * quant_bytes(type_);
    for (int k = 0; k < group_values; ++k) {
      const int stored = stored_weight(type_, quants[quant_offset(type_, k, column)], k);
      const std::size_t part = scale_parts(type_) == 2 && k >= 16 ? 1 : 0;
      const std::size_t index = part * tile_columns + column;
      const float minimum = has_minimum(type_)
                                ? read_number(type_, numbers + minimums_offset(type_), index,
                                              factors + factor_minimums_offset, column)
                                : 0.0f;
      const float scale = read_number(type_, numbers, index, factors, column);
      out[k] = scale * (static_cast<float>(stored) - offset) + minimum;
    }
  }
}

Buffer<float> read_vector(const RawTensor& raw, std::size_t padded_count) {
  const WeightType type = weight_type_of(raw.ggml_type, raw.name);
  if (is_quantized(type))
    throw ModelFileError("tensor " + raw.name + " must be F32, F16 or BF16");
  const std::size_t count = static_cast<std::size_t>(raw.inputs);
  const RawBytes bytes = raw.bytes(count * float_bytes(type));
  Buffer<float> out(padded_count);
  for (std::size_t i = 0; i < count; ++i) out[i] = read_float(type, bytes.data.get(), i);
  return out;
}

}  // namespace headrace
