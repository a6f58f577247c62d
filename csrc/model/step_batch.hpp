// One step's work as the Python side hands it over (engine/runner.py StepBatch), as plain arrays.
#pragma once

#include <cstdint>

namespace headrace {

struct StepBatch {
  int row_count = 0;        // R
  int sequence_count = 0;   // S
  int block_count = 0;      // B
  int sampled_count = 0;    // N
  const std::int32_t* token_ids = nullptr;      // (R,)
  const std::int32_t* row_starts = nullptr;     // (S + 1,)
  const std::int32_t* context_lens = nullptr;   // (S,)
  const std::int32_t* block_ids = nullptr;      // (B,)
  const std::int32_t* block_starts = nullptr;   // (S + 1,)
  const std::int32_t* sampled = nullptr;        // (N,)
  const float* temperature = nullptr;           // (N,)
  const std::int32_t* top_k = nullptr;          // (N,)
  const float* top_p = nullptr;                 // (N,)
  const float* min_p = nullptr;                 // (N,)
  const std::uint64_t* seed = nullptr;          // (N,)
  const std::int64_t* position = nullptr;       // (N,)

  int rows_of(int sequence) const { return row_starts[sequence + 1] - row_starts[sequence]; }
  // Position of the sequence's first row in its context.
  int first_position(int sequence) const { return context_lens[sequence] - rows_of(sequence); }
  const std::int32_t* table_of(int sequence) const { return block_ids + block_starts[sequence]; }
};

struct StepLimits {
  int vocab_size;
  int max_model_len;
  int num_blocks;
  int rows_max;
  int sequences_max;
};

// InvalidStep naming what is wrong, unless every index in `batch` is safe to follow.
void check_step(const StepBatch& batch, const StepLimits& limits);

}  // namespace headrace
