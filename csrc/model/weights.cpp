#include "model/weights.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <tuple>

#include "base/errors.hpp"
#include "base/thread_team.hpp"
#include "model/expert_plan.hpp"

namespace headrace {

namespace {

// Units [part.first, part.end) of a tensor that has `count` of `unit_bytes` each.
std::function<RawBytes()> bytes_of_part(const RawTensor& raw, std::size_t unit_bytes, int count,
                                        const RowSpan& part) {
  return [raw, unit_bytes, count, part] {
    const RawBytes whole = raw.bytes(unit_bytes * static_cast<std::size_t>(count));
    const std::uint8_t* first = whole.data.get() + unit_bytes * static_cast<std::size_t>(part.first);
    return RawBytes{{whole.data, first}, unit_bytes * static_cast<std::size_t>(part.count())};
  };
}

}  // namespace

RawTensor rows_of(const RawTensor& raw, const RowSpan& rows) {
  if (raw.outputs == rows.count()) return raw;
  RawTensor part = raw;
  part.make = bytes_of_part(raw, raw_row_bytes(raw.ggml_type, raw.inputs, raw.name), raw.outputs,
                            rows);
  part.outputs = rows.count();
  return part;
}

namespace {

// Numbers of a vector; one that is quantized is refused when it is read.
RawTensor columns_of(const RawTensor& raw, const RowSpan& columns) {
  if (raw.inputs == columns.count() || is_quantized(weight_type_of(raw.ggml_type, raw.name)))
    return raw;
  RawTensor part = raw;
  part.make = bytes_of_part(raw, raw_row_bytes(raw.ggml_type, 1, raw.name), raw.inputs, columns);
  part.inputs = columns.count();
  return part;
}

constexpr int experts_max = 1024;

class Loader {
 public:
  Loader(const std::map<std::string, RawTensor>& tensors, const RankPlace& place,
         PackedFile* packed)
      : tensors_(tensors), place_(place), packed_(packed) {}

  // This rank's outputs, cut at multiples of `unit`.
  Linear linear(const std::string& name, int outputs, int inputs, int unit = tile_columns) const {
    const RowSpan rows = rows_of_rank(place_, outputs, unit);
    Linear out = whole_or_part(name, outputs, inputs, rows);
    out.tile_first = rows.first / tile_columns;
    return out;
  }

  Linear whole_linear(const std::string& name, int outputs, int inputs) const {
    return whole_or_part(name, outputs, inputs, {0, outputs});
  }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }

  Norm norm(const std::string& name, const ModelShape& shape) const {
    Norm out;
    out.weight = vector(name + ".weight", shape.hidden_size);
    if (shape.layer_norm) out.bias = vector(name + ".bias", shape.hidden_size);
    return out;
  }

  // The matrices of one network; `suffix` tells experts apart.
  FeedForward feed_forward(const ModelShape& s, const std::string& prefix, const std::string& suffix,
                           int ffn_size) const {
    FeedForward out;
    if (s.gated)
      out.gate = linear(prefix + "ffn_gate" + suffix, ffn_size, s.hidden_size, group_values);
    out.up = linear(prefix + "ffn_up" + suffix, ffn_size, s.hidden_size, group_values);
    out.down = linear(prefix + "ffn_down" + suffix, s.hidden_size, ffn_size);
    return out;
  }

  Buffer<float> vector(const std::string& name, int count) const {
    return vector(name, count, {0, count});
  }

  // Numbers [rows.first, rows.end) of a vector of `count`.
  Buffer<float> vector(const std::string& name, int count, const RowSpan& rows) const {
    const RawTensor part = columns_of(find(name, 1, count), rows);
    return read_vector(part, round_up(static_cast<std::size_t>(rows.count()), tile_columns));
  }

 private:
  Linear whole_or_part(const std::string& name, int outputs, int inputs,
                       const RowSpan& rows) const {
    Linear out;
    out.matrix = PackedMatrix(rows_of(find(name + ".weight", outputs, inputs), rows), packed_);
    if (tensors_.count(name + ".bias") != 0) out.bias = vector(name + ".bias", outputs, rows);
    return out;
  }

  const RawTensor& find(const std::string& name, int outputs, int inputs) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      throw ModelFileError("tensor " + name + " is missing from the model file");
    const RawTensor& raw = found->second;
    if (raw.outputs != outputs || raw.inputs != inputs)
      throw ModelFileError("tensor " + name + " is " + std::to_string(raw.outputs) + " x " +
                           std::to_string(raw.inputs) + " where the metadata asks for " +
                           std::to_string(outputs) + " x " + std::to_string(inputs));
    return raw;
  }

  const std::map<std::string, RawTensor>& tensors_;
  RankPlace place_;
  PackedFile* packed_;
};

void require(bool holds, const std::string& text) {
  if (!holds) throw ModelFileError(text);
}

void check_layers(const ModelShape& s) {
  require(static_cast<int>(s.layers.size()) == s.num_layers, "layers must have num_layers entries");
  for (const Rotation& rotation : s.rotations) {
    require(static_cast<int>(rotation.frequencies.size()) == s.rope_dimensions / 2,
            "a rotation has another number of frequencies than rope_dimensions asks for");
    for (const double frequency : rotation.frequencies)
      require(std::isfinite(frequency) && frequency >= 0, "a rotation's frequency is not positive");
  }
  for (const LayerShape& layer : s.layers) {
    require(layer.window_tokens >= 0, "window_tokens is negative");
    require(layer.rotation >= -1 && layer.rotation < static_cast<int>(s.rotations.size()),
            "a layer's rotation does not exist");
  }
}

// Each rank needs a part of everything that is split.
void check_place(const ModelShape& s, const RankPlace& place) {
  if (place.ranks == 1) return;
  const std::tuple<const char*, int, int> parts[] = {
      {"kv heads", s.num_kv_heads, 1},
      {"hidden values", s.hidden_size, tile_columns},
      {"tokens", s.vocab_size, tile_columns},
      {"feed-forward values", s.experts.count > 0 ? s.experts.ffn_size : s.ffn_size, group_values},
      {"feed-forward values of the shared expert",
       s.experts.shared_ffn_size > 0 ? s.experts.shared_ffn_size : INT_MAX, group_values},
  };
  for (const auto& [name, count, unit] : parts)
    require((static_cast<long long>(count) + unit - 1) / unit >= place.ranks,
            "the model has " + std::to_string(count) + " " + name + ", in units of " +
                std::to_string(unit) + ": too few for " + std::to_string(place.ranks) + " ranks");
}

void check_experts(const ExpertShape& experts) {
  require(experts.count >= 0 && experts.count <= experts_max, "more than 1024 experts");
  if (experts.count == 0) return;
  require(experts.used > 0 && experts.used <= experts.count && experts.used <= experts_used_max,
          "a row uses 1 to 32 experts, and no more than there are");
  require(experts.ffn_size > 0, "the experts' ffn_size must be positive");
}

Experts load_experts(const Loader& loader, const ModelShape& s, const std::string& prefix) {
  Experts out;
  out.router = loader.whole_linear(prefix + "ffn_gate_inp", s.experts.count, s.hidden_size);
  for (int expert = 0; expert < s.experts.count; ++expert)
    out.each.push_back(
        loader.feed_forward(s, prefix, "." + std::to_string(expert), s.experts.ffn_size));
  if (s.experts.shared_ffn_size > 0) {
    out.shared = loader.feed_forward(s, prefix, "_shexp", s.experts.shared_ffn_size);
    if (loader.has(prefix + "ffn_gate_inp_shexp.weight"))
      out.shared_gate = loader.vector(prefix + "ffn_gate_inp_shexp.weight", s.hidden_size);
  }
  return out;
}

void load_norms(const Loader& loader, const ModelShape& s, const std::string& prefix,
                LayerWeights& out) {
  if (s.norms_before()) {
    out.attention_norm = loader.norm(prefix + "attn_norm", s);
    out.ffn_norm = loader.norm(prefix + "ffn_norm", s);
  }
  if (s.norm_placement == NormPlacement::after) {   // the names that encoders have in files
    out.attention_post_norm = loader.norm(prefix + "attn_output_norm", s);
    out.ffn_post_norm = loader.norm(prefix + "layer_output_norm", s);
  } else if (s.norm_placement != NormPlacement::before) {
    out.attention_post_norm = loader.norm(prefix + "post_attention_norm", s);
    out.ffn_post_norm = loader.norm(prefix + "post_ffw_norm", s);
  }
  if (s.query_key_norm != QueryKeyNorm::none) {
    const bool whole = s.query_key_norm == QueryKeyNorm::whole;
    out.query_norm =
        loader.vector(prefix + "attn_q_norm.weight", whole ? s.query_size() : s.head_dim);
    out.key_norm = loader.vector(prefix + "attn_k_norm.weight", whole ? s.kv_size() : s.head_dim);
  }
}

void pin_to(const DeviceCores& cores, int device) {
  pin_thread(cores[static_cast<std::size_t>(device)]);
}

LayerWeights load_layer(const Loader& loader, const ModelShape& s, int index,
                        const RankPlace& place, const DeviceCores& cores) {
  const LayerShape& layer = s.layers[static_cast<std::size_t>(index)];
  const std::string prefix = "blk." + std::to_string(index) + ".";
  LayerWeights out;
  pin_to(cores, layer.device);
  load_norms(loader, s, prefix, out);
  const int group_width = s.group_size() * s.head_dim;
  out.query = loader.linear(prefix + "attn_q", s.query_size(), s.hidden_size, group_width);
  out.key = loader.linear(prefix + "attn_k", s.kv_size(), s.hidden_size, s.head_dim);
  out.value = loader.linear(prefix + "attn_v", s.kv_size(), s.hidden_size, s.head_dim);
  if (s.attention_sinks)
    out.sinks = loader.vector(prefix + "attn_sinks.weight", s.num_heads,
                              rows_of_rank(place, s.num_heads, s.group_size()));
  out.attention_output = loader.linear(prefix + "attn_output", s.hidden_size, s.query_size());
  if (s.experts.count > 0) {
    pin_to(cores, layer.experts_device);
    out.experts = load_experts(loader, s, prefix);
  } else {
    out.ffn = loader.feed_forward(s, prefix, "", s.ffn_size);
  }
  return out;
}

std::size_t bytes_of(const FeedForward& ffn) {
  return ffn.gate.matrix.byte_count() + ffn.up.matrix.byte_count() + ffn.down.matrix.byte_count();
}

}  // namespace

void check_shape(const ModelShape& s) {
  constexpr int limit = 1 << 24;   // far past any model; keeps products inside 64 bits
  const std::pair<const char*, int> sizes[] = {
      {"num_layers", s.num_layers},     {"hidden_size", s.hidden_size},
      {"num_heads", s.num_heads},       {"num_kv_heads", s.num_kv_heads},
      {"head_dim", s.head_dim},         {"ffn_size", s.ffn_size},
      {"vocab_size", s.vocab_size},     {"context_length", s.context_length},
  };
  for (const auto& [name, value] : sizes)
    require(value > 0 && value <= limit,
            std::string(name) + " is " + std::to_string(value) + "; the model file is corrupt");
  require(s.num_layers <= 4096, "num_layers is over 4096; the model file is corrupt");
  require(s.num_heads <= 4096, "num_heads is over 4096; the model file is corrupt");
  require(s.num_heads % s.num_kv_heads == 0, "num_heads is no multiple of num_kv_heads");
  require(s.group_size() <= query_rows_max,
          "more than 32 query heads share a kv head, which the CPU kernels do not run");
  require(s.head_dim % 16 == 0 && s.head_dim <= head_dim_max,
          "head_dim is " + std::to_string(s.head_dim) +
              "; the CPU kernels run multiples of 16 up to 256");
  require(s.rope_dimensions >= 0 && s.rope_dimensions % 2 == 0 && s.rope_dimensions <= s.head_dim,
          "rope_dimensions is " + std::to_string(s.rope_dimensions) +
              ", which does not fit head_dim");
  require(s.norm_epsilon >= 0, "norm_epsilon is negative");
  check_layers(s);
  check_experts(s.experts);
}

std::vector<std::size_t> ModelWeights::device_bytes(const ModelShape& shape,
                                                    int device_count) const {
  std::vector<std::size_t> totals(static_cast<std::size_t>(device_count));
  const auto on = [&](int device) -> std::size_t& {
    return totals[static_cast<std::size_t>(device)];
  };
  on(tied ? shape.last_device() : shape.first_device()) += embedding.matrix.byte_count();
  on(shape.last_device()) += output.matrix.byte_count();
  for (std::size_t index = 0; index < layers.size(); ++index) {
    const LayerWeights& layer = layers[index];
    std::size_t& total = on(shape.layers[index].device);
    for (const Linear* linear : {&layer.query, &layer.key, &layer.value, &layer.attention_output})
      total += linear->matrix.byte_count();
    total += bytes_of(layer.ffn);
    std::size_t& experts = on(shape.layers[index].experts_device);
    experts += layer.experts.router.matrix.byte_count() + bytes_of(layer.experts.shared);
    for (const FeedForward& expert : layer.experts.each) experts += bytes_of(expert);
  }
  return totals;
}

namespace {

ModelWeights load_all(const ModelShape& s, const std::map<std::string, RawTensor>& tensors,
                      const RankPlace& place, const DeviceCores& cores,
                      std::unique_ptr<PackedFile> packed) {
  const Loader loader(tensors, place, packed.get());
  ModelWeights weights;
  weights.packed = std::move(packed);
  pin_to(cores, s.tied_output ? s.last_device() : s.first_device());
  weights.embedding = loader.linear("token_embd", s.vocab_size, s.hidden_size);
  for (int layer = 0; layer < s.num_layers; ++layer)
    weights.layers.push_back(load_layer(loader, s, layer, place, cores));
  pin_to(cores, s.last_device());
  if (s.encoder) {
    weights.position_embedding = loader.whole_linear("position_embd", s.context_length, s.hidden_size);
    weights.type_embedding = loader.whole_linear("token_types", 1, s.hidden_size);
    weights.embedding_norm = loader.norm("token_embd_norm", s);
    weights.tied = true;
    return weights;
  }
  weights.output_norm = loader.norm("output_norm", s);
  weights.tied = s.tied_output;
  if (!s.tied_output) weights.output = loader.linear("output", s.vocab_size, s.hidden_size);
  return weights;
}

// As much of a matrix as a rank can have at most: its even share and one unit more, or all of a small
// one. A packed file is made with room for that and cut to what was written.
RawTensor largest_part(const ModelShape& s, const RankPlace& place, RawTensor raw) {
  const int unit_max = std::max(experts_max, s.group_size() * s.head_dim);
  if (place.ranks > 1) raw.outputs = std::min(raw.outputs, raw.outputs / place.ranks + unit_max);
  return raw;
}

}  // namespace

ModelWeights load_weights(const ModelShape& s, const std::map<std::string, RawTensor>& tensors,
                          const RankPlace& place, const DeviceCores& cores,
                          const std::string& packed_path) {
  check_place(s, place);
  if (packed_path.empty()) return load_all(s, tensors, place, cores, nullptr);
  if (auto packed = PackedFile::open(packed_path)) {
    try {
      return load_all(s, tensors, place, cores, std::move(packed));
    } catch (const StalePackedFile&) {   // of another model or an older writer: made anew below
    }
  }
  std::size_t room = 0;
  for (const auto& [name, raw] : tensors)
    room += PackedFile::entry_bytes(packed_bytes(largest_part(s, place, raw)));
  auto packed = PackedFile::create(packed_path, room);
  if (packed == nullptr) return load_all(s, tensors, place, cores, nullptr);
  ModelWeights weights = load_all(s, tensors, place, cores, std::move(packed));
  weights.packed->publish();
  return weights;
}

}  // namespace headrace
