// A step from Python's arrays, which the caller keeps alive until it ends.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include "binding/cpu_transformer.hpp"

namespace nb = nanobind;

namespace headrace {

namespace {

// The optional arrays of a step; the caller's tuples keep them alive until the step ends.
template <class Array>
Array field_of(const nb::tuple& fields, std::size_t index) {
  return nb::cast<Array>(fields[index], /*convert=*/false);
}

void set_edits(StepBatch& batch, const nb::tuple& fields) {
  if (fields.size() != 4) throw nb::value_error("edits are (starts, ids, factors, addends)");
  const auto starts = field_of<Vector<std::int32_t>>(fields, 0);
  const auto ids = field_of<Vector<std::int32_t>>(fields, 1);
  const auto factors = field_of<Vector<float>>(fields, 2);
  const auto addends = field_of<Vector<float>>(fields, 3);
  require_length(starts, static_cast<std::size_t>(batch.sampled_count) + 1, "edit_starts");
  require_length(factors, ids.shape(0), "edit_factors");
  require_length(addends, ids.shape(0), "edit_addends");
  batch.edit_count = int_size(ids.shape(0));
  batch.edit_starts = starts.data();
  batch.edit_ids = ids.data();
  batch.edit_factors = factors.data();
  batch.edit_addends = addends.data();
}

void set_masks(StepBatch& batch, const nb::tuple& fields, int vocab_size) {
  if (fields.size() != 2) throw nb::value_error("masks are (rows, words)");
  const auto rows = field_of<Vector<std::int32_t>>(fields, 0);
  const auto words = field_of<Matrix<std::uint32_t>>(fields, 1);
  require_length(rows, static_cast<std::size_t>(batch.sampled_count), "mask_rows");
  if (int_size(words.shape(1)) != (vocab_size + 31) / 32)
    throw InvalidStep("a mask has a bit for each token of the vocabulary");
  batch.mask_count = int_size(words.shape(0));
  batch.mask_rows = rows.data();
  batch.masks = words.data();
}

void set_top(StepBatch& batch, StepResults& results, const nb::tuple& fields) {
  if (fields.size() != 3) throw nb::value_error("top tokens are (counts, out_ids, out_logprobs)");
  const auto counts = field_of<Vector<std::int32_t>>(fields, 0);
  const auto ids = field_of<OutMatrix<std::int32_t>>(fields, 1);
  const auto logprobs = field_of<OutMatrix<float>>(fields, 2);
  require_length(counts, static_cast<std::size_t>(batch.sampled_count), "top_counts");
  require_length(ids, counts.shape(0), "the top ids output");
  require_length(logprobs, counts.shape(0), "the top logprobs output");
  if (ids.shape(1) != logprobs.shape(1)) throw InvalidStep("the top outputs differ in width");
  batch.top_columns = int_size(ids.shape(1));
  batch.top_counts = counts.data();
  results.top_ids = ids.data();
  results.top_logprobs = logprobs.data();
}

void set_filters(StepBatch& batch, const nb::tuple& fields) {
  if (fields.size() != 3)
    throw nb::value_error("filters are (typical_p, xtc_threshold, xtc_probability)");
  const auto typical_p = field_of<Vector<float>>(fields, 0);
  const auto xtc_threshold = field_of<Vector<float>>(fields, 1);
  const auto xtc_probability = field_of<Vector<float>>(fields, 2);
  const auto samples = static_cast<std::size_t>(batch.sampled_count);
  require_length(typical_p, samples, "typical_p");
  require_length(xtc_threshold, samples, "xtc_threshold");
  require_length(xtc_probability, samples, "xtc_probability");
  batch.typical_p = typical_p.data();
  batch.xtc_threshold = xtc_threshold.data();
  batch.xtc_probability = xtc_probability.data();
}

}  // namespace

void execute(CpuTransformer& self, const Vector<std::int32_t>& token_ids,
             const Vector<std::int32_t>& row_starts, const Vector<std::int32_t>& context_lens,
             const Vector<std::int32_t>& block_ids, const Vector<std::int32_t>& block_starts,
             const Vector<std::int32_t>& sampled, const Vector<float>& temperature,
             const Vector<std::int32_t>& top_k, const Vector<float>& top_p,
             const Vector<float>& min_p, const Vector<std::uint64_t>& seed,
             const Vector<std::int64_t>& position, const OutVector<std::int32_t>& out_token_ids,
             const OutVector<float>& out_logprobs,
             const std::optional<OutMatrix<float>>& out_logits,
             const std::optional<nb::tuple>& edits, const std::optional<nb::tuple>& masks,
             const std::optional<nb::tuple>& top,
             const std::optional<OutMatrix<float>>& out_hidden,
             const std::optional<nb::tuple>& filters,
             const std::optional<Vector<std::int32_t>>& adapters) {
  const std::size_t sequences = context_lens.shape(0);
  const std::size_t samples = sampled.shape(0);
  require_length(row_starts, sequences + 1, "row_starts");
  require_length(block_starts, sequences + 1, "block_starts");
  require_length(temperature, samples, "temperature");
  require_length(top_k, samples, "top_k");
  require_length(top_p, samples, "top_p");
  require_length(min_p, samples, "min_p");
  require_length(seed, samples, "seed");
  require_length(position, samples, "position");
  require_length(out_token_ids, samples, "the token id output");
  require_length(out_logprobs, samples, "the logprob output");
  StepResults results{out_token_ids.data(), out_logprobs.data(),
                            out_logits ? out_logits->data() : nullptr};
  if (out_logits) {
    require_length(*out_logits, samples, "the logits output");
    if (static_cast<int>(out_logits->shape(1)) != self.transformer().shape().vocab_size)
      throw InvalidStep("the logits output must have vocab_size columns");
  }
  if (out_hidden) {
    require_length(*out_hidden, token_ids.shape(0), "the hidden states output");
    if (static_cast<int>(out_hidden->shape(1)) != self.transformer().shape().hidden_size)
      throw InvalidStep("the hidden states output must have hidden_size columns");
    results.hidden = out_hidden->data();
  }
  StepBatch batch{int_size(token_ids.shape(0)), int_size(sequences),
                        int_size(block_ids.shape(0)), int_size(samples),
                        token_ids.data(), row_starts.data(), context_lens.data(), block_ids.data(),
                        block_starts.data(), sampled.data(), temperature.data(), top_k.data(),
                        top_p.data(), min_p.data(), seed.data(), position.data()};
  if (adapters) {
    require_length(*adapters, sequences, "adapters");
    batch.adapters = adapters->data();
  }
  if (edits) set_edits(batch, *edits);
  if (masks) set_masks(batch, *masks, self.transformer().shape().vocab_size);
  if (top) set_top(batch, results, *top);
  if (filters) set_filters(batch, *filters);
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.transformer().execute(batch, results);
}

}  // namespace headrace
