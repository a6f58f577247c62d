// Features, machine probes, and the single kernels by themselves, for tests of each ISA's path.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "binding/arrays.hpp"
#include "binding/bindings.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/machine_probe.hpp"
#include "model/activations.hpp"
#include "model/kv_cache.hpp"
#include "model/model_shape.hpp"
#include "model/packed_matrix.hpp"
#include "model/sampler.hpp"
#include "model/tile_products.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {

namespace {

// out = rows @ weights.T, by the same packing, quantization and tile kernel as the model's.
void matmul(int ggml_type, const Vector<std::uint8_t>& weights, const Matrix<float>& rows,
            const OutMatrix<float>& out, const std::string& isa_limit, int activation_bits) {
  const KernelTable& kernels = choose_kernels(isa_limit, activation_bits);
  const int row_count = int_size(rows.shape(0));
  const int inputs = int_size(rows.shape(1));
  const int outputs = int_size(out.shape(1));
  require_length(out, rows.shape(0), "the output");
  const PackedMatrix matrix(
      RawTensor{"weights", ggml_type, outputs, inputs, weights.data(), weights.size(), {}});
  InputForms forms;
  forms.add(kernels, matrix.type());
  Activations input(row_count, inputs, forms);
  for (int row = 0; row < row_count; ++row)
    input.set(kernels, row, 0, rows.data() + static_cast<std::size_t>(row) * inputs, inputs);
  constexpr int columns_max = 2 * tile_columns;
  std::vector<float> tiles(static_cast<std::size_t>(row_count) * columns_max);
  for (int t = 0, width; t < matrix.tile_count(); t += width) {
    width = tiles_at_once(kernels, matrix, matrix.tile_count() - t);
    multiply_tiles(kernels, matrix, t, width, input.view(), 0, row_count,
                   {tiles.data(), columns_max, nullptr, false});
    const int columns = std::min(width * tile_columns, outputs - t * tile_columns);
    for (int row = 0; row < row_count; ++row)
      std::copy_n(tiles.data() + row * columns_max, columns,
                  out.data() + static_cast<std::size_t>(row) * outputs + t * tile_columns);
  }
}

// Row `index` of a weight matrix as the model's embedding look-up reads it.
void read_row(int ggml_type, const Vector<std::uint8_t>& weights, int outputs, int index,
              const OutVector<float>& out) {
  if (index < 0 || index >= outputs) throw InvalidStep("the row index is outside the matrix");
  const PackedMatrix matrix(RawTensor{"weights", ggml_type, outputs, int_size(out.shape(0)),
                                      weights.data(), weights.size(), {}});
  matrix.read_row(index, out.data());
}

void rms_norm(const Vector<float>& row, const Vector<float>& weight, float epsilon,
              const OutVector<float>& out, const std::string& isa_limit) {
  require_length(weight, row.shape(0), "the weight");
  require_length(out, row.shape(0), "the output");
  choose_kernels(isa_limit).rms_norm(row.data(), weight.data(), int_size(row.shape(0)), epsilon,
                                     out.data());
}

void swiglu(const Vector<float>& gate, const Vector<float>& up, const OutVector<float>& out,
            const std::string& isa_limit) {
  require_length(up, gate.shape(0), "up");
  require_length(out, gate.shape(0), "the output");
  if (gate.shape(0) % 16 != 0) throw InvalidStep("the length must be a multiple of 16");
  choose_kernels(isa_limit).swiglu(gate.data(), up.data(), int_size(gate.shape(0)), out.data());
}

void rotate(const OutVector<float>& head, bool adjacent, const Vector<float>& cosine,
            const Vector<float>& sine, const std::string& isa_limit) {
  require_length(sine, cosine.shape(0), "the sines");
  const int pairs = int_size(cosine.shape(0));
  if (head.shape(0) < cosine.shape(0) * 2) throw InvalidStep("the head is shorter than its pairs");
  choose_kernels(isa_limit).rotate(head.data(), {cosine.data(), sine.data(), pairs, adjacent},
                                   0, 1.0f);
}

// Attention of the last rows of one sequence whose keys and values lie in `block_ids`; 3-d arrays.
void attention(const Array3<float>& queries, const Array3<float>& keys, const Array3<float>& values,
               const Vector<std::int32_t>& block_ids, const OutArray3<float>& out,
               const std::string& isa_limit, const std::string& kv_type) {
  const KernelTable& kernels = choose_kernels(isa_limit);
  ModelShape shape;
  shape.num_heads = int_size(queries.shape(1));
  shape.num_kv_heads = int_size(keys.shape(1));
  shape.head_dim = int_size(queries.shape(2));
  const int tokens = int_size(keys.shape(0));
  const int rows = int_size(queries.shape(0));
  const std::int32_t blocks = *std::max_element(block_ids.data(), block_ids.data() + block_ids.size());
  KvCache kv(1, shape.num_kv_heads, shape.head_dim, blocks + 1, kv_type_of(kv_type));
  for (int t = 0; t < tokens; ++t)
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      const int offset = (t * shape.num_kv_heads + head) * shape.head_dim;
      kv.write(kernels, 0, head, block_ids.data()[t / block_tokens], t % block_tokens,
               keys.data() + offset, values.data() + offset);
    }
  Buffer<AttentionState> states(1);
  Buffer<float> scores(query_rows_max * split_tokens);
  Buffer<float> split_mix(static_cast<std::size_t>(query_rows_max * shape.head_dim));
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < shape.num_heads; ++head) {
      AttentionTile tile;
      kv.place(tile, 0, head / shape.group_size());
      tile.block_table = block_ids.data();
      tile.head_dim = shape.head_dim;
      tile.query_count = 1;
      tile.scores = scores.data();
      tile.split_mix = split_mix.data();
      const int offset = (row * shape.num_heads + head) * shape.head_dim;
      tile.queries[0] = queries.data() + offset;
      tile.visible[0] = tokens - rows + row + 1;
      states[0].total = 0.0f;
      kernels.attend(tile, 0, (tokens + split_tokens - 1) / split_tokens, states.data());
      kernels.finish(states.data(), shape.head_dim, out.data() + offset);
    }
}

// The token and its log-probability, then the ids and log-probabilities of the `top_count` likeliest.
nb::tuple sample(const Vector<float>& logits, float temperature, int top_k, float top_p,
                 float min_p, std::uint64_t seed, std::int64_t position,
                 const Vector<std::int32_t>& edit_ids, const Vector<float>& edit_factors,
                 const Vector<float>& edit_addends,
                 const std::optional<Vector<std::uint32_t>>& mask, int top_count,
                 const std::string& isa_limit, float typical_p, float xtc_threshold,
                 float xtc_probability) {
  std::vector<float> row(logits.data(), logits.data() + logits.shape(0));
  std::vector<std::int32_t> top_ids(static_cast<std::size_t>(top_count));
  std::vector<float> top_logprobs(static_cast<std::size_t>(top_count));
  require_length(edit_factors, edit_ids.shape(0), "edit_factors");
  require_length(edit_addends, edit_ids.shape(0), "edit_addends");
  if (mask) require_length(*mask, (row.size() + 31) / 32, "mask");
  Sampler sampler(choose_kernels(isa_limit), int_size(logits.shape(0)));
  const SampledToken token =
      sampler.sample(row.data(), {temperature, top_k, top_p, min_p, seed, position, typical_p,
                                  xtc_threshold, xtc_probability},
                     {int_size(edit_ids.shape(0)), edit_ids.data(), edit_factors.data(),
                      edit_addends.data(), mask ? mask->data() : nullptr},
                     {top_count, top_ids.data(), top_logprobs.data()});
  return nb::make_tuple(token.token_id, token.logprob, top_ids, top_logprobs);
}

}  // namespace

void bind_kernels(nb::module_& module) {
  module.def("cpu_features", &cpu_features);
  module.def("packed_layout", &packed_layout);
  module.def(
      "kernel_name",
      [](const std::string& limit) { return std::string(choose_kernels(limit).name); },
      "isa_limit"_a);
  module.def(
      "has_fours",
      [](const std::string& limit, int activation_bits) {
        return choose_kernels(limit, activation_bits).quantize_fours != nullptr;
      },
      "isa_limit"_a, "activation_bits"_a);
  module.def("measure_read_bandwidth", &measure_read_bandwidth, "threads"_a, "byte_count"_a,
             "repeats"_a, nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "measure_matrix_rate",
      [](int threads, int repeats, const std::string& limit, int activation_bits) {
        return measure_matrix_rate(choose_kernels(limit, activation_bits), threads, repeats);
      },
      "threads"_a, "repeats"_a, "isa_limit"_a, "activation_bits"_a = 16, nb::call_guard<nb::gil_scoped_release>());
  module.def("matmul", &matmul, "ggml_type"_a, "weights"_a.noconvert(), "rows"_a.noconvert(),
             "out"_a.noconvert(), "isa_limit"_a, "activation_bits"_a = 16);
  module.def("read_row", &read_row, "ggml_type"_a, "weights"_a.noconvert(), "outputs"_a, "index"_a,
             "out"_a.noconvert());
  module.def("rms_norm", &rms_norm, "row"_a.noconvert(), "weight"_a.noconvert(), "epsilon"_a,
             "out"_a.noconvert(), "isa_limit"_a);
  module.def("swiglu", &swiglu, "gate"_a.noconvert(), "up"_a.noconvert(), "out"_a.noconvert(),
             "isa_limit"_a);
  module.def("rotate", &rotate, "head"_a.noconvert(), "adjacent"_a,
             "cosine"_a.noconvert(), "sine"_a.noconvert(), "isa_limit"_a);
  module.def("attention", &attention, "queries"_a.noconvert(), "keys"_a.noconvert(),
             "values"_a.noconvert(), "block_ids"_a.noconvert(), "out"_a.noconvert(),
             "isa_limit"_a, "kv_type"_a = "f16");
  module.def("sample", &sample, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a,
             "min_p"_a, "seed"_a, "position"_a, "edit_ids"_a.noconvert(),
             "edit_factors"_a.noconvert(), "edit_addends"_a.noconvert(),
             "mask"_a.noconvert().none(), "top_count"_a, "isa_limit"_a,
             "typical_p"_a = 1.0f, "xtc_threshold"_a = 1.0f, "xtc_probability"_a = 0.0f);
}

}  // namespace headrace
