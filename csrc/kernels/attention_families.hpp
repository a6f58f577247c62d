// Attention where rows see a window of their context, or scores are capped (Gemma 2): the same
// splits in the same order as attention.hpp, with the tokens before a row's window masked.
#pragma once

#include "kernels/attention.hpp"

namespace headrace {
namespace {

// cap * tanh(score / cap), by tanh(u) = 1 - 2 / (e^2u + 1).
template <class S>
inline void cap_scores(float* scores, int count, float cap) {
  const auto scale = S::set1(2.0f / cap);
  const auto one = S::set1(1.0f);
  for (int t = 0; t < count; t += S::width) {   // the row's scratch is padded
    const auto e = exponential<S>(S::mul(S::load(scores + t), scale));
    const auto shrunk = S::sub(one, S::div(S::set1(2.0f), S::add(e, one)));
    S::store(scores + t, S::mul(S::set1(cap), shrunk));
  }
}

// One row's weights over tokens [first, end) of a split; a total of 0 where it sees none of them.
template <class S>
inline void masked_softmax_row(float* scores, int first, int end, int window_first, int seen,
                               float softcap, float& row_peak, float& total) {
  seen = seen < end ? seen : end;
  window_first = window_first > first ? window_first : first;
  total = 0.0f;
  if (seen <= window_first) {
    for (int t = first; t < end; ++t) scores[t] = 0.0f;
    return;
  }
  if (softcap > 0.0f) cap_scores<S>(scores + first, seen - first, softcap);
  for (int t = first; t < window_first; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  row_peak = peak_score<S>(scores + first, seen - first);
  total = weigh_scores<S>(scores + first, seen - first, end - first, row_peak);
  for (int t = first; t < window_first; ++t) scores[t] = 0.0f;
}

template <class S, class Kv>
void attend_masked_split(const AttentionTile& tile, int split, AttentionState* states) {
  const int base = split * split_tokens;
  int first = split_tokens;
  int end = 0;   // of this split's tokens, those that any row sees
  for (int r = 0; r < tile.query_count; ++r) {
    const int row_first = tile.window_first[r] - base;
    const int row_end = tile.visible[r] - base;
    first = row_first < first ? row_first : first;
    end = row_end > end ? row_end : end;
  }
  first = first > 0 ? first / block_tokens * block_tokens : 0;
  const int context_blocks = end > 0 ? blocks_of_tokens(base + end) : 0;
  end = end < split_tokens ? end : split_tokens;
  if (first >= end) return;
  const int block_first = (base + first) / block_tokens;
  const BlockStream<Kv> stream(tile, block_first, blocks_of_tokens(end - first), context_blocks);
  score_tokens<S, Kv>(tile, stream, tile.scores + first);
  float peaks[query_rows_max];
  float totals[query_rows_max];
  for (int r = 0; r < tile.query_count; ++r) {
    float* scores = tile.scores + r * split_tokens;
    if constexpr (Kv::has_scales)
      scale_tokens<S>(tile, block_first, end - first, 0, scores + first);
    masked_softmax_row<S>(scores, first, end, tile.window_first[r] - base, tile.visible[r] - base,
                          tile.softcap, peaks[r], totals[r]);
    if constexpr (Kv::has_scales)
      scale_tokens<S>(tile, block_first, end - first, 1, scores + first);
  }
  mix_tokens<S, Kv>(tile, stream, end - first, tile.scores + first);
  for (int r = 0; r < tile.query_count; ++r) {
    if (totals[r] == 0.0f) continue;
    merge_into<S>(&states[r], peaks[r], totals[r], tile.split_mix + r * tile.head_dim,
                  tile.head_dim);
  }
}

template <class S>
void attend_masked(const AttentionTile& tile, int split_first, int split_end,
                   AttentionState* states) {
  const auto split_of =
      tile.scales == nullptr ? attend_masked_split<S, HalfKv> : attend_masked_split<S, ByteKv>;
  for (int split = split_first; split < split_end; ++split) split_of(tile, split, states);
}

}  // namespace
}  // namespace headrace
