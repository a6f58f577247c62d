// Compares the kernels that an ARM CPU runs with the portable ones, for test_arm_kernels.py: prints the
// chosen table's name, then a line for each kernel that agrees; the first that does not ends it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/half.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/tile_layout.hpp"

using namespace headrace;

namespace {

const KernelTable& portable = portable_kernels(16);
const KernelTable& chosen = choose_kernels("");
std::mt19937 rng(7);

int whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); }

std::vector<float> numbers(std::size_t count, float peak = 4.0f) {
  std::vector<float> out(count);
  std::uniform_real_distribution<float> draw(-peak, peak);
  for (float& value : out) value = draw(rng);
  return out;
}

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("%s differs\n", what.c_str());
  std::exit(1);
}

void require_close(const std::vector<float>& a, const std::vector<float>& b, double tolerance,
                   const std::string& what) {
  for (std::size_t i = 0; i < a.size(); ++i)
    require(std::abs(a[i] - b[i]) <= tolerance * (1 + std::abs(b[i])),
            what + " at " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " +
                std::to_string(b[i]));
}

void agrees(const std::string& what) { std::printf("%s\n", what.c_str()); }

// Quantized rows in the portable form and, with bytes apart, in that of the NEON kernels.
struct Rows {
  int inputs;
  std::vector<std::int16_t> values;
  std::vector<std::int16_t> apart;
  std::vector<GroupScale> scales;

  ActivationRows view(bool bytes_apart) const {
    return {bytes_apart ? apart.data() : values.data(), scales.data(), nullptr, 0, inputs};
  }
};

std::vector<std::int16_t> bytes_apart(const std::vector<std::int16_t>& values) {
  std::vector<std::int16_t> out(values.size());
  std::int8_t* bytes = reinterpret_cast<std::int8_t*>(out.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int low = static_cast<std::int8_t>(values[i] & 255);
    const std::size_t at = i / 8 * 16 + i % 8;
    bytes[at] = static_cast<std::int8_t>(low);
    bytes[at + 8] = static_cast<std::int8_t>((values[i] - low) / 256);
  }
  return out;
}

// Scales of groups of integers, powers of two, and the groups' sums.
template <class Integer>
std::vector<GroupScale> sums_of(const std::vector<Integer>& values) {
  std::vector<GroupScale> scales;
  for (std::size_t group = 0; group < values.size() / group_values; ++group) {
    std::int32_t sums[2] = {};   // of each half
    for (std::size_t i = 0; i < group_values; ++i)
      sums[i / (group_values / 2)] += values[group * group_values + i];
    scales.push_back(group_scale(std::ldexp(1.0f, whole(-4, 0)), sums[0], sums[1]));
  }
  return scales;
}

Rows random_rows(int row_count, int inputs) {
  Rows rows{inputs, std::vector<std::int16_t>(static_cast<std::size_t>(row_count * inputs)), {}, {}};
  const int peak = static_cast<int>(quantized_peak);
  for (std::size_t i = 0; i < rows.values.size(); ++i)
    rows.values[i] = static_cast<std::int16_t>(i % 7 == 0 ? (i % 2 == 0 ? peak : -peak) : whole(-peak, peak));
  rows.scales = sums_of(rows.values);
  rows.apart = bytes_apart(rows.values);
  return rows;
}

// A tile of random weights whose scales are powers of two: then every product with a scale is exact,
// and two kernels whose integer sums agree agree in every bit.
std::vector<std::uint8_t> random_tile(WeightType type, int inputs) {
  std::vector<std::uint8_t> tile(tile_bytes(type, inputs));
  for (std::uint8_t& byte : tile) byte = static_cast<std::uint8_t>(whole(0, 255));
  const int groups = inputs / group_values;
  const auto put = [&](std::size_t at, std::size_t bytes) {
    const float value = std::ldexp(whole(0, 1) != 0 ? 1.0f : -1.0f, whole(0, 4));
    const std::uint16_t half = half_of_float(value);
    const std::int8_t code = static_cast<std::int8_t>(value);
    const void* source = bytes == 4 ? static_cast<const void*>(&value)
                         : bytes == 2 ? static_cast<const void*>(&half) : &code;
    std::memcpy(tile.data() + at, source, bytes);
  };
  for (int g = 0; g < groups; ++g) {
    for (std::size_t at = 0; at < factor_bytes(type); at += 2) put(factors_offset(type, g) + at, 2);
    for (std::size_t at = 0; at < scale_bytes(type); at += scale_number_bytes(type))
      put(scales_offset(type, g) + at, scale_number_bytes(type));
  }
  return tile;
}

void check_integer_products() {
  for (int t = static_cast<int>(WeightType::q4_0); t < weight_type_count; ++t) {
    const WeightType type = static_cast<WeightType>(t);
    const bool apart = &chosen != &portable;
    for (int row_count = 1; row_count <= 13; ++row_count) {
      const int inputs = row_count % 2 == 0 ? 256 : 512;
      const Rows rows = random_rows(row_count, inputs);
      const std::vector<std::uint8_t> tile = random_tile(type, inputs);
      std::vector<float> expected(static_cast<std::size_t>(row_count) * tile_columns);
      std::vector<float> found = expected;
      portable.matmul[t](tile.data(), rows.view(false), 0, row_count,
                         {expected.data(), tile_columns, nullptr, false});
      chosen.matmul[t](tile.data(), rows.view(apart), 0, row_count,
                       {found.data(), tile_columns, nullptr, false});
      require(std::memcmp(expected.data(), found.data(), found.size() * sizeof(float)) == 0,
              "product with weights of type " + std::to_string(t) + ", rows " +
                  std::to_string(row_count));
    }
    agrees("product " + std::to_string(t));
  }
}

// The same of 4-bit weights and 8-bit activations.
void check_byte_products() {
  const KernelTable& table = choose_kernels("", 8);
  require(table.activation_bits == 8 && table.name == chosen.name, "the table of 8-bit activations");
  for (const WeightType type :
       {WeightType::q4_0, WeightType::q4_1, WeightType::q4_k, WeightType::grid4_halves}) {
    const int t = static_cast<int>(type);
    for (int row_count = 1; row_count <= 13; ++row_count) {
      const int inputs = row_count % 2 == 0 ? 256 : 512;
      Rows rows = random_rows(row_count, inputs);
      std::vector<std::int8_t> bytes;
      for (std::size_t i = 0; i < rows.values.size(); ++i)
        bytes.push_back(static_cast<std::int8_t>(i % 7 == 0 ? (i % 2 == 0 ? 127 : -127) : whole(-127, 127)));
      rows.scales = sums_of(bytes);
      const std::vector<std::uint8_t> tile = random_tile(type, inputs);
      std::vector<float> expected(static_cast<std::size_t>(row_count) * tile_columns);
      std::vector<float> found = expected;
      ActivationRows input;
      input.inputs = inputs;
      input.bytes = bytes.data();
      input.byte_scales = rows.scales.data();
      portable_kernels(8).matmul[t](tile.data(), input, 0, row_count,
                                    {expected.data(), tile_columns, nullptr, false});
      table.matmul[t](tile.data(), input, 0, row_count,
                      {found.data(), tile_columns, nullptr, false});
      require(std::memcmp(expected.data(), found.data(), found.size() * sizeof(float)) == 0,
              "byte product with weights of type " + std::to_string(t) + ", rows " +
                  std::to_string(row_count));
    }
    agrees("byte product " + std::to_string(t));
  }
}

void check_float_products() {
  const int inputs = 48, row_count = 7;
  const std::vector<float> floats = numbers(static_cast<std::size_t>(inputs * row_count));
  const std::vector<float> weights = numbers(static_cast<std::size_t>(inputs * tile_columns));
  const std::vector<float> bias = numbers(tile_columns);
  std::vector<std::uint16_t> halves(weights.size());
  portable.to_half(weights.data(), static_cast<int>(weights.size()), halves.data());
  ActivationRows rows;
  rows.floats = floats.data();
  rows.float_stride = inputs;
  rows.inputs = inputs;
  for (int t = 0; t < static_cast<int>(WeightType::q4_0); ++t) {
    const void* tile = t == 0 ? static_cast<const void*>(weights.data()) : halves.data();
    std::vector<float> expected(static_cast<std::size_t>(row_count) * tile_columns, 1.0f);
    std::vector<float> found = expected;
    for (const auto& [table, out] : {std::pair{&portable, &expected}, std::pair{&chosen, &found}})
      table->matmul[t](static_cast<const std::uint8_t*>(tile), rows, 0, row_count,
                       {out->data(), tile_columns, bias.data(), true});
    if (t != static_cast<int>(WeightType::bf16))
      require_close(found, expected, 1e-4, "float product " + std::to_string(t));
    else   // half bits read as bfloat16 are huge or tiny: compare by size
      for (std::size_t i = 0; i < found.size(); ++i)
        require(std::abs(found[i] / expected[i] - 1) < 1e-3, "bfloat16 product");
  }
  agrees("float products");
}

void check_quantize() {
  std::vector<float> row = numbers(320);
  for (int i = 32; i < 64; ++i) row[static_cast<std::size_t>(i)] = 0.0f;
  std::vector<std::int16_t> expected(row.size()), found(row.size());
  std::vector<GroupScale> scales(10), found_scales(10);
  portable.quantize(row.data(), 320, {expected.data(), scales.data()});
  chosen.quantize(row.data(), 320, {found.data(), found_scales.data()});
  if (&chosen != &portable) expected = bytes_apart(expected);
  require(expected == found, "quantized values");
  require(std::memcmp(scales.data(), found_scales.data(), sizeof(GroupScale) * 10) == 0,
          "quantized scales");
  std::vector<std::int8_t> bytes(row.size()), found_bytes(row.size());
  portable.quantize_bytes(row.data(), 320, bytes.data(), scales.data());
  chosen.quantize_bytes(row.data(), 320, found_bytes.data(), found_scales.data());
  require(bytes == found_bytes, "quantized bytes");
  require(std::memcmp(scales.data(), found_scales.data(), sizeof(GroupScale) * 10) == 0,
          "scales of quantized bytes");
  agrees("quantize");
}

void check_rows() {
  const std::vector<float> a = numbers(320), b = numbers(320);
  std::vector<float> expected(320), found(320);
  const auto compare = [&](const char* name, double tolerance, auto run) {
    run(portable, expected.data());
    run(chosen, found.data());
    require_close(found, expected, tolerance, name);
    agrees(name);
  };
  compare("rms_norm", 1e-5, [&](const KernelTable& k, float* out) {
    k.rms_norm(a.data(), b.data(), 319, 1e-5f, out);
  });
  compare("layer_norm", 1e-5, [&](const KernelTable& k, float* out) {
    k.layer_norm(a.data(), b.data(), a.data(), 320, 1e-5f, out);
  });
  for (int unit = 0; unit < activation_count; ++unit)
    compare("gated", 1e-5, [&](const KernelTable& k, float* out) {
      k.gated[unit](a.data(), b.data(), 320, out);
    });
  compare("rotate", 1e-6, [&](const KernelTable& k, float* out) {
    std::copy(a.begin(), a.end(), out);
    k.rotate(out, {b.data(), a.data(), 16, false}, 1, 2.0f);
  });
  compare("exponentials", 1e-5, [&](const KernelTable& k, float* out) {
    out[319] = static_cast<float>(k.exponentials(a.data(), 317, k.peak(a.data(), 317), 0.7f, out));
  });
}

void check_narrow_forms() {
  std::vector<float> row = numbers(64, 70000.0f);
  row[3] = 1e-7f;
  std::vector<std::uint16_t> halves(64), found_halves(64);
  portable.to_half(row.data(), 64, halves.data());
  chosen.to_half(row.data(), 64, found_halves.data());
  require(halves == found_halves, "to_half");
  std::vector<std::int8_t> bytes(64), found_bytes(64);
  const float scale = portable.to_bytes(row.data(), 64, bytes.data());
  require(scale == chosen.to_bytes(row.data(), 64, found_bytes.data()) && bytes == found_bytes,
          "to_bytes");
  row[9] = std::nanf("");
  require(std::isnan(chosen.peak(row.data(), 64)), "the peak of a row that is not finite");
  agrees("narrow forms");
}

// One kv head of 300 tokens in blocks that lie in reverse order, five query rows.
void check_attention(bool masked, bool bytes) {
  constexpr int head_dim = 64, tokens = 300, blocks = 19;
  const std::size_t block_halves = block_tokens * head_dim;
  std::vector<std::uint16_t> kv(2 * blocks * block_halves);
  const std::vector<float> source = numbers(kv.size(), 1.0f);
  if (bytes)
    for (std::size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<std::uint16_t>(whole(0, 65535));
  else
    portable.to_half(source.data(), static_cast<int>(source.size()), kv.data());
  const std::vector<float> token_scales = numbers(blocks * 2 * block_tokens, 0.01f);
  std::vector<std::uint16_t> scales(blocks * block_halves);
  std::vector<std::int32_t> table(blocks);
  for (int b = 0; b < blocks; ++b) {
    table[static_cast<std::size_t>(b)] = blocks - 1 - b;
    std::memcpy(scales.data() + static_cast<std::size_t>(b) * block_halves,
                token_scales.data() + static_cast<std::size_t>(b) * 2 * block_tokens,
                2 * block_tokens * sizeof(float));
  }
  const std::vector<float> queries = numbers(5 * head_dim, 0.5f);
  std::vector<std::vector<float>> results;
  for (const KernelTable* kernels : {&portable, &chosen}) {
    std::vector<float> scores(query_rows_max * split_tokens), mix(query_rows_max * head_dim);
    AttentionTile tile{};
    tile.keys = kv.data();
    tile.values = kv.data() + blocks * block_halves;
    tile.block_stride = block_halves;
    tile.block_table = table.data();
    tile.head_dim = head_dim;
    tile.query_count = 5;
    tile.scores = scores.data();
    tile.split_mix = mix.data();
    tile.scales = bytes ? scales.data() : nullptr;
    tile.softcap = masked ? 3.0f : 0.0f;
    for (int q = 0; q < 5; ++q) {
      tile.queries[q] = queries.data() + q * head_dim;
      tile.visible[q] = tokens - 4 + q;
      tile.window_first[q] = masked ? tile.visible[q] - 270 : 0;
    }
    std::vector<AttentionState> states(5);
    for (AttentionState& state : states) state.total = 0.0f;
    (masked ? kernels->attend_masked : kernels->attend)(tile, 0, 2, states.data());
    std::vector<float>& out = results.emplace_back(5 * head_dim);
    for (int q = 0; q < 5; ++q) kernels->finish(&states[static_cast<std::size_t>(q)], head_dim, out.data() + q * head_dim);
  }
  require_close(results[1], results[0], 2e-5, "attention");
  agrees(std::string("attention") + (masked ? " masked" : "") + (bytes ? " int8" : ""));
}

}  // namespace

int main() {
  std::printf("%s\n", chosen.name);
  check_integer_products();
  check_byte_products();
  check_float_products();
  check_quantize();
  check_rows();
  check_narrow_forms();
  for (const bool masked : {false, true})
    for (const bool bytes : {false, true}) check_attention(masked, bytes);
  std::printf("done\n");
}
