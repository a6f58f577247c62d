#include "model/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/errors.hpp"
#include "kernels/dispatch.hpp"
#include "model/step_stages.hpp"

namespace headrace {

namespace {

constexpr int sampled_block = 32;    // rows whose logits are held at once

InputForms forms_of(std::initializer_list<const Linear*> linears) {
  InputForms forms;
  for (const Linear* linear : linears)
    if (linear->matrix.outputs() > 0) forms.add(linear->matrix.type());
  return forms;
}

void add_forms(InputForms& forms, const InputForms& more) {
  forms.integers |= more.integers;
  forms.floats |= more.floats;
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
      weights_(load_weights(shape, tensors, options.packed_path)),
      weight_bytes_(weights_.byte_count()),
      kv_(shape.num_layers, shape.num_kv_heads, shape.head_dim, options.num_blocks,
          options.kv_type),
      hidden_stride_(round_up(static_cast<std::size_t>(shape.hidden_size), tile_columns)),
      qkv_stride_(static_cast<std::size_t>(shape.query_size() + 2 * shape.kv_size())),
      logits_stride_(round_up(static_cast<std::size_t>(shape.vocab_size), tile_columns)),
      attention_groups_whole_(shape.group_size() * shape.head_dim % group_values == 0),
      hidden_(static_cast<std::size_t>(rows_max_) * hidden_stride_),
      branch_(shape.adds_directly() ? 0 : static_cast<std::size_t>(rows_max_) * hidden_stride_),
      qkv_(static_cast<std::size_t>(rows_max_) * qkv_stride_),
      mixed_(static_cast<std::size_t>(rows_max_) * static_cast<std::size_t>(shape.query_size())),
      logits_(shape.encoder ? 0 : sampled_block * logits_stride_),
      row_sequence_(static_cast<std::size_t>(rows_max_)),
      experts_(shape.experts, rows_max_, row_block),
      adapters_(options.adapter_slots, options.adapter_rank_max),
      plan_(shape, rows_max_, options.sequences_max, options.thread_count),
      team_(options.thread_count) {
  make_inputs();
  kept_rows_.reserve(static_cast<std::size_t>(options.sequences_max));
  for (int i = 0; i < options.thread_count; ++i) scratch_.emplace_back(shape, kernels_);
  build_rope_tables();
}

void Transformer::make_inputs() {
  const ExpertShape& experts = shape_.experts;
  InputForms attention, mixed, ffn, down, expert, expert_down, shared_down, output;
  for (const LayerWeights& layer : weights_.layers) {
    add_forms(attention, forms_of({&layer.query, &layer.key, &layer.value}));
    add_forms(mixed, forms_of({&layer.attention_output}));
    add_forms(ffn, forms_of({&layer.ffn.gate, &layer.ffn.up, &layer.experts.router,
                             &layer.experts.shared.gate, &layer.experts.shared.up}));
    add_forms(down, forms_of({&layer.ffn.down}));
    add_forms(shared_down, forms_of({&layer.experts.shared.down}));
    for (const FeedForward& each : layer.experts.each) {
      add_forms(expert, forms_of({&each.gate, &each.up}));
      add_forms(expert_down, forms_of({&each.down}));
    }
  }
  if (!shape_.encoder) output.add(weights_.output_matrix().type());
  ffn.floats |= experts.count > 0;   // what the experts' slots are filled from
  attention_input_ = std::make_unique<Activations>(rows_max_, shape_.hidden_size, attention);
  mixed_input_ = std::make_unique<Activations>(rows_max_, shape_.query_size(), mixed);
  ffn_input_ = std::make_unique<Activations>(rows_max_, shape_.hidden_size, ffn);
  down_input_ = std::make_unique<Activations>(rows_max_, shape_.ffn_size, down);
  output_input_ = std::make_unique<Activations>(sampled_block, shape_.hidden_size, output);
  if (experts.count == 0) return;
  const int slots = rows_max_ * experts.used;
  expert_input_ = std::make_unique<Activations>(slots, shape_.hidden_size, expert);
  expert_down_ = std::make_unique<Activations>(slots, experts.ffn_size, expert_down);
  expert_output_ = Buffer<float>(static_cast<std::size_t>(slots) * hidden_stride_);
  if (experts.shared_ffn_size == 0) return;
  shared_down_ = std::make_unique<Activations>(rows_max_, experts.shared_ffn_size, shared_down);
  shared_output_ = Buffer<float>(static_cast<std::size_t>(rows_max_) * hidden_stride_);
}

void Transformer::build_rope_tables() {
  const int pairs = shape_.rope_dimensions / 2;
  const std::size_t count = static_cast<std::size_t>(max_model_len_) * pairs;
  for (const Rotation& rotation : shape_.rotations) {
    RopeTables& tables = ropes_.emplace_back();
    tables.cosine = Buffer<float>(count);
    tables.sine = Buffer<float>(count);
    tables.magnitude = rotation.magnitude;
    for (int pair = 0; pair < pairs; ++pair) {
      for (int position = 0; position < max_model_len_; ++position) {
        const double angle = position * rotation.frequencies[static_cast<std::size_t>(pair)];
        const std::size_t index = static_cast<std::size_t>(position) * pairs + pair;
        tables.cosine[index] = static_cast<float>(std::cos(angle));
        tables.sine[index] = static_cast<float>(std::sin(angle));
      }
    }
    tables.view = {tables.cosine.data(), tables.sine.data(), pairs, shape_.rope_adjacent};
  }
}

void Transformer::execute(const StepBatch& batch, const StepResults& results) {
  check_step(batch, limits_);
  for (int s = 0; s < batch.sequence_count; ++s)
    std::fill(row_sequence_.begin() + batch.row_starts[s],
              row_sequence_.begin() + batch.row_starts[s + 1], s);
  plan_.build(batch);
  adapters_.build(batch);
  choose_kept_rows(batch, results);
  team_.run([&](Member& member) { run_step(member, batch, results); });
}

// Behind the last layer's attention only the rows that are sampled matter: they move to the front.
void Transformer::choose_kept_rows(const StepBatch& batch, const StepResults& results) {
  kept_rows_.clear();
  keeps_all_ = results.hidden != nullptr || !adapters_.runs().empty() ||
               batch.sampled_count == batch.row_count;
  for (int i = 0; i < batch.sampled_count && !keeps_all_; ++i) {
    const int row = batch.row_starts[batch.sampled[i] + 1] - 1;
    keeps_all_ = !kept_rows_.empty() && row <= kept_rows_.back();   // no row may be moved over
    kept_rows_.push_back(row);
  }
}

int Transformer::keep_rows(Member& member, int row_count) {
  if (keeps_all_) return row_count;
  const int count = static_cast<int>(kept_rows_.size());
  member.share(1, 1, [&](int, int) {
    for (int i = 0; i < count; ++i) {
      const int row = kept_rows_[static_cast<std::size_t>(i)];
      if (row == i) continue;
      std::copy_n(hidden_row(row), shape_.hidden_size, hidden_row(i));
      mixed_input_->move_row(row, i);
    }
  });
  return count;
}

void Transformer::run_step(Member& member, const StepBatch& batch, const StepResults& results) {
  embed(member, batch);
  for (int index = 0; index < shape_.num_layers; ++index) run_layer(member, index, batch);
  if (results.hidden != nullptr) copy_hidden(member, batch.row_count, results.hidden);
  sample(member, batch, results);
}

void Transformer::run_layer(Member& member, int index, const StepBatch& batch) {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(index)];
  int rows = batch.row_count;
  enter_branch(member, rows, layer.attention_norm, *attention_input_);
  enter_adapters(member, index, AdapterTarget::query, 3, *attention_input_);
  project_qkv(member, index, rows);
  write_kv(member, index, batch);
  attend(member, index, batch);
  if (index == shape_.num_layers - 1) rows = keep_rows(member, rows);
  if (rows == 0) return;
  enter_adapters(member, index, AdapterTarget::attention_output, 1, *mixed_input_);
  leave_branch(member, rows, layer.attention_output, *mixed_input_, layer.attention_post_norm,
               {index, AdapterTarget::attention_output});
  enter_branch(member, rows, layer.ffn_norm, *ffn_input_);
  if (shape_.experts.count > 0) {
    run_experts(member, layer.experts, rows, layer.ffn_post_norm);
    return;
  }
  enter_adapters(member, index, AdapterTarget::gate, 2, *ffn_input_);
  feed_forward(member, layer.ffn, *ffn_input_, shape_.ffn_size, rows, *down_input_, index);
  enter_adapters(member, index, AdapterTarget::down, 1, *down_input_);
  leave_branch(member, rows, layer.ffn.down, *down_input_, layer.ffn_post_norm,
               {index, AdapterTarget::down});
}

void Transformer::embed(Member& member, const StepBatch& batch) {
  float* scratch = scratch_[static_cast<std::size_t>(member.index())].row.data();
  member.share(batch.row_count, chunk_of(batch.row_count, team_.thread_count()),
               [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      float* hidden = hidden_row(row);
      weights_.embedding.matrix.read_row(batch.token_ids[row], hidden);
      if (shape_.embedding_scale != 1.0f)
        for (int i = 0; i < shape_.hidden_size; ++i) hidden[i] *= shape_.embedding_scale;
      if (shape_.encoder) {
        const int sequence = row_sequence_[static_cast<std::size_t>(row)];
        embed_encoder_row(row, batch.first_position(sequence) + row - batch.row_starts[sequence],
                          scratch);
      }
    }
  });
}

void Transformer::embed_encoder_row(int row, int position, float* scratch) {
  float* hidden = hidden_row(row);
  weights_.position_embedding.matrix.read_row(position, scratch);
  for (int i = 0; i < shape_.hidden_size; ++i) hidden[i] += scratch[i];
  weights_.type_embedding.matrix.read_row(0, scratch);
  for (int i = 0; i < shape_.hidden_size; ++i) hidden[i] += scratch[i];
  norm(hidden, weights_.embedding_norm, hidden);
}

void Transformer::norm(const float* row, const Norm& norm, float* out) const {
  if (shape_.layer_norm) {
    kernels_.layer_norm(row, norm.weight.data(), norm.bias.data(), shape_.hidden_size,
                        shape_.norm_epsilon, out);
  } else {
    kernels_.rms_norm(row, norm.weight.data(), shape_.hidden_size, shape_.norm_epsilon, out);
  }
}

void Transformer::enter_branch(Member& member, int row_count, const Norm& norm_before,
                               Activations& out) {
  float* normed = scratch_[static_cast<std::size_t>(member.index())].row.data();
  member.share(row_count, chunk_of(row_count, team_.thread_count()), [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      if (!shape_.norms_before()) {
        out.set(kernels_, row, 0, hidden_row(row), shape_.hidden_size);
        continue;
      }
      norm(hidden_row(row), norm_before, normed);
      out.set(kernels_, row, 0, normed, shape_.hidden_size);
    }
  });
}

void Transformer::leave_branch(Member& member, int row_count, const Linear& linear,
                               const Activations& input, const Norm& post_norm, AdapterSite site) {
  if (shape_.adds_directly()) {
    multiply(member, linear, input, row_count, hidden_.data(), hidden_stride_, true, site);
    return;
  }
  multiply(member, linear, input, row_count, branch_.data(), hidden_stride_, false, site);
  join_branch(member, row_count, post_norm);
}

void Transformer::join_branch(Member& member, int row_count, const Norm& post_norm) {
  member.share(row_count, chunk_of(row_count, team_.thread_count()), [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      float* hidden = hidden_row(row);
      float* branch = branch_row(row);
      if (shape_.norm_placement == NormPlacement::both ||
          shape_.norm_placement == NormPlacement::branch)
        norm(branch, post_norm, branch);
      for (int i = 0; i < shape_.hidden_size; ++i) hidden[i] += shape_.residual_scale * branch[i];
      if (shape_.norm_placement == NormPlacement::after) norm(hidden, post_norm, hidden);
    }
  });
}

void Transformer::multiply(Member& member, const Linear& linear, const Activations& input,
                           int row_count, float* out, std::size_t stride, bool accumulate,
                           AdapterSite site) {
  const ActivationRows rows = input.view();
  const int tiles = linear.matrix.tile_count();
  const int units = tiles * blocks_of(row_count, row_block);
  const MatmulTile matmul = kernels_.matmul[static_cast<int>(linear.matrix.type())];
  member.share(units, chunk_of(units, team_.thread_count()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const int row = unit / tiles * row_block;
      const int tile = unit % tiles;
      const int count = std::min(row_block, row_count - row);
      float* at = out + static_cast<std::size_t>(row) * stride +
                  static_cast<std::size_t>(tile) * tile_columns;
      matmul(linear.matrix.tile(tile), rows, row, count,
             {at, stride, linear.bias_at(tile), accumulate});
      add_adapters(site, tile, row, count, at, stride);
    }
  });
}

void Transformer::copy_hidden(Member& member, int row_count, float* out) {
  const std::size_t width = static_cast<std::size_t>(shape_.hidden_size);
  member.share(row_count, chunk_of(row_count, team_.thread_count()), [&](int first, int end) {
    for (int row = first; row < end; ++row)
      std::memcpy(out + static_cast<std::size_t>(row) * width, hidden_row(row),
                  width * sizeof(float));
  });
}

void Transformer::sample(Member& member, const StepBatch& batch, const StepResults& results) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  if (batch.sampled_count == 0) return;
  const PackedMatrix& matrix = weights_.output_matrix();
  const MatmulTile matmul = kernels_.matmul[static_cast<int>(matrix.type())];
  const ActivationRows input = output_input_->view();
  for (int block = 0; block < batch.sampled_count; block += sampled_block) {
    const int count = std::min(sampled_block, batch.sampled_count - block);
    member.share(count, 1, [&](int first, int end) {
      for (int i = first; i < end; ++i) {
        const int row =
            keeps_all_ ? batch.row_starts[batch.sampled[block + i] + 1] - 1 : block + i;
        norm(hidden_row(row), weights_.output_norm, scratch.row.data());
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
        scale_logits(logits);
        if (results.logits != nullptr)
          std::memcpy(results.logits + static_cast<std::size_t>(n) * shape_.vocab_size, logits,
                      static_cast<std::size_t>(shape_.vocab_size) * sizeof(float));
        const SampledToken token =
            scratch.sampler.sample(logits, batch.sampling_of(n),
                                   batch.edits_of(n, shape_.vocab_size), results.top_of(batch, n));
        results.token_ids[n] = token.token_id;
        results.logprobs[n] = token.logprob;
      }
    });
  }
}

void Transformer::scale_logits(float* logits) const {
  if (shape_.logit_scale != 1.0f)
    for (int i = 0; i < shape_.vocab_size; ++i) logits[i] *= shape_.logit_scale;
  if (shape_.logit_softcap > 0)
    for (int i = 0; i < shape_.vocab_size; ++i)
      logits[i] = shape_.logit_softcap * std::tanh(logits[i] / shape_.logit_softcap);
}

}  // namespace headrace
