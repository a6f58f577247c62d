// The CPU model runner: weights, KV cache and scratch of one model, and its step.
//
// A step runs on the whole team as a sequence of stages with a barrier after each:
//
//   embed
//   per layer: norm | Q, K, V | rotate, write KV | attend | output + residual
//              norm | gate, up, activation | down + residual
//   per 32 sampled rows: norm | output matrix | sample
//
// That is llama; what other families add (ModelShape says) stands beside it: a branch that is normed
// or scaled before it is added gets a stage more, experts are chosen by a router (expert_plan.hpp).
//
// Several ranks (base/rank_group.hpp) run the same stages together, each its part of the heads and of
// every matrix's outputs; the rows between the stages are shared, so that each number is computed in
// one place, as one rank alone would.
//
// Everything is allocated at construction. Reading order: model_shape, weights, kv_cache,
// activations, attention_plan, transformer, transformer_attention, transformer_feed_forward,
// transformer_tokens, transformer_setup, adapter, transformer_adapters, transformer_ranks, sampler.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rank_group.hpp"
#include "base/thread_team.hpp"
#include "kernels/kernel_table.hpp"
#include "model/activations.hpp"
#include "model/adapter.hpp"
#include "model/attention_plan.hpp"
#include "model/expert_plan.hpp"
#include "model/kv_cache.hpp"
#include "model/model_shape.hpp"
#include "model/sampler.hpp"
#include "model/step_batch.hpp"
#include "model/weights.hpp"

namespace headrace {

// Cores and their memory: a NUMA node, or with no cores named whatever the system gives.
struct Device {
  std::vector<int> cores;
  int thread_count = 1;
};

struct TransformerOptions {
  int num_blocks = 0;
  int rows_max = 0;
  int sequences_max = 0;
  std::vector<Device> devices;   // at least one; each has a team of threads
  std::string isa_limit;   // see choose_kernels
  int activation_bits = 16;   // beside quantized weights
  KvType kv_type = KvType::f16;
  int adapter_slots = 0;
  int adapter_rank_max = 0;
  std::string packed_path;   // of the packed weights' file; empty keeps them in memory only
  RankPlace place;
  int group_descriptor = -1;   // of the file that several ranks share
};

// Where a step's results go.
struct StepResults {
  std::int32_t* token_ids = nullptr;   // (N,)
  float* logprobs = nullptr;           // (N,)
  float* logits = nullptr;             // (N, vocab_size), or null if nobody asks
  std::int32_t* top_ids = nullptr;     // (N, K), filled up to each sample's top_counts
  float* top_logprobs = nullptr;       // (N, K)
  float* hidden = nullptr;             // (R, hidden_size) after the last layer, or null

  TopTokens top_of(const StepBatch& batch, int sample) const {
    if (batch.top_counts == nullptr) return {};
    const std::size_t offset = static_cast<std::size_t>(sample) *
                               static_cast<std::size_t>(batch.top_columns);
    return {batch.top_counts[sample], top_ids + offset, top_logprobs + offset};
  }
};

// Floats of all ranks' queries and keys, which they gather to norm them together; else 0.
std::size_t gathered_heads(const ModelShape& shape, const TransformerOptions& options);

// The group that `options` ask for, with room for all that its ranks share; null for a single rank.
std::unique_ptr<RankGroup> make_group(const ModelShape& shape, const StepLimits& limits,
                                      const TransformerOptions& options);

class Transformer {
 public:
  Transformer(const ModelShape& shape, const std::map<std::string, RawTensor>& tensors,
              const TransformerOptions& options);

  const ModelShape& shape() const { return shape_; }
  const KernelTable& kernels() const { return kernels_; }
  int activation_bits() const;   // 8 if any of its matrices is multiplied with bytes or fours
  int max_model_len() const { return max_model_len_; }
  const std::vector<std::size_t>& weight_bytes() const { return weight_bytes_; }   // by device
  KvCache& kv_cache() { return kv_; }
  PackedFile* packed_file() { return weights_.packed.get(); }   // null if the weights are in memory

  void execute(const StepBatch& batch, const StepResults& results);   // throws InvalidStep
  void copy_blocks(const std::vector<std::pair<int, int>>& pairs);     // source, destination
  void discard_kv();

  // The KV of a block, (export_bytes(),) with the heads of all ranks: whoever has them takes it.
  std::size_t export_bytes() const;
  void export_block(int block_id, std::uint8_t* out);
  void import_block(int block_id, const std::uint8_t* in);

  // What ranks other than 0 do: take part in rank 0's calls, one by one, until it closes.
  RankCommand await_command() { return group_->await_command(); }
  void obey(RankCommand command);

  // Puts an adapter into a slot, or with null empties it; between steps only.
  void load_adapter(int slot, std::unique_ptr<Adapter> adapter);
  const AdapterPlan& adapters() const { return adapters_; }

 private:
  struct Scratch {   // of one thread
    Scratch(const ModelShape& shape, const KernelTable& kernels, bool gathers_heads);
    Buffer<float> row;                 // (hidden_size,) a normed row
    Buffer<float> heads;               // (query_size,) normed together, where they are gathered
    Buffer<float> gate;                // (row_block, 32)
    Buffer<float> up;                  // (row_block, 32)
    Buffer<float> scores;              // (query_rows_max, split_tokens)
    Buffer<float> split_mix;           // (query_rows_max, head_dim)
    Buffer<AttentionState> states;     // (query_rows_max,)
    Sampler sampler;
  };

  float* hidden_row(int row) { return hidden_.data() + static_cast<std::size_t>(row) * hidden_stride_; }
  float* branch_row(int row) { return branch_.data() + static_cast<std::size_t>(row) * hidden_stride_; }

  void make_inputs();
  void run_batch(const StepBatch& batch, const StepResults& results, bool keeps_all);
  void post_step(const StepBatch& batch, bool keeps_all);
  StepBatch posted_step() const;
  void post_copies(const std::vector<std::pair<int, int>>& pairs, std::size_t first, int count);
  std::size_t command_words() const;
  void build_rope_tables();
  // A stretch of layers' halves (attention of layer i is 2 i, its feed-forward 2 i + 1) on one device.
  struct Stretch {
    int device;
    int first;
    int end;
  };

  void cut_into_stretches();
  void run_stretch(Member& member, const Stretch& stretch, const StepBatch& batch,
                   const StepResults& results);
  void run_attention(Member& member, int index, const StepBatch& batch);
  void run_feed_forward(Member& member, int index, const StepBatch& batch);
  int rows_behind_attention(int index, const StepBatch& batch) const;
  void choose_kept_rows(const StepBatch& batch, bool keeps_all);
  void keep_rows(Member& member);
  void embed(Member& member, const StepBatch& batch);
  void embed_encoder_row(int row, int position, float* scratch);
  void norm(const float* row, const Norm& norm, float* out) const;
  void enter_branch(Member& member, int row_count, const Norm& norm, Activations& out);
  void leave_branch(Member& member, int row_count, const Linear& linear, const Activations& input,
                    const Norm& norm, AdapterSite site);
  void join_branch(Member& member, int row_count, const Norm& post_norm);
  void multiply(Member& member, const Linear& linear, const Activations& input, int row_count,
                float* out, std::size_t stride, bool accumulate, AdapterSite site = {},
                Meet meet = Meet::team);
  std::size_t low_rank_stride() const;
  float* low_rank_row(int row, int place);
  void enter_adapters(Member& member, int layer, AdapterTarget first, int count,
                      const Activations& input);
  void add_adapters(AdapterSite site, int tile, int row_first, int row_count, float* out,
                    std::size_t stride);
  void embed_adapted(int row, int token);
  void enter_output_adapter(int place, int sequence);
  void add_output_adapter(int place, int sequence, int tile, float* out);
  void add_low_rank(const LowRank& low, int tile, int row, float* out);
  void project_qkv(Member& member, int index, int row_count);
  bool gathers_heads() const { return heads_.size() != 0; }
  float* gathered_row(int row);
  void gather_heads(Member& member, int row_count);
  void write_kv(Member& member, int index, const StepBatch& batch);
  void norm_heads(float* heads, int head_count, const Buffer<float>& weight) const;
  void norm_gathered(int row, const LayerWeights& layer, float* normed, float* heads);
  void attend(Member& member, int layer, const StepBatch& batch);
  void attend_item(std::size_t index, int layer, const StepBatch& batch, Scratch& scratch);
  void place_next(AttentionTile& tile, const AttentionItem& next, int layer, const StepBatch& batch);
  void place_rows(AttentionTile& tile, const AttentionItem& item, int layer, const StepBatch& batch);
  void finish_rows(const AttentionItem& item, int layer, AttentionState* states);
  void requantize(Member& member, int row_count, const Buffer<float>& rows, Activations& out);
  void feed_forward(Member& member, const FeedForward& ffn, const Activations& input, int ffn_size,
                    int row_count, Activations& out, int layer = -1);
  void gate_unit(const FeedForward& ffn, const Activations& input, int unit, int row_first,
                 int row_count, int ffn_size, Scratch& scratch, Activations& out, int layer = -1);
  void run_experts(Member& member, const Experts& experts, int row_count, const Norm& post_norm);
  void choose_experts(Member& member, const Experts& experts, int row_count);
  void gate_experts(Member& member, const Experts& experts);
  void reduce_experts(Member& member, const Experts& experts);
  void mix_experts(Member& member, const Experts& experts, int row_count);
  void sample(Member& member, const StepBatch& batch, const StepResults& results);
  void scale_logits(float* logits) const;
  void copy_hidden(Member& member, int row_count, float* out);

  ModelShape shape_;
  ModelShape local_;                   // with the heads of this rank only
  int kv_head_first_;                  // of all heads, where this rank's begin
  const KernelTable& kernels_;
  int rows_max_;
  int max_model_len_;
  StepLimits limits_;
  std::unique_ptr<RankGroup> group_;   // null if this rank is alone
  std::int32_t* command_data_ = nullptr;   // (command_words(),) of the group
  std::uint8_t* parcel_ = nullptr;         // (export_bytes(),) of the group: a block on its way
  ModelWeights weights_;
  std::vector<std::size_t> weight_bytes_;
  KvCache kv_;
  std::size_t hidden_stride_;
  std::size_t qkv_stride_;
  std::size_t logits_stride_;
  bool attention_groups_whole_;        // a kv head's outputs are whole quantization groups
  struct RopeTables {
    Buffer<float> cosine;              // (max_model_len, rope_dimensions / 2)
    Buffer<float> sine;
    RopeTable view;
    float magnitude;
  };
  std::vector<RopeTables> ropes_;      // one for each of shape_.rotations
  Buffer<float> hidden_;               // (rows_max, hidden_stride)
  Buffer<float> branch_;               // (rows_max, hidden_stride) unless branches add directly
  Buffer<float> qkv_;                  // (rows_max, qkv_stride): this rank's queries, keys, values
  Buffer<float> heads_;                // (rows_max, query_size + kv_size) of all ranks, whose heads
                                       // are normed together; else empty
  Buffer<float> mixed_;                // (rows_max, query_size) attention's output, of all ranks
  Buffer<float> logits_;               // (sampled_block, logits_stride)
  std::vector<int> kept_rows_;         // of the last layer, behind its attention
  bool keeps_all_ = true;
  std::vector<int> row_sequence_;      // (rows_max,) sequence of each row
  std::unique_ptr<Activations> attention_input_;
  std::unique_ptr<Activations> mixed_input_;
  std::unique_ptr<Activations> ffn_input_;
  std::unique_ptr<Activations> down_input_;
  std::unique_ptr<Activations> output_input_;
  std::unique_ptr<Activations> expert_input_;    // (rows_max * used, hidden_size), by slot
  std::unique_ptr<Activations> expert_down_;     // (rows_max * used, experts.ffn_size)
  std::unique_ptr<Activations> shared_down_;     // (rows_max, experts.shared_ffn_size)
  Buffer<float> expert_output_;                  // (rows_max * used, hidden_stride)
  Buffer<float> shared_output_;                  // (rows_max, hidden_stride)
  ExpertPlan experts_;
  AdapterPlan adapters_;
  Buffer<float> low_rank_;                       // (rows_max, low_rank_stride) once one is loaded
  AttentionPlan plan_;
  std::vector<Scratch> scratch_;
  std::vector<Stretch> stretches_;
  std::vector<Device> devices_;
  std::vector<std::unique_ptr<ThreadTeam>> teams_;   // one a device
};

}  // namespace headrace
