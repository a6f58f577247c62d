#include "model/attention_plan.hpp"

#include <algorithm>

namespace headrace {

namespace {

constexpr int partial_slots = 256;       // bounds the scratch; longer contexts run unsplit
constexpr int items_per_thread = 4;      // enough to even out the threads
constexpr int merge_groups_max = 128;    // each has at least two of the slots

int splits_of(int context) { return (context + split_tokens - 1) / split_tokens; }

}  // namespace

AttentionPlan::AttentionPlan(const ModelShape& shape, int rows_max, int sequences_max,
                             int thread_count)
    : num_kv_heads_(shape.num_kv_heads),
      rows_per_item_(query_rows_max / shape.group_size()),
      items_wanted_(items_per_thread * thread_count),
      group_size_(static_cast<std::size_t>(shape.group_size())),
      group_splits_(merge_groups_max),
      group_remaining_(new std::atomic<int>[merge_groups_max]),
      partials_(partial_slots * group_size_) {
  const int tiles_max = rows_max / rows_per_item_ + sequences_max;
  items_.reserve(static_cast<std::size_t>(tiles_max * num_kv_heads_ + partial_slots));
}

void AttentionPlan::build(const StepBatch& batch) {
  items_.clear();
  partials_used_ = 0;
  groups_used_ = 0;
  int tiles = 0;
  for (int s = 0; s < batch.sequence_count; ++s)
    tiles += (batch.rows_of(s) + rows_per_item_ - 1) / rows_per_item_;
  const bool few = tiles * num_kv_heads_ < items_wanted_;
  for (int s = 0; s < batch.sequence_count; ++s) {
    const int splits = splits_of(batch.context_lens[s]);
    const bool fits = partials_used_ + splits * num_kv_heads_ <= partial_slots &&
                      groups_used_ + num_kv_heads_ <= merge_groups_max;
    if (few && fits && splits > 1 && batch.rows_of(s) == 1) {
      add_splits(batch, s);
    } else {
      add_tiles(batch, s);
    }
  }
}

void AttentionPlan::add_tiles(const StepBatch& batch, int sequence) {
  const int end = batch.row_starts[sequence + 1];
  const int first = batch.row_starts[sequence];
  const int context = batch.context_lens[sequence];
  const int tiles = (end - first + rows_per_item_ - 1) / rows_per_item_;
  for (int tile = tiles - 1; tile >= 0; --tile) {   // the last rows see most: longest items first
    const int row = first + tile * rows_per_item_;
    const int row_end = std::min(row + rows_per_item_, end);
    const int visible = context - (end - row_end);
    for (int head = 0; head < num_kv_heads_; ++head)
      items_.push_back({sequence, head, row, row_end - row, 0, splits_of(visible), -1, -1});
  }
}

void AttentionPlan::add_splits(const StepBatch& batch, int sequence) {
  const int splits = splits_of(batch.context_lens[sequence]);
  for (int head = 0; head < num_kv_heads_; ++head) {
    const int group = groups_used_++;
    group_splits_[static_cast<std::size_t>(group)] = splits;
    group_remaining_[static_cast<std::size_t>(group)].store(splits, std::memory_order_relaxed);
    for (int split = 0; split < splits; ++split)
      items_.push_back({sequence, head, batch.row_starts[sequence], 1, split, split + 1,
                        partials_used_++, group});
  }
}

bool AttentionPlan::finish_partial(const AttentionItem& item) {
  const std::size_t group = static_cast<std::size_t>(item.merge_group);
  if (group_remaining_[group].fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  group_remaining_[group].store(group_splits_[group], std::memory_order_relaxed);
  return true;
}

}  // namespace headrace
