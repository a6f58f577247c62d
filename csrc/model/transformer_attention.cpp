// The attention half of a layer: projections, rotation, the KV cache, and who sees what.
#include <algorithm>
#include <cmath>

#include "model/step_stages.hpp"
#include "model/tile_products.hpp"
#include "model/transformer.hpp"

namespace headrace {

void Transformer::project_qkv(Member& member, int index, int row_count) {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(index)];
  const ActivationRows input = attention_input_->view();
  const int query_tiles = layer.query.matrix.tile_count();
  const int kv_tiles = layer.key.matrix.tile_count();
  const int tiles = query_tiles + 2 * kv_tiles;
  const int units = tiles * blocks_of(row_count, row_block);
  member.share(units, tile_chunk_of(units, member.team_size()), [&](int first, int end) {
    for (int unit = first, width; unit < end; unit += width) {
      const int row = unit / tiles * row_block;
      const int count = std::min(row_block, row_count - row);
      const int column_tile = unit % tiles;
      const Linear* linear = &layer.query;
      AdapterSite site{index, AdapterTarget::query, 0};
      int tile = column_tile;
      if (tile >= query_tiles) {
        tile -= query_tiles;
        const bool key = tile < kv_tiles;
        linear = key ? &layer.key : &layer.value;
        site = {index, key ? AdapterTarget::key : AdapterTarget::value, key ? 1 : 2};
        tile %= kv_tiles;
      }
      width = tiles_at_once(kernels_, linear->matrix,
                            std::min(end - unit, linear->matrix.tile_count() - tile));
      float* out = qkv_.data() + static_cast<std::size_t>(row) * qkv_stride_ +
                   static_cast<std::size_t>(column_tile) * tile_columns;
      multiply_tiles(kernels_, linear->matrix, tile, width, input, row, count,
                     {out, qkv_stride_, linear->bias_at(tile), false});
      for (int t = 0; t < width; ++t)
        add_adapters(site, tile + t, row, count, out + t * tile_columns, qkv_stride_);
    }
  });
}

float* Transformer::gathered_row(int row) {
  return heads_.data() + static_cast<std::size_t>(row) *
                             static_cast<std::size_t>(shape_.query_size() + shape_.kv_size());
}

// Shows this rank's queries and keys to the others: a norm that spans all heads needs their sum.
void Transformer::gather_heads(Member& member, int row_count) {
  const int query_first = kv_head_first_ * shape_.group_size() * shape_.head_dim;
  const int key_first = shape_.query_size() + kv_head_first_ * shape_.head_dim;
  member.share(row_count, chunk_of(row_count, member.team_size()), [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      const float* own = qkv_.data() + static_cast<std::size_t>(row) * qkv_stride_;
      std::copy_n(own, local_.query_size(), gathered_row(row) + query_first);
      std::copy_n(own + local_.query_size(), local_.kv_size(), gathered_row(row) + key_first);
    }
  }, Meet::ranks);
}

// Norms all heads of a row, as a rank alone does, and takes this rank's: `heads` in its row of qkv_.
void Transformer::norm_gathered(int row, const LayerWeights& layer, float* normed, float* heads) {
  const float* queries = gathered_row(row);
  const float* keys = queries + shape_.query_size();
  kernels_.rms_norm(queries, layer.query_norm.data(), shape_.query_size(), shape_.norm_epsilon,
                    normed);
  std::copy_n(normed + kv_head_first_ * shape_.group_size() * shape_.head_dim,
              local_.query_size(), heads);
  kernels_.rms_norm(keys, layer.key_norm.data(), shape_.kv_size(), shape_.norm_epsilon, normed);
  std::copy_n(normed + kv_head_first_ * shape_.head_dim, local_.kv_size(),
              heads + local_.query_size());
}

void Transformer::norm_heads(float* heads, int head_count, const Buffer<float>& weight) const {
  const int width = shape_.query_key_norm == QueryKeyNorm::whole ? head_count * shape_.head_dim
                                                                 : shape_.head_dim;
  for (int at = 0; at < head_count * shape_.head_dim; at += width)
    kernels_.rms_norm(heads + at, weight.data(), width, shape_.norm_epsilon, heads + at);
}

void Transformer::write_kv(Member& member, int index, const StepBatch& batch) {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(index)];
  const int rotation = shape_.layers[static_cast<std::size_t>(index)].rotation;
  const RopeTables* rope = rotation < 0 ? nullptr : &ropes_[static_cast<std::size_t>(rotation)];
  const int head_dim = shape_.head_dim;
  const float score_scale = shape_.attention_scale > 0
                                ? shape_.attention_scale
                                : 1.0f / std::sqrt(static_cast<float>(head_dim));
  float* normed = scratch_[static_cast<std::size_t>(member.index())].heads.data();
  member.share(batch.row_count, chunk_of(batch.row_count, member.team_size()),
               [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      const int sequence = row_sequence_[static_cast<std::size_t>(row)];
      const int position = batch.first_position(sequence) + row - batch.row_starts[sequence];
      float* heads = qkv_.data() + static_cast<std::size_t>(row) * qkv_stride_;
      if (gathers_heads()) {
        norm_gathered(row, layer, normed, heads);
      } else if (shape_.query_key_norm != QueryKeyNorm::none) {
        norm_heads(heads, local_.num_heads, layer.query_norm);
        norm_heads(heads + local_.query_size(), local_.num_kv_heads, layer.key_norm);
      }
      for (int head = 0; head < local_.num_heads; ++head, heads += head_dim) {
        if (rope != nullptr) kernels_.rotate(heads, rope->view, position, rope->magnitude);
        for (int d = 0; d < head_dim; ++d) heads[d] *= score_scale;
      }
      const int block_id = batch.table_of(sequence)[position / block_tokens];
      for (int head = 0; head < local_.num_kv_heads; ++head, heads += head_dim) {
        if (rope != nullptr) kernels_.rotate(heads, rope->view, position, rope->magnitude);
        kv_.write(kernels_, index, head, block_id, position % block_tokens, heads,
                  heads + local_.kv_size());
      }
    }
  });
}

void Transformer::attend(Member& member, int layer, const StepBatch& batch) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  const std::vector<AttentionItem>& items = plan_.items();
  member.share(static_cast<int>(items.size()), 1, [&](int first, int end) {
    for (int index = first; index < end; ++index)
      attend_item(static_cast<std::size_t>(index), layer, batch, scratch);
  }, Meet::ranks);
  if (mixed_input_->forms().quantized() && !attention_groups_whole_)
    requantize(member, batch.row_count, mixed_, *mixed_input_);
}

void Transformer::attend_item(std::size_t index, int layer, const StepBatch& batch,
                              Scratch& scratch) {
  const AttentionItem& item = plan_.items()[index];
  const int group = shape_.group_size();
  const int head_dim = shape_.head_dim;
  AttentionTile tile;
  kv_.place(tile, layer, item.kv_head);
  tile.block_table = batch.table_of(item.sequence);
  tile.head_dim = head_dim;
  tile.query_count = item.row_count * group;
  tile.scores = scratch.scores.data();
  tile.split_mix = scratch.split_mix.data();
  tile.softcap = shape_.attention_softcap;
  place_rows(tile, item, layer, batch);
  if (index + 1 < plan_.items().size()) place_next(tile, plan_.items()[index + 1], layer, batch);
  AttentionState* states = item.partial < 0 ? scratch.states.data() : plan_.partial(item.partial);
  for (int q = 0; q < tile.query_count; ++q) states[q].total = 0.0f;
  const int context = batch.context_lens[item.sequence];
  const int split_end = shape_.encoder ? blocks_of(context, split_tokens) : item.split_end;
  const auto attend = shape_.masked_attention(layer) ? kernels_.attend_masked : kernels_.attend;
  attend(tile, item.split_first, split_end, states);
  if (item.partial >= 0) {
    if (!plan_.finish_partial(item)) return;
    const int first = plan_.first_partial(item);
    states = plan_.partial(first);
    for (int split = 1; split < plan_.split_count(item); ++split)
      for (int h = 0; h < group; ++h)
        if (const AttentionState* from = plan_.partial(first + split) + h; from->total != 0.0f)
          kernels_.merge(states + h, from, head_dim);
  }
  finish_rows(item, layer, states);
}

// The keys that this thread most likely reads after the tile's: the next item's first.
void Transformer::place_next(AttentionTile& tile, const AttentionItem& next, int layer,
                             const StepBatch& batch) {
  AttentionTile other;
  kv_.place(other, layer, next.kv_head);
  const int first = next.split_first * (split_tokens / block_tokens);
  const int blocks = blocks_of(batch.context_lens[next.sequence], block_tokens);
  tile.next_count = std::clamp(blocks - first, 0, ahead_blocks);
  for (int b = 0; b < tile.next_count; ++b)
    tile.next_keys[b] = other.keys + other.block_stride * static_cast<std::size_t>(
                            batch.table_of(next.sequence)[first + b]);
}

// The queries of an item and which tokens they see.
void Transformer::place_rows(AttentionTile& tile, const AttentionItem& item, int layer,
                             const StepBatch& batch) {
  const int group = shape_.group_size();
  const int head_dim = shape_.head_dim;
  const int window = shape_.layers[static_cast<std::size_t>(layer)].window_tokens;
  const int first_visible = batch.first_position(item.sequence) + item.row_first -
                            batch.row_starts[item.sequence] + 1;
  for (int r = 0; r < item.row_count; ++r) {
    const float* heads = qkv_.data() + static_cast<std::size_t>(item.row_first + r) * qkv_stride_ +
                         static_cast<std::size_t>(item.kv_head * group) * head_dim;
    const int visible = shape_.encoder ? batch.context_lens[item.sequence] : first_visible + r;
    for (int h = 0; h < group; ++h) {
      tile.queries[r * group + h] = heads + h * head_dim;
      tile.visible[r * group + h] = visible;
      tile.window_first[r * group + h] = window > 0 ? std::max(0, visible - window) : 0;
    }
  }
}

void Transformer::finish_rows(const AttentionItem& item, int layer, AttentionState* states) {
  const int group = shape_.group_size();
  const int width = group * shape_.head_dim;
  const Buffer<float>& sinks = weights_.layers[static_cast<std::size_t>(layer)].sinks;
  for (int r = 0; r < item.row_count; ++r) {
    const int row = item.row_first + r;
    float* out = mixed_.data() + static_cast<std::size_t>(row) * shape_.query_size() +
                 (kv_head_first_ + item.kv_head) * width;
    for (int h = 0; h < group; ++h) {
      AttentionState& state = states[r * group + h];
      if (sinks.size() != 0) {   // a score that takes its share and has no value
        const std::size_t head = static_cast<std::size_t>(item.kv_head * group + h);
        state.total += std::exp(sinks[head] - state.peak);
      }
      kernels_.finish(&state, shape_.head_dim, out + h * shape_.head_dim);
    }
    if (attention_groups_whole_ || !mixed_input_->forms().quantized())
      mixed_input_->set(kernels_, row, (kv_head_first_ + item.kv_head) * width, out, width);
  }
}

void Transformer::requantize(Member& member, int row_count, const Buffer<float>& rows,
                             Activations& out) {
  const int width = shape_.query_size();
  member.share_of_rank(row_count, chunk_of(row_count, member.team_size()),
                       [&](int first, int end) {
    for (int row = first; row < end; ++row)
      out.set(kernels_, row, 0, rows.data() + static_cast<std::size_t>(row) * width, width);
  });
}

}  // namespace headrace
