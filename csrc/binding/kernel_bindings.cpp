// Features, machine probes, and the single kernels by themselves, for tests of each ISA's path.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "binding/arrays.hpp"
#include "binding/bindings.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/machine_probe.hpp"
#include "model/activations.hpp"
#include "model/attention_plan.hpp"
#include "model/packed_matrix.hpp"
#include "model/sampler.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {

namespace {

// out = rows @ weights.T, by the same packing, quantization and tile kernel as the model's.
void matmul(int ggml_type, const Vector<std::uint8_t>& weights, const Matrix<float>& rows,
            const OutMatrix<float>& out, const std::string& isa_limit) {
  const KernelTable& kernels = choose_kernels(isa_limit);
  const int row_count = int_size(rows.shape(0));
  const int inputs = int_size(rows.shape(1));
  const int outputs = int_size(out.shape(1));
  require_length(out, rows.shape(0), "the output");
  const PackedMatrix matrix(
      RawTensor{"weights", ggml_type, outputs, inputs, weights.data(), weights.size()});
  InputForms forms;
  forms.add(matrix.type());
  Activations input(row_count, inputs, forms);
  for (int row = 0; row < row_count; ++row)
    input.set(kernels, row, 0, rows.data() + static_cast<std::size_t>(row) * inputs, inputs);
  std::vector<float> tile(static_cast<std::size_t>(row_count) * tile_columns);
  for (int t = 0; t < matrix.tile_count(); ++t) {
    kernels.matmul[static_cast<int>(matrix.type())](matrix.tile(t), input.view(), 0, row_count,
                                                    {tile.data(), tile_columns, nullptr, false});
    const int columns = std::min(tile_columns, outputs - t * tile_columns);
    for (int row = 0; row < row_count; ++row)
      std::copy_n(tile.data() + row * tile_columns, columns,
                  out.data() + static_cast<std::size_t>(row) * outputs + t * tile_columns);
  }
}

// Row `index` of a weight matrix as the model's embedding look-up reads it.
void read_row(int ggml_type, const Vector<std::uint8_t>& weights, int outputs, int index,
              const OutVector<float>& out) {
  if (index < 0 || index >= outputs) throw InvalidStep("the row index is outside the matrix");
  const PackedMatrix matrix(RawTensor{"weights", ggml_type, outputs, int_size(out.shape(0)),
                                      weights.data(), weights.size()});
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

nb::tuple sample(const Vector<float>& logits, float temperature, int top_k, float top_p,
                 float min_p, std::uint64_t seed, std::int64_t position,
                 const std::string& isa_limit) {
  Sampler sampler(choose_kernels(isa_limit), int_size(logits.shape(0)));
  const SampledToken token =
      sampler.sample(logits.data(), {temperature, top_k, top_p, min_p, seed, position});
  return nb::make_tuple(token.token_id, token.logprob);
}

}  // namespace

void bind_kernels(nb::module_& module) {
  module.def("cpu_features", &cpu_features);
  module.def(
      "kernel_name",
      [](const std::string& limit) { return std::string(choose_kernels(limit).name); },
      "isa_limit"_a);
  module.def("measure_read_bandwidth", &measure_read_bandwidth, "threads"_a, "byte_count"_a,
             "repeats"_a, nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "measure_int8_rate",
      [](int threads, int repeats, const std::string& limit) {
        return measure_int8_rate(choose_kernels(limit), threads, repeats);
      },
      "threads"_a, "repeats"_a, "isa_limit"_a, nb::call_guard<nb::gil_scoped_release>());
  module.def("matmul", &matmul, "ggml_type"_a, "weights"_a.noconvert(), "rows"_a.noconvert(),
             "out"_a.noconvert(), "isa_limit"_a);
  module.def("read_row", &read_row, "ggml_type"_a, "weights"_a.noconvert(), "outputs"_a, "index"_a,
             "out"_a.noconvert());
  module.def("rms_norm", &rms_norm, "row"_a.noconvert(), "weight"_a.noconvert(), "epsilon"_a,
             "out"_a.noconvert(), "isa_limit"_a);
  module.def("swiglu", &swiglu, "gate"_a.noconvert(), "up"_a.noconvert(), "out"_a.noconvert(),
             "isa_limit"_a);
  module.def("sample", &sample, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a,
             "min_p"_a, "seed"_a, "position"_a, "isa_limit"_a);
}

}  // namespace headrace
