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

// Asks for the lines of `count` elements.
template <class Element>
inline void prefetch_elements(const Element* p, int count) {
#if defined(__GNUC__)
  const char* bytes = reinterpret_cast<const char*>(p);
  for (std::size_t at = 0; at < static_cast<std::size_t>(count) * sizeof(Element); at += 64)
    __builtin_prefetch(bytes + at, 0, 2);
#endif
}

// Scores of `rows` queries against the 16 tokens of each of `blocks` blocks, without the tokens' scales.
template <class S, int rows, int blocks, class Kv>
inline void score_blocks(const typename Kv::Element* const* keys, const float* const* queries,
                         int head_dim, float* scores) {
  constexpr int vectors = block_tokens / S::width;
  typename S::V sums[rows][blocks][vectors];
  for (auto& row : sums)
    for (auto& block : row)
      for (auto& sum : block) sum = S::set1(0.0f);
  for (int d = 0; d < head_dim; ++d) {
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
  }
  for (int r = 0; r < rows; ++r)
    for (int b = 0; b < blocks; ++b)
      for (int j = 0; j < vectors; ++j)
        S::store(scores + r * split_tokens + b * block_tokens + j * S::width, sums[r][b][j]);
}

constexpr int scored_blocks = 4;   // whose keys stay in the first cache while all rows meet them

// Scores of all rows against tokens [first, end) of a split; `first` is where a block starts.
template <class S, class Kv>
inline void score_tokens(const AttentionTile& tile, int split_block, int first, int end) {
  for (; first < end; first += scored_blocks * block_tokens) {
    const typename Kv::Element* keys[scored_blocks];
    int count = 0;
    for (; count < scored_blocks && first + count * block_tokens < end; ++count) {
      const int block = split_block + first / block_tokens + count;
      keys[count] = block_of<Kv>(tile, tile.keys, block);
      prefetch_elements(block_of<Kv>(tile, tile.values, block), block_tokens * tile.head_dim);
      if (first + (count + scored_blocks) * block_tokens < end)
        prefetch_elements(block_of<Kv>(tile, tile.keys, block + scored_blocks),
                          block_tokens * tile.head_dim);
    }
    for_row_blocks<S::rows>(tile.query_count, [&](auto rows, int row) {
      constexpr int pieces = pieces_at_once<S, rows()>();
      float* scores = tile.scores + row * split_tokens + first;
      int b = 0;
      for (; b + pieces <= count; b += pieces)
        score_blocks<S, rows(), pieces, Kv>(keys + b, tile.queries + row, tile.head_dim,
                                            scores + b * block_tokens);
      for (; b < count; ++b)
        score_blocks<S, rows(), 1, Kv>(keys + b, tile.queries + row, tile.head_dim,
                                       scores + b * block_tokens);
    });
  }
}

// mix[r][0:16 pieces] = sum over tokens of weights[r][t] * value[t][0:16 pieces], a slice of a head.
template <class S, int rows, int pieces, class Kv>
inline void mix_slice(const AttentionTile& tile, int split_block, int first, int end, int slice,
                      const float* weights, float* mix) {
  constexpr int vectors = pieces * 16 / S::width;
  typename S::V sums[rows][vectors];
  for (auto& row : sums)
    for (auto& sum : row) sum = S::set1(0.0f);
  for (; first < end; first += block_tokens) {
    const auto* block = block_of<Kv>(tile, tile.values, split_block + first / block_tokens) + slice;
    const int count = end - first < block_tokens ? end - first : block_tokens;
    for (int t = 0; t < count; ++t) {
      const auto* row = block + t * tile.head_dim;
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
      S::store(mix + r * tile.head_dim + slice + j * S::width, sums[r][j]);
}

// The values of tokens [first, end) of a split, mixed by their weights, for all rows.
template <class S, class Kv>
inline void mix_tokens(const AttentionTile& tile, int split_block, int first, int end) {
  for_row_blocks<S::rows>(tile.query_count, [&](auto rows, int row) {
    constexpr int pieces = pieces_at_once<S, rows()>();
    const float* weights = tile.scores + row * split_tokens;
    float* mix = tile.split_mix + row * tile.head_dim;
    int slice = 0;
    for (; slice + 16 * pieces <= tile.head_dim; slice += 16 * pieces)
      mix_slice<S, rows(), pieces, Kv>(tile, split_block, first, end, slice, weights, mix);
    for (; slice < tile.head_dim; slice += 16)
      mix_slice<S, rows(), 1, Kv>(tile, split_block, first, end, slice, weights, mix);
  });
}

// Turns the first `visible` scores into exponentials, the rest up to `token_count` into zeros.
template <class S>
inline void softmax_row(float* scores, int visible, int token_count, float& row_peak, float& total) {
  const int padded = (visible + S::width - 1) / S::width * S::width;
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  for (int t = visible; t < padded; ++t) scores[t] = minus_infinity;
  auto largest = S::set1(minus_infinity);
  for (int t = 0; t < padded; t += S::width) largest = S::max(S::load(scores + t), largest);
  row_peak = S::reduce_max(largest);
  const auto shift = S::set1(row_peak);
  auto sum = S::set1(0.0f);
  for (int t = 0; t < padded; t += S::width) {
    const auto e = exponential<S>(S::sub(S::load(scores + t), shift));
    S::store(scores + t, e);
    sum = S::add(sum, e);
  }
  total = S::reduce_add(sum);
  for (int t = visible; t < token_count; ++t) scores[t] = 0.0f;
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
  for (int r = 0; r < tile.query_count; ++r) {
    const int seen = tile.visible[r] - base;
    token_count = seen > token_count ? seen : token_count;
  }
  if (token_count <= 0) return;
  token_count = token_count < split_tokens ? token_count : split_tokens;
  const int block_first = base / block_tokens;
  score_tokens<S, Kv>(tile, block_first, 0, token_count);
  float peaks[query_rows_max];
  float totals[query_rows_max];
  for (int r = 0; r < tile.query_count; ++r) {
    const int seen = tile.visible[r] - base;
    float* scores = tile.scores + r * split_tokens;
    if (seen <= 0) {
      for (int t = 0; t < token_count; ++t) scores[t] = 0.0f;
    } else {
      if constexpr (Kv::has_scales) scale_tokens<S>(tile, block_first, token_count, 0, scores);
      softmax_row<S>(scores, seen < token_count ? seen : token_count, token_count, peaks[r],
                     totals[r]);
      if constexpr (Kv::has_scales) scale_tokens<S>(tile, block_first, token_count, 1, scores);
    }
  }
  mix_tokens<S, Kv>(tile, block_first, 0, token_count);
  for (int r = 0; r < tile.query_count; ++r) {
    if (tile.visible[r] <= base) continue;
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
