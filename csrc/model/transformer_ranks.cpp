// What several ranks of one model do beside the stages: share memory, and tell each other what to run.
#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "model/step_stages.hpp"
#include "model/transformer.hpp"

namespace headrace {

namespace {

// Numbers that a command can carry: a step's arrays, with whole block tables, or pairs of blocks.
std::size_t words_of_command(const StepLimits& limits) {
  const std::size_t sequences = static_cast<std::size_t>(limits.sequences_max);
  const std::size_t table = static_cast<std::size_t>(blocks_of(limits.max_model_len, block_tokens));
  return static_cast<std::size_t>(limits.rows_max) + 5 * (sequences + 1) + sequences * table;
}

std::size_t floats_bytes(std::size_t rows, std::size_t width) {
  return RankGroup::taken_bytes(rows * width * sizeof(float));
}

}  // namespace

std::size_t gathered_heads(const ModelShape& shape, const TransformerOptions& options) {
  if (options.place.ranks == 1 || shape.query_key_norm != QueryKeyNorm::whole) return 0;
  return static_cast<std::size_t>(options.rows_max) *
         static_cast<std::size_t>(shape.query_size() + shape.kv_size());
}

std::unique_ptr<RankGroup> make_group(const ModelShape& shape, const StepLimits& limits,
                                      const TransformerOptions& options) {
  if (options.place.ranks == 1) return nullptr;
  const std::size_t rows = static_cast<std::size_t>(options.rows_max);
  const std::size_t hidden = round_up(static_cast<std::size_t>(shape.hidden_size), tile_columns);
  const std::size_t vocab = round_up(static_cast<std::size_t>(shape.vocab_size), tile_columns);
  const ExpertShape& experts = shape.experts;
  const std::size_t total =
      RankGroup::header_bytes() + 2 * floats_bytes(rows, hidden) +
      floats_bytes(rows, static_cast<std::size_t>(shape.query_size())) +
      floats_bytes(sampled_block, vocab) +
      RankGroup::taken_bytes(gathered_heads(shape, options) * sizeof(float)) +
      RankGroup::taken_bytes(words_of_command(limits) * sizeof(std::int32_t)) +
      RankGroup::taken_bytes(KvCache::export_bytes(shape.num_layers, shape.num_kv_heads,
                                                   shape.head_dim, options.kv_type)) +
      Activations::shared_bytes(rows, shape.query_size()) +
      Activations::shared_bytes(rows, shape.ffn_size) +
      Activations::shared_bytes(rows * static_cast<std::size_t>(experts.used), experts.ffn_size) +
      Activations::shared_bytes(rows, experts.shared_ffn_size);
  return std::make_unique<RankGroup>(options.place, options.group_descriptor, total);
}

std::size_t Transformer::command_words() const { return words_of_command(limits_); }

// The others need what they compute with; how tokens are sampled is rank 0's alone.
void Transformer::post_step(const StepBatch& batch, bool keeps_all) {
  const std::size_t sequences = static_cast<std::size_t>(batch.sequence_count);
  const std::pair<const std::int32_t*, std::size_t> arrays[] = {
      {batch.token_ids, static_cast<std::size_t>(batch.row_count)},
      {batch.row_starts, sequences + 1},
      {batch.context_lens, sequences},
      {batch.block_starts, sequences + 1},
      {batch.sampled, static_cast<std::size_t>(batch.sampled_count)},
      {batch.block_ids, static_cast<std::size_t>(batch.block_count)},
      {batch.adapters, batch.adapters == nullptr ? 0 : sequences},
  };
  std::size_t total = 0;
  for (const auto& [data, count] : arrays) total += count;
  if (total > command_words())
    throw InvalidStep("the block tables of a step are longer than their sequences can be");
  std::int32_t* out = command_data_;
  for (const auto& [data, count] : arrays) out = std::copy_n(data, count, out);
  group_->post(RankCommand::step, {batch.row_count, batch.sequence_count, batch.block_count,
                                   batch.sampled_count, batch.adapters != nullptr, keeps_all});
}

StepBatch Transformer::posted_step() const {
  const std::int32_t* counts = group_->counts();
  StepBatch batch;
  batch.row_count = counts[0];
  batch.sequence_count = counts[1];
  batch.block_count = counts[2];
  batch.sampled_count = counts[3];
  batch.token_ids = command_data_;
  batch.row_starts = batch.token_ids + batch.row_count;
  batch.context_lens = batch.row_starts + batch.sequence_count + 1;
  batch.block_starts = batch.context_lens + batch.sequence_count;
  batch.sampled = batch.block_starts + batch.sequence_count + 1;
  batch.block_ids = batch.sampled + batch.sampled_count;
  if (counts[4] != 0) batch.adapters = batch.block_ids + batch.block_count;
  return batch;
}

void Transformer::copy_blocks(const std::vector<std::pair<int, int>>& pairs) {
  const std::size_t most = group_ == nullptr ? pairs.size() : command_words() / 2;
  for (std::size_t first = 0; first < pairs.size(); first += most) {
    const std::size_t end = std::min(pairs.size(), first + most);
    if (group_ != nullptr) post_copies(pairs, first, static_cast<int>(end - first));
    for (std::size_t i = first; i < end; ++i) kv_.copy_block(pairs[i].first, pairs[i].second);
    if (group_ != nullptr) group_->barrier();
  }
}

void Transformer::post_copies(const std::vector<std::pair<int, int>>& pairs, std::size_t first,
                              int count) {
  for (int i = 0; i < count; ++i) {
    command_data_[2 * i] = pairs[first + static_cast<std::size_t>(i)].first;
    command_data_[2 * i + 1] = pairs[first + static_cast<std::size_t>(i)].second;
  }
  group_->post(RankCommand::copy_blocks, {count});
}

std::size_t Transformer::export_bytes() const {
  return KvCache::export_bytes(shape_.num_layers, shape_.num_kv_heads, shape_.head_dim,
                               kv_.type());
}

// Each rank puts its heads into the shared parcel, or takes them from it.
void Transformer::export_block(int block_id, std::uint8_t* out) {
  const HeadPlace heads{kv_head_first_, shape_.num_kv_heads};
  if (group_ == nullptr) {
    kv_.export_block(block_id, heads, out);
    return;
  }
  group_->post(RankCommand::export_block, {block_id});
  kv_.export_block(block_id, heads, parcel_);
  group_->barrier();
  std::memcpy(out, parcel_, export_bytes());
}

void Transformer::import_block(int block_id, const std::uint8_t* in) {
  const HeadPlace heads{kv_head_first_, shape_.num_kv_heads};
  if (group_ == nullptr) {
    kv_.import_block(block_id, heads, in);
    return;
  }
  std::memcpy(parcel_, in, export_bytes());
  group_->post(RankCommand::import_block, {block_id});
  kv_.import_block(block_id, heads, parcel_);
  group_->barrier();
}

void Transformer::discard_kv() {
  if (group_ != nullptr) group_->post(RankCommand::discard_kv, {});
  kv_.discard();
  if (group_ != nullptr) group_->barrier();
}

void Transformer::obey(RankCommand command) {
  if (command == RankCommand::step) {
    const StepBatch batch = posted_step();
    adapters_.build(batch);
    run_batch(batch, {}, group_->counts()[5] != 0);
    return;
  }
  const HeadPlace heads{kv_head_first_, shape_.num_kv_heads};
  if (command == RankCommand::discard_kv) kv_.discard();
  if (command == RankCommand::export_block)
    kv_.export_block(group_->counts()[0], heads, parcel_);
  if (command == RankCommand::import_block)
    kv_.import_block(group_->counts()[0], heads, parcel_);
  const int count = command == RankCommand::copy_blocks ? group_->counts()[0] : 0;
  for (int i = 0; i < count; ++i) kv_.copy_block(command_data_[2 * i], command_data_[2 * i + 1]);
  group_->barrier();
}

}  // namespace headrace
