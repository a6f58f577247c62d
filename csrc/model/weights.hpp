// All weights of a model, checked against its shape and packed: those of one rank, where several run
// the model. A rank has whole rows of a part of each matrix's outputs, so no block of a quantized row
// is ever cut and each output is summed in one place. The shapes below are those of all ranks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rank_group.hpp"
#include "model/model_shape.hpp"
#include "model/packed_matrix.hpp"

namespace headrace {

struct Linear {
  PackedMatrix matrix;
  Buffer<float> bias;   // (outputs padded to 16) or empty
  int tile_first = 0;   // of the whole matrix, where this rank's tiles begin

  int output_first() const { return tile_first * tile_columns; }
  const float* bias_at(int tile) const {
    return bias.size() == 0 ? nullptr : bias.data() + tile * tile_columns;
  }
};

struct Norm {
  Buffer<float> weight;   // (count,)
  Buffer<float> bias;     // of LayerNorm, else empty
};

struct FeedForward {
  Linear gate;   // (ffn_size, hidden_size), empty without a gate
  Linear up;     // (ffn_size, hidden_size)
  Linear down;   // (hidden_size, ffn_size)
};

struct Experts {
  Linear router;                        // (count, hidden_size)
  std::vector<FeedForward> each;        // (count,)
  FeedForward shared;                   // of every row, or empty
  Buffer<float> shared_gate;            // (hidden_size,) its logistic gate, or empty
};

struct LayerWeights {
  Norm attention_norm;            // before attention
  Norm attention_post_norm;       // behind it
  Linear query;                   // (num_heads * head_dim, hidden_size)
  Linear key;                     // (num_kv_heads * head_dim, hidden_size)
  Linear value;                   // (num_kv_heads * head_dim, hidden_size)
  Buffer<float> query_norm;       // (head_dim,) or (num_heads * head_dim,), or empty
  Buffer<float> key_norm;
  Buffer<float> sinks;            // (num_heads,) or empty
  Linear attention_output;        // (hidden_size, num_heads * head_dim)
  Norm ffn_norm;
  Norm ffn_post_norm;
  FeedForward ffn;                // empty where there are experts
  Experts experts;
};

struct ModelWeights {
  std::unique_ptr<PackedFile> packed;   // where the matrices are, if in a file
  Linear embedding;               // (vocab_size, hidden_size); the output matrix too, if tied
  Linear position_embedding;      // (context_length, hidden_size), of encoders
  Linear type_embedding;          // (>= 1, hidden_size), of encoders; the first row is used
  Norm embedding_norm;            // of encoders
  std::vector<LayerWeights> layers;
  Norm output_norm;               // (hidden_size,)
  Linear output;                  // (vocab_size, hidden_size), empty if tied
  bool tied = false;
  const Linear& output_linear() const { return tied ? embedding : output; }
  std::vector<std::size_t> device_bytes(const ModelShape& shape, int device_count) const;
};

using DeviceCores = std::vector<std::vector<int>>;   // by device

// A matrix's outputs [rows.first, rows.end).
RawTensor rows_of(const RawTensor& raw, const RowSpan& rows);

// ModelFileError naming the tensor that is missing or has another shape than `shape` asks for.
// Each layer is packed by a thread on its device's cores (none: anywhere), so that it lies in their
// memory; the embedding with the first layer, the matrix that gives logits with the last.
// With a path the packed matrices are mapped from there, or put there for the next load.
ModelWeights load_weights(const ModelShape& shape, const std::map<std::string, RawTensor>& tensors,
                          const RankPlace& place, const DeviceCores& cores,
                          const std::string& packed_path);

}  // namespace headrace
