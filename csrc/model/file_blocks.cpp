#include "model/file_blocks.hpp"

#include <bit>
#include <cstring>

#include "base/half.hpp"

namespace headrace {

namespace {

std::uint16_t half_at(const std::uint8_t* data) {
  return static_cast<std::uint16_t>(data[0] | data[1] << 8);
}

float float_at(const std::uint8_t* data) { return float_of_half(half_at(data)); }

std::int16_t code_of(int value) { return static_cast<std::int16_t>(value); }

// 16 bytes of two codes: low nibbles are weights 0..15, high nibbles weights 16..31.
int nibble(const std::uint8_t* bytes, int k) { return k < 16 ? bytes[k] & 15 : bytes[k - 16] >> 4; }

void set_scales(WeightGroup& out, float scale, float minimum) {
  out.scales[0] = out.scales[1] = scale;
  out.minimums[0] = out.minimums[1] = minimum;
}

void decode_q4_0(const std::uint8_t* block, int, WeightGroup& out) {
  out.half_scale = half_at(block);
  for (int k = 0; k < group_values; ++k) out.codes[k] = code_of(nibble(block + 2, k) - 8);
}

void decode_q4_1(const std::uint8_t* block, int, WeightGroup& out) {
  out.half_scale = half_at(block);
  out.half_minimum = half_at(block + 2);
  for (int k = 0; k < group_values; ++k) out.codes[k] = code_of(nibble(block + 4, k));
}

void decode_q8_0(const std::uint8_t* block, int, WeightGroup& out) {
  out.half_scale = half_at(block);
  for (int k = 0; k < group_values; ++k)
    out.codes[k] = static_cast<std::int8_t>(block[2 + k]);
}

// The fifth bits of 32 weights lie in four bytes before their nibbles.
int five_bits(const std::uint8_t* high, int k) {
  return nibble(high + 4, k) | (high[k / 8] >> (k % 8) & 1) << 4;
}

void decode_q5_0(const std::uint8_t* block, int, WeightGroup& out) {
  out.half_scale = half_at(block);
  for (int k = 0; k < group_values; ++k) out.codes[k] = code_of(five_bits(block + 2, k) - 16);
}

void decode_q5_1(const std::uint8_t* block, int, WeightGroup& out) {
  set_scales(out, float_at(block), float_at(block + 2));
  for (int k = 0; k < group_values; ++k) out.codes[k] = code_of(five_bits(block + 4, k));
}

// Unevenly spaced 4-bit values, denser around zero (IQ4_NL, IQ4_XS).
constexpr std::int8_t dense_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

void decode_iq4_nl(const std::uint8_t* block, int, WeightGroup& out) {
  out.half_scale = half_at(block);
  for (int k = 0; k < group_values; ++k) out.codes[k] = dense_values[nibble(block + 2, k)];
}

void decode_iq4_xs(const std::uint8_t* block, int group, WeightGroup& out) {
  const int low = block[4 + group / 2] >> (group % 2 * 4) & 15;
  const int high = half_at(block + 2) >> (group * 2) & 3;
  set_scales(out, float_at(block) * static_cast<float>((low | high << 4) - 32), 0.0f);
  for (int k = 0; k < group_values; ++k)
    out.codes[k] = dense_values[nibble(block + 8 + group * 16, k)];
}

// Twice the values of a 4-bit float with 2 exponent bits; the scale is half a power of two.
constexpr std::int8_t doubled_e2m1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                          0, -1, -2, -3, -4, -6, -8, -12};

void decode_mxfp4(const std::uint8_t* block, int, WeightGroup& out) {
  const std::uint32_t exponent = block[0];
  const std::uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
  set_scales(out, std::bit_cast<float>(bits), 0.0f);
  for (int k = 0; k < group_values; ++k) out.codes[k] = doubled_e2m1[nibble(block + 1, k)];
}

// Q4_K and Q5_K: eight 6-bit scales and minimums in 12 bytes, under two half-precision factors.
void set_super_scales(const std::uint8_t* block, int group, WeightGroup& out) {
  const std::uint8_t* packed = block + 4;
  int scale, minimum;
  if (group < 4) {
    scale = packed[group] & 63;
    minimum = packed[group + 4] & 63;
  } else {
    scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4;
    minimum = packed[group + 4] >> 4 | (packed[group] >> 6) << 4;
  }
  out.half_scale = half_at(block);
  out.half_minimum = half_at(block + 2) ^ 0x8000;   // minimums are taken off
  out.scale_codes[0] = static_cast<std::int8_t>(scale);
  out.minimum_codes[0] = static_cast<std::int8_t>(minimum);
}

void decode_q4_k(const std::uint8_t* block, int group, WeightGroup& out) {
  set_super_scales(block, group, out);
  const std::uint8_t* bytes = block + 16 + group / 2 * 32;
  for (int k = 0; k < group_values; ++k) out.codes[k] = bytes[k] >> (group % 2 * 4) & 15;
}

void decode_q5_k(const std::uint8_t* block, int group, WeightGroup& out) {
  set_super_scales(block, group, out);
  const std::uint8_t* bytes = block + 48 + group / 2 * 32;
  for (int k = 0; k < group_values; ++k)
    out.codes[k] = code_of((bytes[k] >> (group % 2 * 4) & 15) | (block[16 + k] >> group & 1) << 4);
}

void decode_q6_k(const std::uint8_t* block, int group, WeightGroup& out) {
  out.half_scale = half_at(block + 208);
  for (int half = 0; half < 2; ++half)
    out.scale_codes[half] = static_cast<std::int8_t>(block[192 + group * 2 + half]);
  const int quarter = group % 4;   // of the 128 weights that share 64 low and 32 high bytes
  const std::uint8_t* low = block + group / 4 * 64 + quarter % 2 * 32;
  const std::uint8_t* high = block + 128 + group / 4 * 32;
  for (int k = 0; k < group_values; ++k)
    out.codes[k] = code_of(
        ((low[k] >> (quarter / 2 * 4) & 15) | (high[k] >> (quarter * 2) & 3) << 4) - 32);
}

void decode_q2_k(const std::uint8_t* block, int group, WeightGroup& out) {
  const float factor = float_at(block + 80);
  const float minimum_factor = float_at(block + 82);
  for (int half = 0; half < 2; ++half) {
    const int packed = block[group * 2 + half];
    out.scales[half] = factor * static_cast<float>(packed & 15);
    out.minimums[half] = -(minimum_factor * static_cast<float>(packed >> 4));
  }
  const std::uint8_t* bytes = block + 16 + group / 4 * 32;
  for (int k = 0; k < group_values; ++k) out.codes[k] = bytes[k] >> (group % 4 * 2) & 3;
}

// Codes -4..3 become 0..7 under a minimum of -4 scales, which is exact.
void decode_q3_k(const std::uint8_t* block, int group, WeightGroup& out) {
  const float factor = float_at(block + 108);
  const std::uint8_t* packed = block + 96;   // 16 scales: 4 low bits in 8 bytes, 2 high bits in 4
  for (int half = 0; half < 2; ++half) {
    const int index = group * 2 + half;
    const int low = packed[index % 8] >> (index / 8 * 4) & 15;
    const int high = packed[8 + index % 4] >> (index / 4 * 2) & 3;
    out.scales[half] = factor * static_cast<float>((low | high << 4) - 32);
    out.minimums[half] = -4.0f * out.scales[half];
  }
  const std::uint8_t* bytes = block + 32 + group / 4 * 32;
  for (int k = 0; k < group_values; ++k)
    out.codes[k] = code_of((bytes[k] >> (group % 4 * 2) & 3) | (block[k] >> group & 1) << 2);
}

constexpr FileBlock file_blocks[] = {
    {2, WeightType::q4_0, 32, 18, decode_q4_0},
    {3, WeightType::q4_1, 32, 20, decode_q4_1},
    {6, WeightType::q8_0, 32, 22, decode_q5_0},
    {7, WeightType::grid8, 32, 24, decode_q5_1},
    {8, WeightType::q8_0, 32, 34, decode_q8_0},
    {10, WeightType::grid4_halves, 256, 84, decode_q2_k},
    {11, WeightType::grid4_halves, 256, 110, decode_q3_k},
    {12, WeightType::q4_k, 256, 144, decode_q4_k},
    {13, WeightType::q5_k, 256, 176, decode_q5_k},
    {14, WeightType::q6_k, 256, 210, decode_q6_k},
    {20, WeightType::q8_0, 32, 18, decode_iq4_nl},
    {23, WeightType::grid8, 256, 136, decode_iq4_xs},
    {39, WeightType::grid8, 32, 17, decode_mxfp4},
};

}  // namespace

const FileBlock* find_file_block(int ggml_type) {
  for (const FileBlock& block : file_blocks)
    if (block.ggml_type == ggml_type) return &block;
  return nullptr;
}

}  // namespace headrace
