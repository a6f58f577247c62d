#include "model/weights.hpp"

#include "base/errors.hpp"

namespace headrace {

namespace {

class Loader {
 public:
  explicit Loader(const std::map<std::string, RawTensor>& tensors) : tensors_(tensors) {}

  Linear linear(const std::string& name, int outputs, int inputs) const {
    Linear out;
    out.matrix = PackedMatrix(find(name + ".weight", outputs, inputs));
    if (tensors_.count(name + ".bias") != 0) out.bias = vector(name + ".bias", outputs);
    return out;
  }

  Buffer<float> vector(const std::string& name, int count) const {
    return read_vector(find(name, 1, count),
                       round_up(static_cast<std::size_t>(count), tile_columns));
  }

 private:
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
};

void require(bool holds, const std::string& text) {
  if (!holds) throw ModelFileError(text);
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
  require(s.rope_theta > 0 && s.rope_scale > 0, "rope_theta and rope_scale must be positive");
  require(s.norm_epsilon >= 0, "norm_epsilon is negative");
}

ModelWeights load_weights(const ModelShape& s, const std::map<std::string, RawTensor>& tensors) {
  const Loader loader(tensors);
  ModelWeights weights;
  weights.embedding = loader.linear("token_embd", s.vocab_size, s.hidden_size);
  for (int layer = 0; layer < s.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    LayerWeights& out = weights.layers.emplace_back();
    out.attention_norm = loader.vector(prefix + "attn_norm.weight", s.hidden_size);
    out.query = loader.linear(prefix + "attn_q", s.query_size(), s.hidden_size);
    out.key = loader.linear(prefix + "attn_k", s.kv_size(), s.hidden_size);
    out.value = loader.linear(prefix + "attn_v", s.kv_size(), s.hidden_size);
    out.attention_output = loader.linear(prefix + "attn_output", s.hidden_size, s.query_size());
    out.ffn_norm = loader.vector(prefix + "ffn_norm.weight", s.hidden_size);
    out.gate = loader.linear(prefix + "ffn_gate", s.ffn_size, s.hidden_size);
    out.up = loader.linear(prefix + "ffn_up", s.ffn_size, s.hidden_size);
    out.down = loader.linear(prefix + "ffn_down", s.hidden_size, s.ffn_size);
  }
  weights.output_norm = loader.vector("output_norm.weight", s.hidden_size);
  if (tensors.count("rope_freqs.weight") != 0) {
    weights.rope_divisors = loader.vector("rope_freqs.weight", s.rope_dimensions / 2);
    for (int pair = 0; pair < s.rope_dimensions / 2; ++pair)
      require(weights.rope_divisors[static_cast<std::size_t>(pair)] > 0,
              "tensor rope_freqs.weight has a divisor that is not positive");
  }
  weights.tied = s.tied_output;
  if (!s.tied_output) weights.output = loader.linear("output", s.vocab_size, s.hidden_size);
  return weights;
}

}  // namespace headrace
