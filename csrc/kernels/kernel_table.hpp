// The seam between the model and the instruction set: every kernel as a function pointer, one table
// for each ISA. The same source, compiled per ISA, fills most of it (elementwise.hpp, attention.hpp,
// matmul_float.hpp); only the integer matrix kernels are written by hand for each.
//
// Numbers of one row never depend on which other rows are computed with it: every sum runs in an
// order that is fixed by the row's own data. That is what makes answers independent of the batch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

constexpr int tile_columns = 16;     // outputs of a weight tile; one AVX-512 or two AVX2 registers
constexpr int group_values = 32;     // values that share a quantization scale
constexpr int block_tokens = 16;     // tokens of a KV block
constexpr int split_tokens = 256;    // context that one softmax pass covers; partial results merge
constexpr int query_rows_max = 32;   // query rows (tokens x heads of a group) of one attention tile
constexpr int head_dim_max = 256;
constexpr int ahead_blocks = 4;      // how far ahead of its use attention asks for a block

// How a matrix lies in memory. The last two are grids that hold many of the files' types exactly:
// float scales, a scale for 32 or (halves) for 16 weights (model/file_blocks.hpp).
enum class WeightType : int {
  f32, f16, bf16, q4_0, q4_1, q8_0, q4_k, q5_k, q6_k, grid8, grid4_halves
};
constexpr int weight_type_count = 11;

constexpr bool is_quantized(WeightType type) { return type >= WeightType::q4_0; }

// What dequantizes one group of 32 activations: value = scale * int16, or int8.
struct GroupScale {
  float scale;
  float scaled_sum;   // scale * sum of the integers, for weights with a minimum
  std::int32_t first_sum;    // of the first 16 integers, for weights with a scale for each half
  std::int32_t second_sum;   // of the others
  std::int32_t offset_sum;   // -stored_offset * sum, where products with such weights start
  std::int32_t pair_sum;     // of x0 * x1 + x2 * x3 + .. modulo 2^32, where kernels multiply sums
                             // (matmul_wide_avx512.hpp); elsewhere 0
  std::int32_t first_pair_sum;

  constexpr std::int32_t part_sum(int part) const { return part == 0 ? first_sum : second_sum; }
};

constexpr int stored_offset = 8;   // what types without a minimum but with unsigned weights add

constexpr GroupScale group_scale(float scale, std::int32_t first_sum, std::int32_t second_sum) {
  const std::int32_t sum = first_sum + second_sum;
  return {scale, scale * static_cast<float>(sum), first_sum, second_sum, -stored_offset * sum, 0, 0};
}

// Where input k of each four lies in a quantized row. On x86: pairs of inputs (0, 2) and (1, 3), which
// are what falls out of a weight vector's 16-bit lanes (tile_layout.hpp). On ARM: in order.
#if defined(__aarch64__) || defined(_M_ARM64)
constexpr bool inputs_in_pairs = false;
#else
constexpr bool inputs_in_pairs = true;
#endif
constexpr int stored_position(int k) {
  return inputs_in_pairs ? (k & ~3) | (k & 1) << 1 | (k >> 1 & 1) : k;
}
constexpr int group_pairs = group_values / 2;

// The largest quantized value: with it a group of 6-bit weights times their codes (32 * 32 * 128) still sums
// up in 32 bits, and two signed bytes hold it as 256 * high + low. A group's scale is the least power of two
// that keeps it to that, so that values have 14 bits and a sign, or the last of them less; one whose values
// are all below quantized_least counts as zeros.
constexpr float quantized_peak = 16383;
constexpr float quantized_least = 1e-18f;

constexpr int byte_peak = 127;   // the same of activations of 8 bits

// A group of 32 activations as signed bytes, each four inputs with a multiplier of their own:
// value = scale * multiplier * byte. Beside weights of 8 bits (matmul_fours_avx2.hpp).
struct alignas(64) ScaledFours {
  std::int8_t bytes[group_values];   // of each 8 inputs those with even numbers, then the others
  std::int16_t multipliers[group_values / 4];
  float scale;                // a power of two
  float scaled_sum;           // of all values, for weights with a minimum
  std::int32_t start;         // -four_weight_offset * sum of multiplier * byte, where sums of products start
  std::int32_t second_start;  // the same of inputs 16..31

  constexpr std::int32_t start_of(int part) const { return part == 0 ? start - second_start : second_start; }
};
static_assert(sizeof(ScaledFours) == 64, "a group is one line of a cache");

// Those weights are multiplied as unsigned bytes, weight + 128, four at a time in 16 bits. So of each four
// neither the positive bytes nor the negative ones may sum up to more than 128: 128 * 255 < 2^15.
// A multiplier is the least with sums of four_peak, to which rounding may add two.
constexpr int four_weight_offset = 128;
constexpr int four_peak = 126;

// Where input k of a group lies in ScaledFours::bytes.
constexpr int position_in_fours(int k) { return (k & ~7) | (k & 1) << 2 | (k >> 1 & 3); }

// One row's quantized form, to write.
struct QuantizedRow {
  std::int16_t* values;   // in stored order, or as the table's own kernels want them
  GroupScale* scales;
};

// The rows of a matrix product's input, in one or more forms. Sixteen bits lose nothing that shows
// (KL to float activations about 1e-6). Eight, in groups of 32, let single prompts stray to 1e-3, and
// are multiplied with weights of 4 bits unless somebody wants 16 (KernelTable::activation_bits); in fours
// they lose less than half as much, and are multiplied with weights of 8 bits where that is faster.
struct ActivationRows {
  const std::int16_t* values = nullptr;  // (rows, inputs)
  const GroupScale* scales = nullptr;    // (rows, inputs / 32)
  const float* floats = nullptr;         // (rows, float_stride)
  std::size_t float_stride = 0;
  int inputs = 0;
  const std::int8_t* bytes = nullptr;         // (rows, inputs), in order
  const GroupScale* byte_scales = nullptr;    // (rows, inputs / 32)
  bool shifts = false;   // no scale of `scales` or `fours` is above 1 or no number
  const ScaledFours* fours = nullptr;         // (rows, inputs / 32)
};

// Where a tile's (rows, 16) results go: out = or += product + bias.
struct TileOutput {
  float* values = nullptr;
  std::size_t stride = 0;        // floats from one row to the next
  const float* bias = nullptr;   // (16,) or none
  bool accumulate = false;
};

// Where the results of the tile behind it go, side by side.
inline TileOutput second_tile(const TileOutput& first) {
  return {first.values + tile_columns, first.stride,
          first.bias == nullptr ? nullptr : first.bias + tile_columns, first.accumulate};
}

using MatmulTile = void (*)(const std::uint8_t* tile, const ActivationRows& input, int row_first,
                            int row_count, const TileOutput& output);

// How keys and values are kept: float16, or int8 with one scale a token and head.
enum class KvType : int { f16, q8 };

// One kv head's paged attention for up to 32 query rows over splits of its context.
struct AttentionTile {
  const std::uint16_t* keys;     // block b: keys + b * block_stride, (head_dim, 16) float16 or int8
  const std::uint16_t* values;   // block b: values + b * block_stride, (16, head_dim), the same
  std::size_t block_stride;
  const std::int32_t* block_table;
  int head_dim;
  int query_count;
  const float* queries[query_rows_max];   // (head_dim,) each, rotated and scaled
  int visible[query_rows_max];            // tokens that the row may see: its position + 1
  float* scores;                          // scratch (query_rows_max, split_tokens)
  float* split_mix;                       // scratch (query_rows_max, head_dim)
  int window_first[query_rows_max];       // attend_masked only: the first token that the row sees
  float softcap;                          // attend_masked only: scores stay below it, 0 is off
  const std::uint16_t* scales = nullptr;  // q8 only, block b: scales + b * block_stride, two times
                                          // (16,) float32: of keys, of values
  const void* next_keys[ahead_blocks];    // blocks that will be read after this tile's, as many as
  int next_count = 0;                     // this: what they hold is asked for in time
};

// The softmax state of one query row: maximum, sum of exponentials, weighted values.
struct AttentionState {
  float peak;
  float total;
  float mix[head_dim_max];
};

struct RopeTable {
  const float* cosine;   // (positions, pairs)
  const float* sine;
  int pairs;
  bool adjacent;         // pairs (0,1),(2,3).. or (0,pairs),(1,pairs+1)..
};

// What a feed-forward network's gate goes through before it multiplies the other half.
enum class Activation : int { silu, gelu_tanh, gelu, silu_clamped };
constexpr int activation_count = 4;

using GatedUnit = void (*)(const float* gate, const float* up, int count, float* out);

struct KernelTable {
  const char* name;
  MatmulTile matmul[weight_type_count];   // with 8 activation bits, with bytes or fours
  void (*rms_norm)(const float* row, const float* weight, int count, float epsilon, float* out);
  bool (*quantize)(const float* row, int count, const QuantizedRow& out);   // ActivationRows::shifts
  void (*quantize_bytes)(const float* row, int count, std::int8_t* out, GroupScale* scales);
  void (*swiglu)(const float* gate, const float* up, int count, float* out);
  void (*rotate)(float* head, const RopeTable& table, int position, float scale);
  void (*to_half)(const float* row, int count, std::uint16_t* out);   // saturates, never infinite
  float (*to_bytes)(const float* row, int count, std::int8_t* out);   // row = returned scale * out
  // Extends `states` by splits [split_first, split_end), in order; a fresh state has total 0.
  void (*attend)(const AttentionTile& tile, int split_first, int split_end, AttentionState* states);
  void (*attend_masked)(const AttentionTile& tile, int split_first, int split_end,
                        AttentionState* states);   // windows and soft caps; may leave a total of 0
  void (*merge)(AttentionState* into, const AttentionState* from, int head_dim);
  void (*finish)(const AttentionState* state, int head_dim, float* out);
  GatedUnit gated[activation_count];   // by Activation; the first is swiglu
  void (*layer_norm)(const float* row, const float* weight, const float* bias, int count,
                     float epsilon, float* out);
  // The largest value, or NaN if any is not finite.
  float (*peak)(const float* row, int count);
  // out = exp((row - peak) * scale), returns the sum; `out` may be null.
  double (*exponentials)(const float* row, int count, float peak, float scale, float* out);
  int activation_bits = 16;   // that 4-bit weights are multiplied with, and others with quantize_fours: 16 or 8
  // Where 8-bit weights are multiplied with fours. Returns ActivationRows::shifts.
  bool (*quantize_fours)(const float* row, int count, ScaledFours* out) = nullptr;
  // A tile and the one behind it at once, where that is faster; the numbers are the same.
  MatmulTile matmul_pair[weight_type_count] = {};
};

// The same table with products of 4-bit weights and 8-bit activations.
constexpr KernelTable with_bytes(KernelTable table, MatmulTile q4_0, MatmulTile q4_1, MatmulTile q4_k,
                                 MatmulTile grid4_halves) {
  table.activation_bits = 8;
  table.matmul[static_cast<int>(WeightType::q4_0)] = q4_0;
  table.matmul[static_cast<int>(WeightType::q4_1)] = q4_1;
  table.matmul[static_cast<int>(WeightType::q4_k)] = q4_k;
  table.matmul[static_cast<int>(WeightType::grid4_halves)] = grid4_halves;
  return table;
}

// The same table with products of 8-bit weights and fours.
constexpr KernelTable with_fours(KernelTable table,
                                 bool (*quantize_fours)(const float*, int, ScaledFours*),
                                 MatmulTile q8_0, MatmulTile q5_k, MatmulTile q6_k, MatmulTile grid8) {
  table.quantize_fours = quantize_fours;
  table.matmul[static_cast<int>(WeightType::q8_0)] = q8_0;
  table.matmul[static_cast<int>(WeightType::q5_k)] = q5_k;
  table.matmul[static_cast<int>(WeightType::q6_k)] = q6_k;
  table.matmul[static_cast<int>(WeightType::grid8)] = grid8;
  return table;
}

// Of each instruction set, by how many bits activations have beside quantized weights.
const KernelTable& portable_kernels(int activation_bits);
#if defined(HEADRACE_X86)
const KernelTable& avx2_kernels(int activation_bits);
#if defined(HEADRACE_AVXVNNI)
const KernelTable& avxvnni_kernels(int activation_bits);
#endif
const KernelTable& avx512_products_kernels(int activation_bits);
const KernelTable& avx512_sums_kernels(int activation_bits);   // matmul_wide_avx512.hpp
#elif defined(HEADRACE_ARM)
const KernelTable& dotprod_kernels(int activation_bits);
const KernelTable& i8mm_kernels(int activation_bits);
#endif

}  // namespace headrace
