// The transformer as Python has it: one caller at a time, and what exported KV blocks begin with.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <string>

#include "binding/arrays.hpp"
#include "binding/model_arguments.hpp"
#include "model/transformer.hpp"

namespace headrace {

// The bytes of exported blocks start with what they are, so that another layout is refused.
struct ExportHeader {
  // Or "hrkvq8"; '8' at the end where products have 8-bit activations, whose numbers are others.
  char magic[8] = {'h', 'r', 'k', 'v', 'f', '1', '6', '\0'};
  std::int32_t num_layers;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size_tokens = block_tokens;
};

// One caller at a time: the team and the scratch belong to the step that runs.
class CpuTransformer {
 public:
  CpuTransformer(const ModelShape& shape, const nanobind::dict& tensors,
                 const TransformerOptions& options)
      : transformer_(shape, raw_tensors(tensors), options), options_(options) {}

  Transformer& transformer() { return transformer_; }
  std::mutex& mutex() { return mutex_; }
  const TransformerOptions& options() const { return options_; }

  ExportHeader header() const {
    ExportHeader header;
    if (options_.kv_type == KvType::q8) std::memcpy(header.magic, "hrkvq8\0", 8);
    if (transformer_.activation_bits() == 8) header.magic[7] = '8';
    header.num_layers = transformer_.shape().num_layers;
    header.num_kv_heads = transformer_.shape().num_kv_heads;
    header.head_dim = transformer_.shape().head_dim;
    return header;
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

// One step; of the optional fields each is a tuple of arrays (step_bindings.cpp).
void execute(CpuTransformer& self, const Vector<std::int32_t>& token_ids,
             const Vector<std::int32_t>& row_starts, const Vector<std::int32_t>& context_lens,
             const Vector<std::int32_t>& block_ids, const Vector<std::int32_t>& block_starts,
             const Vector<std::int32_t>& sampled, const Vector<float>& temperature,
             const Vector<std::int32_t>& top_k, const Vector<float>& top_p,
             const Vector<float>& min_p, const Vector<std::uint64_t>& seed,
             const Vector<std::int64_t>& position, const OutVector<std::int32_t>& out_token_ids,
             const OutVector<float>& out_logprobs,
             const std::optional<OutMatrix<float>>& out_logits,
             const std::optional<nanobind::tuple>& edits, const std::optional<nanobind::tuple>& masks,
             const std::optional<nanobind::tuple>& top,
             const std::optional<OutMatrix<float>>& out_hidden,
             const std::optional<nanobind::tuple>& filters,
             const std::optional<Vector<std::int32_t>>& adapters);

}  // namespace headrace
