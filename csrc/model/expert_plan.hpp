// Which experts compute which rows of a step: rows choose, then slots are laid out expert by expert.
//
// A slot is one row at one of its experts. Slots of an expert lie together, so that its matrices are
// read once for all of its rows; a row's own numbers do not depend on who else is there.
#pragma once

#include <atomic>
#include <vector>

#include "base/buffer.hpp"
#include "model/model_shape.hpp"

namespace headrace {

constexpr int experts_used_max = 32;

class ExpertPlan {
 public:
  struct Block {   // up to `block_rows` slots of one expert
    int expert;
    int slot_first;
    int slot_count;
  };

  ExpertPlan(const ExpertShape& shape, int rows_max, int block_rows);

  float* logits(int row) { return logits_.data() + static_cast<std::size_t>(row) * stride_; }
  std::size_t logits_stride() const { return stride_; }

  // Takes the row's best experts by its logits; ties go to the lower number.
  void choose(int row);
  // Lays the slots of rows [0, row_count) out; one thread, after all have chosen.
  void build(int row_count);

  // For any member of a team, even one that is behind the others (Member).
  int block_count() const { return block_count_.load(std::memory_order_acquire); }
  const std::vector<Block>& blocks() const { return blocks_; }
  int row_of(int slot) const { return slot_rows_[static_cast<std::size_t>(slot)]; }
  int slot_of(int row, int choice) const { return slots_[index(row, choice)]; }
  float weight_of(int row, int choice) const { return weights_[index(row, choice)]; }

 private:
  std::size_t index(int row, int choice) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(shape_.used) +
           static_cast<std::size_t>(choice);
  }

  ExpertShape shape_;
  int block_rows_;
  std::size_t stride_;
  Buffer<float> logits_;         // (rows_max, count padded to 16)
  std::vector<int> chosen_;      // (rows_max, used)
  std::vector<float> weights_;   // (rows_max, used)
  std::vector<int> slots_;       // (rows_max, used)
  std::vector<int> slot_rows_;   // (rows_max * used,)
  std::vector<int> counts_;      // (count,)
  std::vector<Block> blocks_;
  std::atomic<int> block_count_{0};
};

}  // namespace headrace
