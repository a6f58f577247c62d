// The numbers of headrace.weights.architecture.ArchitectureSpec, and those that follow from them.
#pragma once

#include "kernels/kernel_table.hpp"

namespace headrace {

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
  double rope_theta = 0;
  double rope_scale = 1;
  bool tied_output = false;

  int group_size() const { return num_heads / num_kv_heads; }
  int query_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
};

// ModelFileError that names the field, if these numbers cannot be run.
void check_shape(const ModelShape& shape);

}  // namespace headrace
