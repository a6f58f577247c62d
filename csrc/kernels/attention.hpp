// Paged causal attention for one kv head, shared by the query heads of its group.
//
// The context is cut into splits of 256 tokens at fixed positions. In a split every row takes one
// softmax pass: all scores, their maximum, exponentials, the mix of values. Splits merge in
// ascending order (Dao 2023, arXiv 2307.08691, section 3.1). A row's result thus depends on its own
// context alone: not on the other rows of the tile, nor on which thread computed which split.
#pragma once

#include "kernels/elementwise.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/row_blocks.hpp"

namespace headrace {
namespace {

// How keys and values lie in a block: what a kernel reads, and whether tokens have scales.
struct HalfKv {
  using Element = std::uint16_t;
  static constexpr bool has_scales = false;
  template <class S>
  static inline typename S::V load(const Element* p) {
    return S::load_f16(p);
  }
};

struct ByteKv {
  using Element = std::int8_t;
  static constexpr bool has_scales = true;
  template <class S>
  static inline typename S::V load(const Element* p) {
    return S::load_i8(p);
  }
};

template <class Kv>
inline const typename Kv::Element* block_of(const AttentionTile& tile, const std::uint16_t* base,
                                            int index) {
  return reinterpret_cast<const typename Kv::Element*>(
      base + tile.block_stride * static_cast<std::size_t>(tile.block_table[index]));
}

// How many 16-wide pieces a micro-kernel takes at once: with few rows, enough sums to hide a
// multiply-add's latency. (One row alone compiles to worse code that way.)
template <class S, int rows>
constexpr int pieces_at_once() {
  return rows > 1 && rows <= S::rows / 2 ? 2 : 1;
}

constexpr int split_blocks = split_tokens / block_tokens;

constexpr int blocks_of_tokens(int count) { return (count + block_tokens - 1) / block_tokens; }

constexpr int asked_stride = 2;   // so often, of a head's elements, a line of each block is asked for

// The blocks of a split in the order in which they are read: keys, then values, then the keys that
// come next. What is read `ahead_blocks` later is asked for on the way, a few lines at a time: a burst
// would fill the core's buffers, and memory would stand still while they are computed with.
template <class Kv>
struct BlockStream {
  using Element = typename Kv::Element;
  const Element* blocks[2 * split_blocks + ahead_blocks];
  int count;   // of keys, and of values

  // Of blocks [first, first + block_count); none beyond the tile's context follow them.
  BlockStream(const AttentionTile& tile, int first, int block_count, int context_blocks)
      : count(block_count) {
    for (int b = 0; b < count; ++b) {
      blocks[b] = block_of<Kv>(tile, tile.keys, first + b);
      blocks[count + b] = block_of<Kv>(tile, tile.values, first + b);
    }
    const int next = first - first % split_blocks + split_blocks;
    for (int b = 0; b < ahead_blocks; ++b) {
      const auto*& block = blocks[2 * count + b];
      if (next + b < context_blocks) block = block_of<Kv>(tile, tile.keys, next + b);
      else if (next >= context_blocks && b < tile.next_count)
        block = reinterpret_cast<const Element*>(tile.next_keys[b]);
      else block = blocks[2 * count + b - 1];
    }
  }

  const Element* const* keys() const { return blocks; }
  const Element* const* values() const { return blocks + count; }
};

template <class Element>
inline void ask_for(const Element* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#endif
}

// Scores of `rows` queries against the 16 tokens of each of `blocks` blocks, without the tokens'
// scales; asks for the blocks `ahead_blocks` after them if `asks`.
template <class S, int rows, int blocks, bool asks, class Kv>
inline void score_blocks(const typename Kv::Element* const* keys, const float* const* queries,
                         int head_dim, float* scores) {
  constexpr int vectors = block_tokens / S::width;
  typename S::V sums[rows][blocks][vectors];
  for (auto& row : sums)
    for (auto& block : row)
      for (auto& sum : block) sum = S::set1(0.0f);
  const auto add_element = [&](int d) {
    if constexpr (blocks > 1) {   // the fewer of both kinds stay in registers
      typename S::V query[rows];
      for (int r = 0; r < rows; ++r) query[r] = S::set1(queries[r][d]);
      for (int b = 0; b < blocks; ++b)
        for (int j = 0; j < vectors; ++j) {
          const auto key = Kv::template load<S>(keys[b] + d * block_tokens + j * S::width);
          for (int r = 0; r < rows; ++r) sums[r][b][j] = S::fma(query[r], key, sums[r][b][j]);
        }
    } else {
      typename S::V key[vectors];
      for (int j = 0; j < vectors; ++j)
        key[j] = Kv::template load<S>(keys[0] + d * block_tokens + j * S::width);
      for (int r = 0; r < rows; ++r) {
        const auto query = S::set1(queries[r][d]);
        for (int j = 0; j < vectors; ++j) sums[r][0][j] = S::fma(query, key[j], sums[r][0][j]);
      }
    }
  };
  for (int d = 0; d < head_dim; d += asked_stride) {
    if constexpr (asks)
      for (int b = 0; b < blocks; ++b) ask_for(keys[ahead_blocks + b] + d * block_tokens);
    for (int i = 0; i < asked_stride; ++i) add_element(d + i);
  }
  for (int r = 0; r < rows; ++r)
    for (int b = 0; b < blocks; ++b)
      for (int j = 0; j < vectors; ++j)
        S::store(scores + r * split_tokens + b * block_tokens + j * S::width, sums[r][b][j]);
}

template <class S, int rows, bool asks, class Kv>
inline void score_some(const typename Kv::Element* const* keys, int count,
                       const float* const* queries, int head_dim, float* scores) {
  constexpr int pieces = pieces_at_once<S, rows>();
  int b = 0;
  for (; b + pieces <= count; b += pieces)
    score_blocks<S, rows, pieces, asks, Kv>(keys + b, queries, head_dim, scores + b * block_tokens);
  for (; b < count; ++b)
    score_blocks<S, rows, 1, asks, Kv>(keys + b, queries, head_dim, scores + b * block_tokens);
}

constexpr int scored_blocks = 4;   // whose keys stay in the first cache while all rows meet them

// Scores of all rows against a split's keys, from `scores` on in each row's.
template <class S, class Kv>
inline void score_tokens(const AttentionTile& tile, const BlockStream<Kv>& stream, float* scores) {
  for (int first = 0; first < stream.count; first += scored_blocks) {
    const int count = std::min(scored_blocks, stream.count - first);
    for_row_blocks<S::rows>(tile.query_count, [&](auto rows, int row) {
      float* out = scores + row * split_tokens + first * block_tokens;
      const auto some = row == 0 ? score_some<S, rows(), true, Kv> : score_some<S, rows(), false, Kv>;
      some(stream.keys() + first, count, tile.queries + row, tile.head_dim, out);
    });
  }
}

// mix[r][0:16 pieces] = sum over tokens of weights[r][t] * value[t][0:16 pieces], a slice of a head.
template <class S, int rows, int pieces, bool asks, class Kv>
inline void mix_slice(const typename Kv::Element* const* values, int token_count, int head_dim,
                      int slice, const float* weights, float* mix) {
  constexpr int vectors = pieces * 16 / S::width;
  typename S::V sums[rows][vectors];
  for (auto& row : sums)
    for (auto& sum : row) sum = S::set1(0.0f);
  for (int first = 0; first < token_count; first += block_tokens, ++values) {
    const int count = std::min(token_count - first, block_tokens);
    for (int t = 0; t < count; ++t) {
      if constexpr (asks)
        for (int d = 0; d < head_dim; d += 32) ask_for(values[ahead_blocks] + t * head_dim + d);
      const auto* row = *values + t * head_dim + slice;
      if constexpr (pieces > 1) {
        typename S::V weight[rows];
        for (int r = 0; r < rows; ++r) weight[r] = S::set1(weights[r * split_tokens + first + t]);
        for (int j = 0; j < vectors; ++j) {
          const auto value = Kv::template load<S>(row + j * S::width);
          for (int r = 0; r < rows; ++r) sums[r][j] = S::fma(weight[r], value, sums[r][j]);
        }
      } else {
        typename S::V value[vectors];
        for (int j = 0; j < vectors; ++j) value[j] = Kv::template load<S>(row + j * S::width);
        for (int r = 0; r < rows; ++r) {
          const auto weight = S::set1(weights[r * split_tokens + first + t]);
          for (int j = 0; j < vectors; ++j) sums[r][j] = S::fma(weight, value[j], sums[r][j]);
        }
      }
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < vectors; ++j)
      S::store(mix + r * head_dim + slice + j * S::width, sums[r][j]);
}

// The values of a split's `token_count` tokens, mixed by their weights, for all rows.
template <class S, class Kv>
inline void mix_tokens(const AttentionTile& tile, const BlockStream<Kv>& stream, int token_count,
                       const float* weights) {
  for_row_blocks<S::rows>(tile.query_count, [&](auto rows, int row) {
    constexpr int pieces = pieces_at_once<S, rows()>();
    const float* row_weights = weights + row * split_tokens;
    float* mix = tile.split_mix + row * tile.head_dim;
    int slice = 0;
    for (; slice + 16 * pieces <= tile.head_dim; slice += 16 * pieces) {
      const auto mixed = row == 0 && slice == 0 ? mix_slice<S, rows(), pieces, true, Kv>
                                                : mix_slice<S, rows(), pieces, false, Kv>;
      mixed(stream.values(), token_count, tile.head_dim, slice, row_weights, mix);
    }
    for (; slice < tile.head_dim; slice += 16)
      mix_slice<S, rows(), 1, false, Kv>(stream.values(), token_count, tile.head_dim, slice,
                                         row_weights, mix);
  });
}

// The largest of `count` numbers, in whole vectors; NaN lanes do not win.
template <class S>
inline float largest_of(const float* numbers, int count) {
  constexpr int chains = 4;   // since each comparison waits for the one before it
  typename S::V largest[chains];
  for (auto& chain : largest) chain = S::set1(-std::numeric_limits<float>::infinity());
  int t = 0;
  for (; t + chains * S::width <= count; t += chains * S::width)
    for (int c = 0; c < chains; ++c)
      largest[c] = S::max(S::load(numbers + t + c * S::width), largest[c]);
  for (; t < count; t += S::width) largest[0] = S::max(S::load(numbers + t), largest[0]);
  return S::reduce_max(S::max(S::max(largest[0], largest[1]), S::max(largest[2], largest[3])));
}

// The largest of a row's first `visible` scores; what fills up their last vector becomes minus infinity.
template <class S>
inline float peak_score(float* scores, int visible) {
  const int padded = (visible + S::width - 1) / S::width * S::width;
  for (int t = visible; t < padded; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  return largest_of<S>(scores, padded);
}

// Turns the first `visible` scores into exponentials, the rest up to `token_count` into zeros; the sum.
template <class S>
inline float weigh_scores(float* scores, int visible, int token_count, float row_peak) {
  const auto shift = S::set1(row_peak);
  auto sum = S::set1(0.0f);
  for (int t = 0; t < visible; t += S::width) {
    const auto e = exponential<S>(S::sub(S::load(scores + t), shift));
    S::store(scores + t, e);
    sum = S::add(sum, e);
  }
  for (int t = visible; t < token_count; ++t) scores[t] = 0.0f;
  return S::reduce_add(sum);
}

template <class S>
inline void merge_into(AttentionState* into, float row_peak, float total, const float* mix,
                       int head_dim) {
  if (into->total == 0.0f) {
    into->peak = row_peak;
    into->total = total;
    for (int d = 0; d < head_dim; d += S::width) S::store(into->mix + d, S::load(mix + d));
    return;
  }
  const float largest = row_peak > into->peak ? row_peak : into->peak;
  const float keep = exponential_of<S>(into->peak - largest);
  const float take = exponential_of<S>(row_peak - largest);
  into->peak = largest;
  into->total = into->total * keep + total * take;
  const auto keeps = S::set1(keep);
  const auto takes = S::set1(take);
  for (int d = 0; d < head_dim; d += S::width) {
    const auto kept = S::mul(S::load(into->mix + d), keeps);
    S::store(into->mix + d, S::fma(S::load(mix + d), takes, kept));
  }
}

template <class S>
void merge(AttentionState* into, const AttentionState* from, int head_dim) {
  merge_into<S>(into, from->peak, from->total, from->mix, head_dim);
}

// Multiplies a row's numbers of the split's tokens by the tokens' scales: of keys (0) or values (1).
template <class S>
inline void scale_tokens(const AttentionTile& tile, int block_first, int token_count, int which,
                         float* numbers) {
  for (int first = 0; first < token_count; first += block_tokens) {
    const float* scales = reinterpret_cast<const float*>(block_of<HalfKv>(
        tile, tile.scales, block_first + first / block_tokens)) + which * block_tokens;
    for (int t = 0; t < block_tokens; t += S::width)
      S::store(numbers + first + t, S::mul(S::load(numbers + first + t), S::load(scales + t)));
  }
}

template <class S, class Kv>
void attend_split(const AttentionTile& tile, int split, AttentionState* states) {
  const int base = split * split_tokens;
  int token_count = 0;   // of this split, that any row sees
  for (int r = 0; r < tile.query_count; ++r)
    token_count = std::max(token_count, tile.visible[r] - base);
  if (token_count <= 0) return;
  const int context_blocks = blocks_of_tokens(base + token_count);
  token_count = token_count < split_tokens ? token_count : split_tokens;
  const int block_first = base / block_tokens;
  const BlockStream<Kv> stream(tile, block_first, blocks_of_tokens(token_count), context_blocks);
  score_tokens<S, Kv>(tile, stream, tile.scores);
  int seen[query_rows_max];   // of the split's tokens
  float peaks[query_rows_max] = {};
  float totals[query_rows_max];
  for (int r = 0; r < tile.query_count; ++r) {   // all peaks first: no row waits for its own
    float* scores = tile.scores + r * split_tokens;
    seen[r] = std::clamp(tile.visible[r] - base, 0, token_count);
    if (seen[r] == 0) continue;
    if constexpr (Kv::has_scales) scale_tokens<S>(tile, block_first, token_count, 0, scores);
    peaks[r] = peak_score<S>(scores, seen[r]);
  }
  for (int r = 0; r < tile.query_count; ++r) {
    float* scores = tile.scores + r * split_tokens;
    totals[r] = weigh_scores<S>(scores, seen[r], token_count, peaks[r]);
    if constexpr (Kv::has_scales) scale_tokens<S>(tile, block_first, token_count, 1, scores);
  }
  mix_tokens<S, Kv>(tile, stream, token_count, tile.scores);
  for (int r = 0; r < tile.query_count; ++r) {
    if (seen[r] == 0) continue;
    merge_into<S>(&states[r], peaks[r], totals[r], tile.split_mix + r * tile.head_dim,
                  tile.head_dim);
  }
}

template <class S>
void attend(const AttentionTile& tile, int split_first, int split_end, AttentionState* states) {
  const auto split_of = tile.scales == nullptr ? attend_split<S, HalfKv> : attend_split<S, ByteKv>;
  for (int split = split_first; split < split_end; ++split) split_of(tile, split, states);
}

template <class S>
void finish(const AttentionState* state, int head_dim, float* out) {
  const auto factor = S::set1(1.0f / state->total);
  for (int d = 0; d < head_dim; d += S::width)
    S::store(out + d, S::mul(S::load(state->mix + d), factor));
}

}  // namespace
}  // namespace headrace
