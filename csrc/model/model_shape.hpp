// What headrace.kernels.architecture.ArchitectureSpec says, and the numbers that follow from it.
#pragma once

#include <vector>

#include "kernels/kernel_table.hpp"

namespace headrace {

// Where a layer's two branches (attention, feed-forward) are normed.
enum class NormPlacement {
  before,   // h += f(norm(h))
  both,     // h += norm(f(norm(h))): Gemma 2 and 3
  branch,   // h += norm(f(h)): OLMo 2
  after,    // h = norm(h + f(h)): BERT
};

enum class QueryKeyNorm { none, head, whole };

// How the pairs of a head turn: by position * frequency, times the magnitude.
struct Rotation {
  std::vector<double> frequencies;   // (rope_dimensions / 2,)
  float magnitude = 1.0f;
};

struct LayerShape {
  int window_tokens = 0;   // 0: a row sees its whole context
  int rotation = 0;        // of ModelShape::rotations; -1: heads are not turned
  int device = 0;          // of TransformerOptions::devices, where the layer is held and computed
  int experts_device = 0;  // the same of its router and experts
};

struct ExpertShape {
  int count = 0;             // 0: the feed-forward network is dense
  int used = 0;              // of each row
  int ffn_size = 0;
  bool normalized = false;   // the chosen experts' weights sum to 1
  float scale = 1.0f;
  int shared_ffn_size = 0;   // of the expert that every row uses, 0: there is none
};

struct ModelShape {
  int num_layers = 0;
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int ffn_size = 0;
  int vocab_size = 0;
  int context_length = 0;
  float norm_epsilon = 0;
  bool rope_adjacent = true;
  int rope_dimensions = 0;
  bool tied_output = false;
  NormPlacement norm_placement = NormPlacement::before;
  bool layer_norm = false;           // LayerNorm with biases instead of RMS norm
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  Activation activation = Activation::silu;
  bool gated = true;                 // the feed-forward network has a gate
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;
  float attention_scale = 0.0f;      // 0: one over the root of head_dim
  float attention_softcap = 0.0f;    // 0 is off, as in the next
  float logit_softcap = 0.0f;
  float logit_scale = 1.0f;
  bool attention_sinks = false;
  bool encoder = false;              // every row sees all rows; hidden states instead of logits
  std::vector<Rotation> rotations;
  std::vector<LayerShape> layers;    // (num_layers,)
  ExpertShape experts;

  // Where a step begins and ends.
  int first_device() const { return layers.front().device; }
  int last_device() const {
    return experts.count > 0 ? layers.back().experts_device : layers.back().device;
  }
  int group_size() const { return num_heads / num_kv_heads; }
  int query_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
  bool norms_before() const {
    return norm_placement == NormPlacement::before || norm_placement == NormPlacement::both;
  }
  // A branch is added to the hidden state as it comes out of its last matrix.
  bool adds_directly() const {
    return norm_placement == NormPlacement::before && residual_scale == 1.0f;
  }
  bool masked_attention(int layer) const {
    return attention_softcap > 0 || layers[static_cast<std::size_t>(layer)].window_tokens > 0;
  }
};

// ModelFileError that names the field, if these numbers cannot be run.
void check_shape(const ModelShape& shape);

}  // namespace headrace
