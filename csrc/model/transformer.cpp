#include "model/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/errors.hpp"
#include "kernels/dispatch.hpp"

namespace headrace {

namespace {

constexpr int row_block = 128;       // rows whose int16 inputs stay in the L2 cache under a tile
constexpr int sampled_block = 32;    // rows whose logits are held at once
constexpr int unit_columns = 32;     // of a feed-forward unit: one quantization group, two tiles
constexpr int chunks_per_thread = 8;

int blocks_of(int count, int block) { return (count + block - 1) / block; }

int chunk_of(int count, int threads) { return std::max(1, count / (threads * chunks_per_thread)); }

InputForms forms_of(std::initializer_list<const Linear*> linears) {
  InputForms forms;
  for (const Linear* linear : linears) forms.add(linear->matrix.type());
  return forms;
}

void add_forms(InputForms& forms, const InputForms& more) {
  forms.integers |= more.integers;
  forms.floats |= more.floats;
}

std::size_t bytes_of(const ModelWeights& weights) {
  std::size_t total = weights.embedding.matrix.byte_count() + weights.output.matrix.byte_count();
  for (const LayerWeights& layer : weights.layers)
    for (const Linear* linear : {&layer.query, &layer.key, &layer.value, &layer.attention_output,
                                 &layer.gate, &layer.up, &layer.down})
      total += linear->matrix.byte_count();
  return total;
}

int checked_max_len(const ModelShape& shape, const TransformerOptions& options) {
  const long long kv_tokens = static_cast<long long>(options.num_blocks) * block_tokens;
  return static_cast<int>(std::min<long long>(shape.context_length, kv_tokens));
}

const ModelShape& checked(const ModelShape& shape, const TransformerOptions& options) {
  check_shape(shape);
  if (options.num_blocks < 1 || options.rows_max < 1 || options.sequences_max < 1 ||
      options.thread_count < 1)
    throw InvalidStep("num_blocks, rows_max, sequences_max and threads must be at least 1");
  return shape;
}

}  // namespace

Transformer::Scratch::Scratch(const ModelShape& shape, const KernelTable& kernels)
    : row(round_up(static_cast<std::size_t>(shape.hidden_size), tile_columns)),
      gate(row_block * unit_columns),
      up(row_block * unit_columns),
      scores(query_rows_max * split_tokens),
      split_mix(query_rows_max * static_cast<std::size_t>(shape.head_dim)),
      states(query_rows_max),
      sampler(kernels, shape.vocab_size) {}

Transformer::Transformer(const ModelShape& shape, const std::map<std::string, RawTensor>& tensors,
                         const TransformerOptions& options)
    : shape_(checked(shape, options)),
      kernels_(choose_kernels(options.isa_limit)),
      rows_max_(options.rows_max),
      max_model_len_(checked_max_len(shape, options)),
      limits_{shape.vocab_size, max_model_len_, options.num_blocks, options.rows_max,
              options.sequences_max},
      weights_(load_weights(shape, tensors)),
      weight_bytes_(bytes_of(weights_)),
      kv_(shape.num_layers, shape.num_kv_heads, shape.head_dim, options.num_blocks,
          options.kv_type),
      hidden_stride_(round_up(static_cast<std::size_t>(shape.hidden_size), tile_columns)),
      qkv_stride_(static_cast<std::size_t>(shape.query_size() + 2 * shape.kv_size())),
      logits_stride_(round_up(static_cast<std::size_t>(shape.vocab_size), tile_columns)),
      attention_groups_whole_(shape.group_size() * shape.head_dim % group_values == 0),
      hidden_(static_cast<std::size_t>(rows_max_) * hidden_stride_),
      qkv_(static_cast<std::size_t>(rows_max_) * qkv_stride_),
      mixed_(static_cast<std::size_t>(rows_max_) * static_cast<std::size_t>(shape.query_size())),
      logits_(sampled_block * logits_stride_),
      row_sequence_(static_cast<std::size_t>(rows_max_)),
      plan_(shape, rows_max_, options.sequences_max, options.thread_count),
      team_(options.thread_count) {
  InputForms attention, mixed, ffn, down, output;
  for (const LayerWeights& layer : weights_.layers) {
    add_forms(attention, forms_of({&layer.query, &layer.key, &layer.value}));
    add_forms(mixed, forms_of({&layer.attention_output}));
    add_forms(ffn, forms_of({&layer.gate, &layer.up}));
    add_forms(down, forms_of({&layer.down}));
  }
  output.add(weights_.output_matrix().type());
  attention_input_ = std::make_unique<Activations>(rows_max_, shape.hidden_size, attention);
  mixed_input_ = std::make_unique<Activations>(rows_max_, shape.query_size(), mixed);
  ffn_input_ = std::make_unique<Activations>(rows_max_, shape.hidden_size, ffn);
  down_input_ = std::make_unique<Activations>(rows_max_, shape.ffn_size, down);
  output_input_ = std::make_unique<Activations>(sampled_block, shape.hidden_size, output);
  for (int i = 0; i < options.thread_count; ++i) scratch_.emplace_back(shape, kernels_);
  build_rope_table();
}

void Transformer::build_rope_table() {
  const int pairs = shape_.rope_dimensions / 2;
  const std::size_t count = static_cast<std::size_t>(max_model_len_) * pairs;
  rope_cosine_ = Buffer<float>(count);
  rope_sine_ = Buffer<float>(count);
  for (int pair = 0; pair < pairs; ++pair) {
    double frequency = std::pow(shape_.rope_theta, -2.0 * pair / shape_.rope_dimensions);
    if (weights_.rope_divisors.size() != 0)
      frequency /= weights_.rope_divisors[static_cast<std::size_t>(pair)];
    for (int position = 0; position < max_model_len_; ++position) {
      const double angle = position / shape_.rope_scale * frequency;
      const std::size_t index = static_cast<std::size_t>(position) * pairs + pair;
      rope_cosine_[index] = static_cast<float>(std::cos(angle));
      rope_sine_[index] = static_cast<float>(std::sin(angle));
    }
  }
  rope_ = {rope_cosine_.data(), rope_sine_.data(), pairs, shape_.rope_adjacent};
}

void Transformer::execute(const StepBatch& batch, const StepResults& results) {
  check_step(batch, limits_);
  for (int s = 0; s < batch.sequence_count; ++s)
    std::fill(row_sequence_.begin() + batch.row_starts[s],
              row_sequence_.begin() + batch.row_starts[s + 1], s);
  plan_.build(batch);
  team_.run([&](Member& member) { run_step(member, batch, results); });
}

void Transformer::run_step(Member& member, const StepBatch& batch, const StepResults& results) {
  embed(member, batch);
  for (int index = 0; index < shape_.num_layers; ++index) {
    const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(index)];
    norm_rows(member, batch.row_count, layer.attention_norm.data(), *attention_input_);
    project_qkv(member, layer, batch.row_count);
    write_kv(member, index, batch);
    attend(member, index, batch);
    add_product(member, layer.attention_output, *mixed_input_, batch.row_count);
    norm_rows(member, batch.row_count, layer.ffn_norm.data(), *ffn_input_);
    feed_forward(member, layer, batch.row_count);
    add_product(member, layer.down, *down_input_, batch.row_count);
  }
  sample(member, batch, results);
}

void Transformer::embed(Member& member, const StepBatch& batch) {
  member.share(batch.row_count, chunk_of(batch.row_count, team_.thread_count()),
               [&](int first, int end) {
                 for (int row = first; row < end; ++row)
                   weights_.embedding.matrix.read_row(
                       batch.token_ids[row],
                       hidden_.data() + static_cast<std::size_t>(row) * hidden_stride_);
               });
}

void Transformer::norm_rows(Member& member, int row_count, const float* weight, Activations& out) {
  float* normed = scratch_[static_cast<std::size_t>(member.index())].row.data();
  member.share(row_count, chunk_of(row_count, team_.thread_count()), [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      kernels_.rms_norm(hidden_.data() + static_cast<std::size_t>(row) * hidden_stride_, weight,
                        shape_.hidden_size, shape_.norm_epsilon, normed);
      out.set(kernels_, row, 0, normed, shape_.hidden_size);
    }
  });
}

void Transformer::project_qkv(Member& member, const LayerWeights& layer, int row_count) {
  const ActivationRows input = attention_input_->view();
  const int query_tiles = layer.query.matrix.tile_count();
  const int kv_tiles = layer.key.matrix.tile_count();
  const int tiles = query_tiles + 2 * kv_tiles;
  const int units = tiles * blocks_of(row_count, row_block);
  member.share(units, chunk_of(units, team_.thread_count()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const int row = unit / tiles * row_block;
      const int column_tile = unit % tiles;
      const Linear* linear = &layer.query;
      int tile = column_tile;
      if (tile >= query_tiles) {
        tile -= query_tiles;
        linear = tile < kv_tiles ? &layer.key : &layer.value;
        tile %= kv_tiles;
      }
      float* out = qkv_.data() + static_cast<std::size_t>(row) * qkv_stride_ +
                   static_cast<std::size_t>(column_tile) * tile_columns;
      kernels_.matmul[static_cast<int>(linear->matrix.type())](
          linear->matrix.tile(tile), input, row, std::min(row_block, row_count - row),
          {out, qkv_stride_, linear->bias_at(tile), false});
    }
  });
}

void Transformer::write_kv(Member& member, int layer, const StepBatch& batch) {
  const int head_dim = shape_.head_dim;
  const float score_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  member.share(batch.row_count, chunk_of(batch.row_count, team_.thread_count()),
               [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      const int sequence = row_sequence_[static_cast<std::size_t>(row)];
      const int position = batch.first_position(sequence) + row - batch.row_starts[sequence];
      float* heads = qkv_.data() + static_cast<std::size_t>(row) * qkv_stride_;
      for (int head = 0; head < shape_.num_heads; ++head, heads += head_dim) {
        kernels_.rotate(heads, rope_, position, 1.0f);
        for (int d = 0; d < head_dim; ++d) heads[d] *= score_scale;
      }
      const int block_id = batch.table_of(sequence)[position / block_tokens];
      for (int head = 0; head < shape_.num_kv_heads; ++head, heads += head_dim) {
        kernels_.rotate(heads, rope_, position, 1.0f);
        kv_.write(kernels_, layer, head, block_id, position % block_tokens, heads,
                  heads + shape_.kv_size());
      }
    }
  });
}

void Transformer::attend(Member& member, int layer, const StepBatch& batch) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  const std::vector<AttentionItem>& items = plan_.items();
  member.share(static_cast<int>(items.size()), 1, [&](int first, int end) {
    for (int index = first; index < end; ++index)
      attend_item(items[static_cast<std::size_t>(index)], layer, batch, scratch);
  });
  if (mixed_input_->forms().integers && !attention_groups_whole_)
    requantize(member, batch.row_count, mixed_, *mixed_input_);
}

void Transformer::attend_item(const AttentionItem& item, int layer, const StepBatch& batch,
                              Scratch& scratch) {
  const int group = shape_.group_size();
  const int head_dim = shape_.head_dim;
  AttentionTile tile;
  kv_.place(tile, layer, item.kv_head);
  tile.block_table = batch.table_of(item.sequence);
  tile.head_dim = head_dim;
  tile.query_count = item.row_count * group;
  tile.scores = scratch.scores.data();
  tile.split_mix = scratch.split_mix.data();
  const int visible = batch.first_position(item.sequence) + item.row_first -
                      batch.row_starts[item.sequence] + 1;
  for (int r = 0; r < item.row_count; ++r) {
    const float* heads = qkv_.data() + static_cast<std::size_t>(item.row_first + r) * qkv_stride_ +
                         static_cast<std::size_t>(item.kv_head * group) * head_dim;
    for (int h = 0; h < group; ++h) {
      tile.queries[r * group + h] = heads + h * head_dim;
      tile.visible[r * group + h] = visible + r;
    }
  }
  AttentionState* states = item.partial < 0 ? scratch.states.data() : plan_.partial(item.partial);
  for (int q = 0; q < tile.query_count; ++q) states[q].total = 0.0f;
  kernels_.attend(tile, item.split_first, item.split_end, states);
  if (item.partial >= 0) {
    if (!plan_.finish_partial(item)) return;
    const int first = plan_.first_partial(item);
    states = plan_.partial(first);
    for (int split = 1; split < plan_.split_count(item); ++split)
      for (int h = 0; h < group; ++h)
        kernels_.merge(states + h, plan_.partial(first + split) + h, head_dim);
  }
  finish_rows(item, states);
}

void Transformer::finish_rows(const AttentionItem& item, const AttentionState* states) {
  const int group = shape_.group_size();
  const int width = group * shape_.head_dim;
  for (int r = 0; r < item.row_count; ++r) {
    const int row = item.row_first + r;
    float* out = mixed_.data() + static_cast<std::size_t>(row) * shape_.query_size() +
                 item.kv_head * width;
    for (int h = 0; h < group; ++h)
      kernels_.finish(&states[r * group + h], shape_.head_dim, out + h * shape_.head_dim);
    if (attention_groups_whole_ || !mixed_input_->forms().integers)
      mixed_input_->set(kernels_, row, item.kv_head * width, out, width);
  }
}

void Transformer::requantize(Member& member, int row_count, const Buffer<float>& rows,
                             Activations& out) {
  const int width = shape_.query_size();
  member.share(row_count, chunk_of(row_count, team_.thread_count()), [&](int first, int end) {
    for (int row = first; row < end; ++row)
      out.set(kernels_, row, 0, rows.data() + static_cast<std::size_t>(row) * width, width);
  });
}

void Transformer::add_product(Member& member, const Linear& linear, const Activations& input,
                              int row_count) {
  const ActivationRows rows = input.view();
  const int tiles = linear.matrix.tile_count();
  const int units = tiles * blocks_of(row_count, row_block);
  const MatmulTile matmul = kernels_.matmul[static_cast<int>(linear.matrix.type())];
  member.share(units, chunk_of(units, team_.thread_count()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const int row = unit / tiles * row_block;
      const int tile = unit % tiles;
      float* out = hidden_.data() + static_cast<std::size_t>(row) * hidden_stride_ +
                   static_cast<std::size_t>(tile) * tile_columns;
      matmul(linear.matrix.tile(tile), rows, row, std::min(row_block, row_count - row),
             {out, hidden_stride_, linear.bias_at(tile), true});
    }
  });
}

void Transformer::feed_forward(Member& member, const LayerWeights& layer, int row_count) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  const int columns = blocks_of(shape_.ffn_size, unit_columns);
  const int units = columns * blocks_of(row_count, row_block);
  member.share(units, chunk_of(units, team_.thread_count()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const int row = unit / columns * row_block;
      gate_unit(layer, unit % columns, row, std::min(row_block, row_count - row), scratch);
    }
  });
}

void Transformer::gate_unit(const LayerWeights& layer, int unit, int row_first, int row_count,
                            Scratch& scratch) {
  const ActivationRows input = ffn_input_->view();
  const int tiles = layer.gate.matrix.tile_count();
  for (int t = 0; t < unit_columns / tile_columns; ++t) {
    const int tile = unit * (unit_columns / tile_columns) + t;
    if (tile >= tiles) break;   // the last unit of an odd number of tiles
    for (const auto& [linear, out] : {std::pair{&layer.gate, &scratch.gate},
                                      std::pair{&layer.up, &scratch.up}})
      kernels_.matmul[static_cast<int>(linear->matrix.type())](
          linear->matrix.tile(tile), input, row_first, row_count,
          {out->data() + t * tile_columns, unit_columns, linear->bias_at(tile), false});
  }
  for (int r = 0; r < row_count; ++r) {
    float* gate = scratch.gate.data() + r * unit_columns;
    kernels_.swiglu(gate, scratch.up.data() + r * unit_columns, unit_columns, gate);
    const int count = std::min(unit_columns, shape_.ffn_size - unit * unit_columns);
    down_input_->set(kernels_, row_first + r, unit * unit_columns, gate, count);
  }
}

void Transformer::sample(Member& member, const StepBatch& batch, const StepResults& results) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  const PackedMatrix& matrix = weights_.output_matrix();
  const MatmulTile matmul = kernels_.matmul[static_cast<int>(matrix.type())];
  const ActivationRows input = output_input_->view();
  for (int block = 0; block < batch.sampled_count; block += sampled_block) {
    const int count = std::min(sampled_block, batch.sampled_count - block);
    member.share(count, 1, [&](int first, int end) {
      for (int i = first; i < end; ++i) {
        const int row = batch.row_starts[batch.sampled[block + i] + 1] - 1;
        kernels_.rms_norm(hidden_.data() + static_cast<std::size_t>(row) * hidden_stride_,
                          weights_.output_norm.data(), shape_.hidden_size, shape_.norm_epsilon,
                          scratch.row.data());
        output_input_->set(kernels_, i, 0, scratch.row.data(), shape_.hidden_size);
      }
    });
    const int tiles = matrix.tile_count();
    member.share(tiles, chunk_of(tiles, team_.thread_count()), [&](int first, int end) {
      for (int tile = first; tile < end; ++tile)
        matmul(matrix.tile(tile), input, 0, count,
               {logits_.data() + static_cast<std::size_t>(tile) * tile_columns, logits_stride_,
                weights_.tied ? nullptr : weights_.output.bias_at(tile), false});
    });
    member.share(count, 1, [&](int first, int end) {
      for (int i = first; i < end; ++i) {
        float* logits = logits_.data() + static_cast<std::size_t>(i) * logits_stride_;
        const int n = block + i;
        if (results.logits != nullptr)
          std::memcpy(results.logits + static_cast<std::size_t>(n) * shape_.vocab_size, logits,
                      static_cast<std::size_t>(shape_.vocab_size) * sizeof(float));
        const SampledToken token = scratch.sampler.sample(
            logits,
            {batch.temperature[n], batch.top_k[n], batch.top_p[n], batch.min_p[n], batch.seed[n],
             batch.position[n]},
            batch.edits_of(n, shape_.vocab_size), results.top_of(batch, n));
        results.token_ids[n] = token.token_id;
        results.logprobs[n] = token.logprob;
      }
    });
  }
}

}  // namespace headrace
