// All weights of a llama-family model, checked against its shape and packed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/model_shape.hpp"
#include "model/packed_matrix.hpp"

namespace headrace {

struct Linear {
  PackedMatrix matrix;
  Buffer<float> bias;   // (outputs padded to 16) or empty

  const float* bias_at(int tile) const {
    return bias.size() == 0 ? nullptr : bias.data() + tile * tile_columns;
  }
};

struct LayerWeights {
  Buffer<float> attention_norm;   // (hidden_size,)
  Linear query;                   // (num_heads * head_dim, hidden_size)
  Linear key;                     // (num_kv_heads * head_dim, hidden_size)
  Linear value;                   // (num_kv_heads * head_dim, hidden_size)
  Linear attention_output;        // (hidden_size, num_heads * head_dim)
  Buffer<float> ffn_norm;         // (hidden_size,)
  Linear gate;                    // (ffn_size, hidden_size)
  Linear up;                      // (ffn_size, hidden_size)
  Linear down;                    // (hidden_size, ffn_size)
};

struct ModelWeights {
  Linear embedding;               // (vocab_size, hidden_size); the output matrix too, if tied
  std::vector<LayerWeights> layers;
  Buffer<float> output_norm;      // (hidden_size,)
  Buffer<float> rope_divisors;    // (rope_dimensions / 2,) of the frequencies, or empty (Llama 3.1)
  Linear output;                  // (vocab_size, hidden_size), empty if tied
  bool tied = false;

  const PackedMatrix& output_matrix() const { return tied ? embedding.matrix : output.matrix; }
};

// ModelFileError naming the tensor that is missing or has another shape than `shape` asks for.
ModelWeights load_weights(const ModelShape& shape, const std::map<std::string, RawTensor>& tensors);

}  // namespace headrace
