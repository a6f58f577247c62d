// One step's work as the Python side hands it over (engine/runner.py StepBatch), as plain arrays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/sampler.hpp"

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
  // Edits of logits (sampler.hpp), null where no request of the step asks for any.
  int edit_count = 0;       // E
  int mask_count = 0;       // M
  int top_columns = 0;      // K, the most of top_counts
  const std::int32_t* edit_starts = nullptr;    // (N + 1,) sample n has edits [n]:[n + 1]
  const std::int32_t* edit_ids = nullptr;       // (E,)
  const float* edit_factors = nullptr;          // (E,)
  const float* edit_addends = nullptr;          // (E,)
  const std::int32_t* mask_rows = nullptr;      // (N,) row of `masks`, -1 is none
  const std::uint32_t* masks = nullptr;         // (M, vocab_size / 32 rounded up)
  const std::int32_t* top_counts = nullptr;     // (N,) likeliest tokens to list
  const float* typical_p = nullptr;             // (N,) null, with the next two, where all are off
  const float* xtc_threshold = nullptr;         // (N,)
  const float* xtc_probability = nullptr;       // (N,)
  const std::int32_t* adapters = nullptr;       // (S,) slot of each one's adapter, -1 is none

  int rows_of(int sequence) const { return row_starts[sequence + 1] - row_starts[sequence]; }
  // Position of the sequence's first row in its context.
  int first_position(int sequence) const { return context_lens[sequence] - rows_of(sequence); }
  SamplingParams sampling_of(int sample) const {
    SamplingParams params{temperature[sample], top_k[sample],  top_p[sample],
                          min_p[sample],       seed[sample],   position[sample]};
    if (typical_p == nullptr) return params;
    params.typical_p = typical_p[sample];
    params.xtc_threshold = xtc_threshold[sample];
    params.xtc_probability = xtc_probability[sample];
    return params;
  }
  LogitEdits edits_of(int sample, int vocab_size) const {
    LogitEdits edits;
    if (edit_starts != nullptr) {
      const int first = edit_starts[sample];
      edits.count = edit_starts[sample + 1] - first;
      edits.ids = edit_ids + first;
      edits.factors = edit_factors + first;
      edits.addends = edit_addends + first;
    }
    if (mask_rows != nullptr && mask_rows[sample] >= 0)
      edits.mask = masks + static_cast<std::size_t>(mask_rows[sample]) *
                               static_cast<std::size_t>((vocab_size + 31) / 32);
    return edits;
  }
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
