#include "model/expert_plan.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/kernel_table.hpp"

namespace headrace {

ExpertPlan::ExpertPlan(const ExpertShape& shape, int rows_max, int block_rows)
    : shape_(shape),
      block_rows_(block_rows),
      stride_(round_up(static_cast<std::size_t>(shape.count), tile_columns)),
      logits_(shape.count > 0 ? static_cast<std::size_t>(rows_max) * stride_ : 0) {
  const std::size_t slots = static_cast<std::size_t>(rows_max) * static_cast<std::size_t>(shape.used);
  chosen_.resize(slots);
  weights_.resize(slots);
  slots_.resize(slots);
  slot_rows_.resize(slots);
  counts_.resize(static_cast<std::size_t>(shape.count));
  blocks_.reserve(static_cast<std::size_t>(shape.count) + slots / static_cast<std::size_t>(block_rows));
}

void ExpertPlan::choose(int row) {
  const float* logits = this->logits(row);
  const float peak = *std::max_element(logits, logits + shape_.count);
  double total = 0;
  for (int expert = 0; expert < shape_.count; ++expert) total += std::exp(double{logits[expert]} - peak);
  double chosen_total = 0;
  for (int choice = 0; choice < shape_.used; ++choice) {
    int best = -1;
    for (int expert = 0; expert < shape_.count; ++expert) {
      const int* taken = chosen_.data() + index(row, 0);
      if (std::find(taken, taken + choice, expert) != taken + choice) continue;
      if (best < 0 || logits[expert] > logits[best]) best = expert;
    }
    chosen_[index(row, choice)] = best;
    chosen_total += std::exp(double{logits[best]} - peak);
  }
  const double divisor = shape_.normalized ? chosen_total : total;
  for (int choice = 0; choice < shape_.used; ++choice) {
    const double weight = std::exp(double{logits[chosen_[index(row, choice)]]} - peak) / divisor;
    weights_[index(row, choice)] = static_cast<float>(weight) * shape_.scale;
  }
}

void ExpertPlan::build(int row_count) {
  std::fill(counts_.begin(), counts_.end(), 0);
  const int slot_count = row_count * shape_.used;
  for (int i = 0; i < slot_count; ++i) ++counts_[static_cast<std::size_t>(chosen_[static_cast<std::size_t>(i)])];
  blocks_.clear();
  int next = 0;
  for (int expert = 0; expert < shape_.count; ++expert) {
    int& count = counts_[static_cast<std::size_t>(expert)];
    for (int taken = 0; taken < count; taken += block_rows_)
      blocks_.push_back({expert, next + taken, std::min(block_rows_, count - taken)});
    const int first = next;
    next += count;
    count = first;   // from here on: the expert's next free slot
  }
  block_count_.store(static_cast<int>(blocks_.size()), std::memory_order_release);
  for (int row = 0; row < row_count; ++row) {
    for (int choice = 0; choice < shape_.used; ++choice) {
      const int slot = counts_[static_cast<std::size_t>(chosen_[index(row, choice)])]++;
      slots_[index(row, choice)] = slot;
      slot_rows_[static_cast<std::size_t>(slot)] = row;
    }
  }
}

}  // namespace headrace
