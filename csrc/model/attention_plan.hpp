// Cuts one step's attention into items for the team; made once a step, used by every layer.
//
// An item is up to 32 query rows (tokens x heads of a group) of one sequence and kv head. Where
// there are too few items for the threads, a long context of a single-row sequence is cut at its
// splits, one item each; whoever finishes last merges them in order, so the numbers are the same.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/buffer.hpp"
#include "kernels/kernel_table.hpp"
#include "model/model_shape.hpp"
#include "model/step_batch.hpp"

namespace headrace {

struct AttentionItem {
  int sequence;
  int kv_head;
  int row_first;     // of the step
  int row_count;
  int split_first;
  int split_end;
  int partial;       // slot of its partial result, or -1: it computes the whole context
  int merge_group;   // of partial items: who belongs together
};

class AttentionPlan {
 public:
  AttentionPlan(const ModelShape& shape, int rows_max, int sequences_max, int thread_count);

  void build(const StepBatch& batch);

  const std::vector<AttentionItem>& items() const { return items_; }
  int rows_per_item() const { return rows_per_item_; }

  // The states of a partial slot, one a query head of the group.
  AttentionState* partial(int slot) {
    return partials_.data() + static_cast<std::size_t>(slot) * group_size_;
  }
  // Counts one finished item of a group; true for the last one, who merges. Ready again after that.
  bool finish_partial(const AttentionItem& item);
  int first_partial(const AttentionItem& item) const { return item.partial - item.split_first; }
  int split_count(const AttentionItem& item) const { return group_splits_[item.merge_group]; }

 private:
  void add_tiles(const StepBatch& batch, int sequence);
  void add_splits(const StepBatch& batch, int sequence);

  int num_kv_heads_;
  int rows_per_item_;
  int items_wanted_;
  std::size_t group_size_;
  int partials_used_ = 0;
  int groups_used_ = 0;
  std::vector<AttentionItem> items_;
  std::vector<int> group_splits_;
  std::unique_ptr<std::atomic<int>[]> group_remaining_;
  Buffer<AttentionState> partials_;
};

}  // namespace headrace
