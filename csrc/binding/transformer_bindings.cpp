#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <mutex>
#include <optional>

#include "binding/arrays.hpp"
#include "binding/bindings.hpp"
#include "model/transformer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {

namespace {

// (ggml type, shape, bytes) as a raw tensor that points into the array. A callable in the bytes'
// place makes them when they are read, which must then happen under the interpreter's lock.
RawTensor raw_tensor(const std::string& name, const nb::tuple& fields) {
  if (fields.size() != 3) throw nb::value_error("a tensor is (type, shape, data)");
  const auto shape = nb::cast<std::vector<int>>(fields[1]);
  RawTensor raw;
  raw.name = name;
  raw.ggml_type = nb::cast<int>(fields[0]);
  if (shape.size() == 1 || shape.size() == 2) {
    raw.outputs = shape.size() == 2 ? shape[0] : 1;
    raw.inputs = shape.back();
  }
  if (nb::isinstance<nb::callable>(fields[2])) {
    raw.make = [source = nb::object(fields[2])] {
      const auto made = nb::cast<Vector<std::uint8_t>>(source());
      return RawBytes{{made.data(), [made](const std::uint8_t*) {}}, made.size()};
    };
    return raw;
  }
  const auto data = nb::cast<Vector<std::uint8_t>>(fields[2]);
  raw.data = data.data();
  raw.byte_count = data.size();
  return raw;
}

// {name: (ggml type, shape, bytes or what makes them)} as raw tensors.
std::map<std::string, RawTensor> raw_tensors(const nb::dict& tensors) {
  std::map<std::string, RawTensor> out;
  for (const auto& [key, value] : tensors) {
    RawTensor raw = raw_tensor(nb::cast<std::string>(key), nb::cast<nb::tuple>(value));
    out.emplace(raw.name, raw);
  }
  return out;
}

// The bytes of exported blocks start with what they are, so that another layout is refused.
struct ExportHeader {
  char magic[8] = {'h', 'r', 'k', 'v', 'f', '1', '6', '\0'};   // or "hrkvq8"
  std::int32_t num_layers;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size_tokens = block_tokens;
};

// One caller at a time: the team and the scratch belong to the step that runs.
class CpuTransformer {
 public:
  CpuTransformer(const ModelShape& shape, const nb::dict& tensors,
                 const TransformerOptions& options)
      : transformer_(shape, raw_tensors(tensors), options), options_(options) {}

  Transformer& transformer() { return transformer_; }
  std::mutex& mutex() { return mutex_; }
  const TransformerOptions& options() const { return options_; }

  ExportHeader header() const {
    ExportHeader header;
    if (options_.kv_type == KvType::q8) std::memcpy(header.magic, "hrkvq8\0", 8);
    header.num_layers = transformer_.shape().num_layers;
    header.num_kv_heads = transformer_.shape().num_kv_heads;
    header.head_dim = transformer_.shape().head_dim;
    return header;
  }

  // What a rank has of a block is a part that nobody else can use.
  void check_whole() const {
    if (options_.place.ranks > 1) throw InvalidStep("one of several ranks exports no KV blocks");
  }

  void check_block(int block_id) const {
    if (block_id < 0 || block_id >= options_.num_blocks)
      throw InvalidStep("block id " + std::to_string(block_id) + " is outside 0.." +
                        std::to_string(options_.num_blocks - 1));
  }

 private:
  Transformer transformer_;
  TransformerOptions options_;
  std::mutex mutex_;
};

// A choice by its name in headrace.kernels.architecture.
template <class Choice>
Choice choice_of(const std::string& name,
                 std::initializer_list<std::pair<const char*, Choice>> choices) {
  for (const auto& [known, choice] : choices)
    if (name == known) return choice;
  throw ModelFileError("the architecture has an unknown choice: " + name);
}

ModelShape shape_of(const nb::object& spec) {
  const auto integer = [&](const char* name) { return nb::cast<int>(spec.attr(name)); };
  const auto number = [&](const char* name) { return nb::cast<float>(spec.attr(name)); };
  const auto flag = [&](const char* name) { return nb::cast<bool>(spec.attr(name)); };
  const auto name_of = [&](const char* name) {
    return nb::cast<std::string>(nb::str(nb::object(spec.attr(name))));
  };
  ModelShape shape;
  shape.num_layers = integer("num_layers");
  shape.hidden_size = integer("hidden_size");
  shape.num_heads = integer("num_heads");
  shape.num_kv_heads = integer("num_kv_heads");
  shape.head_dim = integer("head_dim");
  shape.ffn_size = integer("ffn_size");
  shape.vocab_size = integer("vocab_size");
  shape.context_length = integer("context_length");
  shape.norm_epsilon = number("norm_epsilon");
  shape.rope_adjacent = name_of("rope_style") == "adjacent";
  shape.rope_dimensions = integer("rope_dimensions");
  shape.tied_output = flag("tied_output");
  shape.norm_placement = choice_of<NormPlacement>(
      name_of("norm_placement"), {{"before", NormPlacement::before}, {"both", NormPlacement::both},
                                  {"branch", NormPlacement::branch}, {"after", NormPlacement::after}});
  shape.layer_norm = flag("layer_norm");
  shape.query_key_norm = choice_of<QueryKeyNorm>(
      name_of("query_key_norm"), {{"none", QueryKeyNorm::none}, {"head", QueryKeyNorm::head},
                                  {"whole", QueryKeyNorm::whole}});
  shape.activation = choice_of<Activation>(
      name_of("activation"), {{"silu", Activation::silu}, {"gelu_tanh", Activation::gelu_tanh},
                              {"gelu", Activation::gelu},
                              {"silu_clamped", Activation::silu_clamped}});
  shape.gated = flag("gated");
  shape.embedding_scale = number("embedding_scale");
  shape.residual_scale = number("residual_scale");
  shape.attention_scale = number("attention_scale");
  shape.attention_softcap = number("attention_softcap");
  shape.logit_softcap = number("logit_softcap");
  shape.logit_scale = number("logit_scale");
  shape.attention_sinks = flag("attention_sinks");
  shape.encoder = flag("encoder");
  shape.experts.count = integer("expert_count");
  shape.experts.used = integer("experts_used");
  shape.experts.ffn_size = integer("expert_ffn_size");
  shape.experts.normalized = flag("expert_weights_normalized");
  shape.experts.scale = number("expert_weights_scale");
  shape.experts.shared_ffn_size = integer("shared_expert_ffn_size");
  return shape;
}

using LayerFields = std::vector<std::array<int, 4>>;   // window, rotation, device, experts' device
using DeviceFields = std::vector<std::pair<std::vector<int>, int>>;         // cores, threads
using RotationFields = std::vector<std::pair<std::vector<double>, float>>;  // frequencies, magnitude

void construct(CpuTransformer* self, const nb::object& spec, const LayerFields& layers,
               const RotationFields& rotations, const nb::dict& tensors, int num_blocks,
               int rows_max, int sequences_max, const DeviceFields& devices,
               const std::string& isa_limit, const std::string& kv_type, int adapter_slots,
               int adapter_rank_max, const std::string& packed_path, int rank, int ranks,
               int group_descriptor) {
  if (ranks < 1 || rank < 0 || rank >= ranks) throw InvalidStep("a rank is 0 to ranks - 1");
  ModelShape shape = shape_of(spec);
  for (const auto& [window_tokens, rotation, device, experts_device] : layers)
    shape.layers.push_back({window_tokens, rotation, device, experts_device});
  for (const auto& [frequencies, magnitude] : rotations)
    shape.rotations.push_back({frequencies, magnitude});
  std::vector<Device> placed;
  for (const auto& [cores, threads] : devices) placed.push_back({cores, threads});
  new (self) CpuTransformer(shape, tensors,
                            {num_blocks, rows_max, sequences_max, placed, isa_limit,
                             kv_type_of(kv_type), adapter_slots, adapter_rank_max, packed_path,
                             {rank, ranks}, group_descriptor});
}

// The optional arrays of a step; the caller's tuples keep them alive until the step ends.
template <class Array>
Array field_of(const nb::tuple& fields, std::size_t index) {
  return nb::cast<Array>(fields[index], /*convert=*/false);
}

void set_edits(StepBatch& batch, const nb::tuple& fields) {
  if (fields.size() != 4) throw nb::value_error("edits are (starts, ids, factors, addends)");
  const auto starts = field_of<Vector<std::int32_t>>(fields, 0);
  const auto ids = field_of<Vector<std::int32_t>>(fields, 1);
  const auto factors = field_of<Vector<float>>(fields, 2);
  const auto addends = field_of<Vector<float>>(fields, 3);
  require_length(starts, static_cast<std::size_t>(batch.sampled_count) + 1, "edit_starts");
  require_length(factors, ids.shape(0), "edit_factors");
  require_length(addends, ids.shape(0), "edit_addends");
  batch.edit_count = int_size(ids.shape(0));
  batch.edit_starts = starts.data();
  batch.edit_ids = ids.data();
  batch.edit_factors = factors.data();
  batch.edit_addends = addends.data();
}

void set_masks(StepBatch& batch, const nb::tuple& fields, int vocab_size) {
  if (fields.size() != 2) throw nb::value_error("masks are (rows, words)");
  const auto rows = field_of<Vector<std::int32_t>>(fields, 0);
  const auto words = field_of<Matrix<std::uint32_t>>(fields, 1);
  require_length(rows, static_cast<std::size_t>(batch.sampled_count), "mask_rows");
  if (int_size(words.shape(1)) != (vocab_size + 31) / 32)
    throw InvalidStep("a mask has a bit for each token of the vocabulary");
  batch.mask_count = int_size(words.shape(0));
  batch.mask_rows = rows.data();
  batch.masks = words.data();
}

void set_top(StepBatch& batch, StepResults& results, const nb::tuple& fields) {
  if (fields.size() != 3) throw nb::value_error("top tokens are (counts, out_ids, out_logprobs)");
  const auto counts = field_of<Vector<std::int32_t>>(fields, 0);
  const auto ids = field_of<OutMatrix<std::int32_t>>(fields, 1);
  const auto logprobs = field_of<OutMatrix<float>>(fields, 2);
  require_length(counts, static_cast<std::size_t>(batch.sampled_count), "top_counts");
  require_length(ids, counts.shape(0), "the top ids output");
  require_length(logprobs, counts.shape(0), "the top logprobs output");
  if (ids.shape(1) != logprobs.shape(1)) throw InvalidStep("the top outputs differ in width");
  batch.top_columns = int_size(ids.shape(1));
  batch.top_counts = counts.data();
  results.top_ids = ids.data();
  results.top_logprobs = logprobs.data();
}

void set_filters(StepBatch& batch, const nb::tuple& fields) {
  if (fields.size() != 3)
    throw nb::value_error("filters are (typical_p, xtc_threshold, xtc_probability)");
  const auto typical_p = field_of<Vector<float>>(fields, 0);
  const auto xtc_threshold = field_of<Vector<float>>(fields, 1);
  const auto xtc_probability = field_of<Vector<float>>(fields, 2);
  const auto samples = static_cast<std::size_t>(batch.sampled_count);
  require_length(typical_p, samples, "typical_p");
  require_length(xtc_threshold, samples, "xtc_threshold");
  require_length(xtc_probability, samples, "xtc_probability");
  batch.typical_p = typical_p.data();
  batch.xtc_threshold = xtc_threshold.data();
  batch.xtc_probability = xtc_probability.data();
}

void execute(CpuTransformer& self, const Vector<std::int32_t>& token_ids,
             const Vector<std::int32_t>& row_starts, const Vector<std::int32_t>& context_lens,
             const Vector<std::int32_t>& block_ids, const Vector<std::int32_t>& block_starts,
             const Vector<std::int32_t>& sampled, const Vector<float>& temperature,
             const Vector<std::int32_t>& top_k, const Vector<float>& top_p,
             const Vector<float>& min_p, const Vector<std::uint64_t>& seed,
             const Vector<std::int64_t>& position, const OutVector<std::int32_t>& out_token_ids,
             const OutVector<float>& out_logprobs,
             const std::optional<OutMatrix<float>>& out_logits,
             const std::optional<nb::tuple>& edits, const std::optional<nb::tuple>& masks,
             const std::optional<nb::tuple>& top,
             const std::optional<OutMatrix<float>>& out_hidden,
             const std::optional<nb::tuple>& filters,
             const std::optional<Vector<std::int32_t>>& adapters) {
  const std::size_t sequences = context_lens.shape(0);
  const std::size_t samples = sampled.shape(0);
  require_length(row_starts, sequences + 1, "row_starts");
  require_length(block_starts, sequences + 1, "block_starts");
  require_length(temperature, samples, "temperature");
  require_length(top_k, samples, "top_k");
  require_length(top_p, samples, "top_p");
  require_length(min_p, samples, "min_p");
  require_length(seed, samples, "seed");
  require_length(position, samples, "position");
  require_length(out_token_ids, samples, "the token id output");
  require_length(out_logprobs, samples, "the logprob output");
  StepResults results{out_token_ids.data(), out_logprobs.data(),
                            out_logits ? out_logits->data() : nullptr};
  if (out_logits) {
    require_length(*out_logits, samples, "the logits output");
    if (static_cast<int>(out_logits->shape(1)) != self.transformer().shape().vocab_size)
      throw InvalidStep("the logits output must have vocab_size columns");
  }
  if (out_hidden) {
    require_length(*out_hidden, token_ids.shape(0), "the hidden states output");
    if (static_cast<int>(out_hidden->shape(1)) != self.transformer().shape().hidden_size)
      throw InvalidStep("the hidden states output must have hidden_size columns");
    if (self.options().place.ranks > 1)
      throw InvalidStep("hidden states are not handed out by several ranks");
    results.hidden = out_hidden->data();
  }
  StepBatch batch{int_size(token_ids.shape(0)), int_size(sequences),
                        int_size(block_ids.shape(0)), int_size(samples),
                        token_ids.data(), row_starts.data(), context_lens.data(), block_ids.data(),
                        block_starts.data(), sampled.data(), temperature.data(), top_k.data(),
                        top_p.data(), min_p.data(), seed.data(), position.data()};
  if (adapters) {
    require_length(*adapters, sequences, "adapters");
    batch.adapters = adapters->data();
  }
  if (edits) set_edits(batch, *edits);
  if (masks) set_masks(batch, *masks, self.transformer().shape().vocab_size);
  if (top) set_top(batch, results, *top);
  if (filters) set_filters(batch, *filters);
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.transformer().execute(batch, results);
}

// An adapter's parts as (layer, target, scale, A, B), packed before the lock is taken.
void load_adapter(CpuTransformer& self, int slot, const nb::list& parts) {
  std::vector<AdapterPart> read;
  for (const auto& item : parts) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 5) throw nb::value_error("a part is (layer, target, scale, A, B)");
    const int layer = nb::cast<int>(fields[0]);
    const int target = nb::cast<int>(fields[1]);
    const std::string name = std::to_string(target) + " of layer " + std::to_string(layer);
    read.push_back({layer, target, nb::cast<float>(fields[2]),
                    raw_tensor(name, nb::cast<nb::tuple>(fields[3])),
                    raw_tensor(name, nb::cast<nb::tuple>(fields[4]))});
  }
  nb::gil_scoped_release release;
  Transformer& transformer = self.transformer();
  auto adapter = std::make_unique<Adapter>(transformer.shape(), read,
                                           transformer.adapters().rank_max());
  const std::lock_guard lock(self.mutex());
  transformer.load_adapter(slot, std::move(adapter));
}

void unload_adapter(CpuTransformer& self, int slot) {
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.transformer().load_adapter(slot, nullptr);
}

void discard_kv(CpuTransformer& self) {
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.transformer().discard_kv();
}

void copy_blocks(CpuTransformer& self, const std::vector<std::pair<int, int>>& pairs) {
  for (const auto& [source, destination] : pairs) {
    self.check_block(source);
    self.check_block(destination);
  }
  const std::lock_guard lock(self.mutex());
  self.transformer().copy_blocks(pairs);
}

// Returns when rank 0 is gone.
void serve(CpuTransformer& self) {
  if (self.options().place.rank == 0) throw InvalidStep("rank 0 is not served, it asks");
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.transformer().serve();
}

nb::bytes export_blocks(CpuTransformer& self, const std::vector<int>& block_ids) {
  self.check_whole();
  for (const int id : block_ids) self.check_block(id);
  KvCache& kv = self.transformer().kv_cache();
  const ExportHeader header = self.header();
  std::vector<std::uint8_t> out(sizeof(header) + block_ids.size() * kv.export_bytes());
  std::memcpy(out.data(), &header, sizeof(header));
  const std::lock_guard lock(self.mutex());
  for (std::size_t i = 0; i < block_ids.size(); ++i)
    kv.export_block(block_ids[i], out.data() + sizeof(header) + i * kv.export_bytes());
  return nb::bytes(out.data(), out.size());
}

void import_blocks(CpuTransformer& self, const std::vector<int>& block_ids, const nb::bytes& data) {
  self.check_whole();
  for (const int id : block_ids) self.check_block(id);
  KvCache& kv = self.transformer().kv_cache();
  const ExportHeader header = self.header();
  if (data.size() != sizeof(header) + block_ids.size() * kv.export_bytes() ||
      std::memcmp(data.data(), &header, sizeof(header)) != 0)
    throw InvalidStep("these bytes are not this many KV blocks of this model's layout");
  const auto* bytes = static_cast<const std::uint8_t*>(data.data()) + sizeof(header);
  const std::lock_guard lock(self.mutex());
  for (std::size_t i = 0; i < block_ids.size(); ++i)
    kv.import_block(block_ids[i], bytes + i * kv.export_bytes());
}

}  // namespace

void bind_transformer(nb::module_& module) {
  nb::class_<CpuTransformer>(module, "CpuTransformer")
      .def("__init__", &construct, nb::kw_only(), "spec"_a, "layers"_a, "rotations"_a, "tensors"_a,
           "num_blocks"_a, "rows_max"_a, "sequences_max"_a, "devices"_a, "isa_limit"_a,
           "kv_type"_a = "f16", "adapter_slots"_a = 0, "adapter_rank_max"_a = 0, "packed_path"_a = "",
           "rank"_a = 0, "ranks"_a = 1, "group_descriptor"_a = -1)
      .def("execute", &execute, "token_ids"_a.noconvert(), "row_starts"_a.noconvert(),
           "context_lens"_a.noconvert(), "block_ids"_a.noconvert(), "block_starts"_a.noconvert(),
           "sampled"_a.noconvert(), "temperature"_a.noconvert(), "top_k"_a.noconvert(),
           "top_p"_a.noconvert(), "min_p"_a.noconvert(), "seed"_a.noconvert(),
           "position"_a.noconvert(), "out_token_ids"_a.noconvert(), "out_logprobs"_a.noconvert(),
           "out_logits"_a.noconvert().none() = nb::none(),
           "edits"_a.none() = nb::none(), "masks"_a.none() = nb::none(),
           "top"_a.none() = nb::none(), "out_hidden"_a.noconvert().none() = nb::none(),
           "filters"_a.none() = nb::none(), "adapters"_a.noconvert().none() = nb::none())
      .def("load_adapter", &load_adapter, "slot"_a, "parts"_a)
      .def("unload_adapter", &unload_adapter, "slot"_a)
      .def("discard_kv", &discard_kv)
      .def("serve", &serve)
      .def("copy_blocks", &copy_blocks, "pairs"_a)
      .def("export_blocks", &export_blocks, "block_ids"_a)
      .def("import_blocks", &import_blocks, "block_ids"_a, "data"_a)
      .def_prop_ro("kernel_name",
                   [](CpuTransformer& self) { return std::string(self.transformer().kernels().name); })
      .def_prop_ro("max_model_len",
                   [](CpuTransformer& self) { return self.transformer().max_model_len(); })
      .def_prop_ro("device_weight_bytes",
                   [](CpuTransformer& self) { return self.transformer().weight_bytes(); })
      .def_prop_ro("kv_bytes", [](CpuTransformer& self) {
        return self.transformer().kv_cache().byte_count();
      });
}

}  // namespace headrace
