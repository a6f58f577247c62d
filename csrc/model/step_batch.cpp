#include "model/step_batch.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "base/errors.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {

namespace {

void require(bool holds, const char* text) {
  if (!holds) throw InvalidStep(text);
}

void require_in_range(const std::int32_t* values, int count, int end, const char* name) {
  for (int i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= end)
      throw InvalidStep(std::string(name) + "[" + std::to_string(i) + "] is " +
                        std::to_string(values[i]) + ", outside 0.." + std::to_string(end - 1));
}

void check_starts(const std::int32_t* starts, int sequences, int total, const char* name) {
  bool holds = starts[0] == 0 && starts[sequences] == total;
  for (int s = 0; s < sequences; ++s) holds &= starts[s] <= starts[s + 1];
  if (!holds)
    throw InvalidStep(std::string(name) + " must start at 0, never fall and end at " +
                      std::to_string(total));
}

void check_sampling(const StepBatch& b) {
  for (int i = 0; i < b.sampled_count; ++i) {
    require(b.temperature[i] >= 0 && std::isfinite(b.temperature[i]),
            "temperature must be 0 or a positive number");
    require(b.top_k[i] >= 0, "top_k must be 0 or positive");
    require(b.top_p[i] > 0 && b.top_p[i] <= 1, "top_p must be in (0, 1]");
    require(b.min_p[i] >= 0 && b.min_p[i] <= 1, "min_p must be in [0, 1]");
    if (b.typical_p == nullptr) continue;
    require(b.typical_p[i] > 0 && b.typical_p[i] <= 1, "typical_p must be in (0, 1]");
    require(b.xtc_threshold[i] > 0 && b.xtc_threshold[i] <= 1, "xtc_threshold must be in (0, 1]");
    require(b.xtc_probability[i] >= 0 && b.xtc_probability[i] <= 1,
            "xtc_probability must be in [0, 1]");
  }
}

void check_edits(const StepBatch& b, const StepLimits& limits) {
  require(b.top_columns <= limits.vocab_size, "more top tokens than the vocabulary has");
  if (b.top_counts != nullptr)
    require_in_range(b.top_counts, b.sampled_count, b.top_columns + 1, "top_counts");
  if (b.edit_starts != nullptr) {
    check_starts(b.edit_starts, b.sampled_count, b.edit_count, "edit_starts");
    require_in_range(b.edit_ids, b.edit_count, limits.vocab_size, "edit_ids");
    for (int e = 0; e < b.edit_count; ++e) {
      require(b.edit_factors[e] > 0 && std::isfinite(b.edit_factors[e]),
              "edit_factors must be positive numbers");
      require(b.edit_addends[e] < std::numeric_limits<float>::infinity(),
              "edit_addends must be numbers or minus infinity");
    }
  }
  if (b.mask_rows != nullptr)
    for (int i = 0; i < b.sampled_count; ++i)
      require(b.mask_rows[i] >= -1 && b.mask_rows[i] < b.mask_count, "mask_rows is out of range");
}

}  // namespace

void check_step(const StepBatch& b, const StepLimits& limits) {
  require(b.row_count > 0 && b.sequence_count > 0, "a step needs at least one row");
  require(b.row_count <= limits.rows_max, "more rows than rows_max");
  require(b.sequence_count <= limits.sequences_max, "more sequences than sequences_max");
  require(b.sampled_count <= limits.sequences_max, "more samples than sequences_max");
  check_starts(b.row_starts, b.sequence_count, b.row_count, "row_starts");
  check_starts(b.block_starts, b.sequence_count, b.block_count, "block_starts");
  require_in_range(b.token_ids, b.row_count, limits.vocab_size, "token_ids");
  require_in_range(b.block_ids, b.block_count, limits.num_blocks, "block_ids");
  require_in_range(b.sampled, b.sampled_count, b.sequence_count, "sampled");
  for (int s = 0; s < b.sequence_count; ++s) {
    const int context = b.context_lens[s];
    require(b.rows_of(s) > 0, "a sequence without rows");
    require(context >= b.rows_of(s), "context_lens must count the step's own rows");
    require(context <= limits.max_model_len, "a sequence is longer than max_model_len");
    const int blocks = b.block_starts[s + 1] - b.block_starts[s];
    require(blocks >= (context + block_tokens - 1) / block_tokens,
            "a block table is too short for its context");
  }
  check_sampling(b);
  check_edits(b, limits);
}

}  // namespace headrace
