#include "model/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/errors.hpp"
#include "kernels/dispatch.hpp"
#include "model/step_stages.hpp"

namespace headrace {

namespace {

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

// Of the largest team.
int threads_of(const TransformerOptions& options) {
  int most = 0;
  for (const Device& device : options.devices) most = std::max(most, device.thread_count);
  return most;
}

// The model as this rank's attention sees it.
ModelShape local_shape(ModelShape shape, const RankPlace& place) {
  const int group = shape.group_size();
  shape.num_kv_heads = rows_of_rank(place, shape.num_kv_heads, 1).count();
  shape.num_heads = shape.num_kv_heads * group;
  return shape;
}

DeviceCores cores_of(const TransformerOptions& options) {
  DeviceCores cores;
  for (const Device& device : options.devices) cores.push_back(device.cores);
  return cores;
}

const ModelShape& checked(const ModelShape& shape, const TransformerOptions& options) {
  check_shape(shape);
  if (options.num_blocks < 1 || options.rows_max < 1 || options.sequences_max < 1 ||
      options.devices.empty() || threads_of(options) < 1)
    throw InvalidStep("num_blocks, rows_max, sequences_max and threads must be at least 1");
  const int devices = static_cast<int>(options.devices.size());
  for (const LayerShape& layer : shape.layers)
    if (layer.device < 0 || layer.device >= devices || layer.experts_device < 0 ||
        layer.experts_device >= devices)
      throw InvalidStep("a layer is on a device that is not there");
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
      local_(local_shape(shape, options.place)),
      kv_head_first_(rows_of_rank(options.place, shape.num_kv_heads, 1).first),
      kernels_(choose_kernels(options.isa_limit)),
      rows_max_(options.rows_max),
      max_model_len_(checked_max_len(shape, options)),
      limits_{shape.vocab_size, max_model_len_, options.num_blocks, options.rows_max,
              options.sequences_max},
      group_(make_group(shape, limits_, options)),
      weights_(load_weights(shape, tensors, options.place, cores_of(options), options.packed_path)),
      weight_bytes_(weights_.device_bytes(shape, static_cast<int>(options.devices.size()))),
      kv_(shape.num_layers, local_.num_kv_heads, shape.head_dim, options.num_blocks,
          options.kv_type),
      hidden_stride_(round_up(static_cast<std::size_t>(shape.hidden_size), tile_columns)),
      qkv_stride_(static_cast<std::size_t>(local_.query_size() + 2 * local_.kv_size())),
      logits_stride_(round_up(static_cast<std::size_t>(shape.vocab_size), tile_columns)),
      attention_groups_whole_(shape.group_size() * shape.head_dim % group_values == 0),
      hidden_(shared_buffer<float>(group_.get(),
                                   static_cast<std::size_t>(rows_max_) * hidden_stride_)),
      branch_(shared_buffer<float>(
          group_.get(),
          shape.adds_directly() ? 0 : static_cast<std::size_t>(rows_max_) * hidden_stride_)),
      qkv_(static_cast<std::size_t>(rows_max_) * qkv_stride_),
      mixed_(shared_buffer<float>(group_.get(), static_cast<std::size_t>(rows_max_) *
                                                    static_cast<std::size_t>(shape.query_size()))),
      logits_(shared_buffer<float>(group_.get(),
                                   shape.encoder ? 0 : sampled_block * logits_stride_)),
      row_sequence_(static_cast<std::size_t>(rows_max_)),
      experts_(shape.experts, rows_max_, row_block),
      adapters_(options.adapter_slots, options.adapter_rank_max),
      plan_(local_, rows_max_, options.sequences_max, threads_of(options)),
      devices_(options.devices) {
  for (const Device& device : devices_)
    teams_.push_back(
        std::make_unique<ThreadTeam>(device.thread_count, group_.get(), device.cores));
  cut_into_stretches();
  if (group_ != nullptr) command_data_ = group_->take<std::int32_t>(command_words());
  make_inputs();
  kept_rows_.reserve(static_cast<std::size_t>(options.sequences_max));
  for (int i = 0; i < threads_of(options); ++i) scratch_.emplace_back(shape, kernels_);
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
  if (!shape_.encoder) output.add(weights_.output_linear().matrix.type());
  ffn.floats |= experts.count > 0;   // what the experts' slots are filled from
  attention_input_ = std::make_unique<Activations>(rows_max_, shape_.hidden_size, attention);
  mixed_input_ = std::make_unique<Activations>(rows_max_, shape_.query_size(), mixed, group_.get());
  ffn_input_ = std::make_unique<Activations>(rows_max_, shape_.hidden_size, ffn);
  down_input_ = std::make_unique<Activations>(rows_max_, shape_.ffn_size, down, group_.get());
  output_input_ = std::make_unique<Activations>(sampled_block, shape_.hidden_size, output);
  if (experts.count == 0) return;
  const int slots = rows_max_ * experts.used;
  expert_input_ = std::make_unique<Activations>(slots, shape_.hidden_size, expert);
  expert_down_ =
      std::make_unique<Activations>(slots, experts.ffn_size, expert_down, group_.get());
  expert_output_ = Buffer<float>(static_cast<std::size_t>(slots) * hidden_stride_);
  if (experts.shared_ffn_size == 0) return;
  shared_down_ = std::make_unique<Activations>(rows_max_, experts.shared_ffn_size, shared_down,
                                               group_.get());
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
  if (group_ != nullptr) post_step(batch);
  run_batch(batch, results);
}

void Transformer::run_batch(const StepBatch& batch, const StepResults& results) {
  for (int s = 0; s < batch.sequence_count; ++s)
    std::fill(row_sequence_.begin() + batch.row_starts[s],
              row_sequence_.begin() + batch.row_starts[s + 1], s);
  plan_.build(batch);
  adapters_.build(batch);
  choose_kept_rows(batch, results);
  for (const Stretch& stretch : stretches_) {
    pin_thread(devices_[static_cast<std::size_t>(stretch.device)].cores);
    teams_[static_cast<std::size_t>(stretch.device)]->run(
        [&](Member& member) { run_stretch(member, stretch, batch, results); });
  }
  if (group_ != nullptr) group_->barrier();   // nobody reads this step's arrays any more
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

void Transformer::keep_rows(Member& member) {
  if (keeps_all_) return;
  const int count = static_cast<int>(kept_rows_.size());
  member.share_of_rank(1, 1, [&](int, int) {
    for (int i = 0; i < count; ++i) {
      const int row = kept_rows_[static_cast<std::size_t>(i)];
      if (row == i) continue;
      std::copy_n(hidden_row(row), shape_.hidden_size, hidden_row(i));
      mixed_input_->move_row(row, i);
    }
  });
}

void Transformer::cut_into_stretches() {
  for (int half = 0; half < 2 * shape_.num_layers; ++half) {
    const LayerShape& layer = shape_.layers[static_cast<std::size_t>(half / 2)];
    const bool experts = half % 2 == 1 && shape_.experts.count > 0;
    const int device = experts ? layer.experts_device : layer.device;
    if (stretches_.empty() || stretches_.back().device != device)
      stretches_.push_back({device, half, half});
    stretches_.back().end = half + 1;
  }
}

void Transformer::run_stretch(Member& member, const Stretch& stretch, const StepBatch& batch,
                              const StepResults& results) {
  if (stretch.first == 0) embed(member, batch);
  for (int half = stretch.first; half < stretch.end; ++half) {
    half % 2 == 0 ? run_attention(member, half / 2, batch)
                  : run_feed_forward(member, half / 2, batch);
  }
  if (stretch.end != 2 * shape_.num_layers) return;
  if (results.hidden != nullptr) copy_hidden(member, batch.row_count, results.hidden);
  sample(member, batch, results);
}

int Transformer::rows_behind_attention(int index, const StepBatch& batch) const {
  const bool cut = index == shape_.num_layers - 1 && !keeps_all_;
  return cut ? static_cast<int>(kept_rows_.size()) : batch.row_count;
}

void Transformer::run_attention(Member& member, int index, const StepBatch& batch) {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(index)];
  enter_branch(member, batch.row_count, layer.attention_norm, *attention_input_);
  enter_adapters(member, index, AdapterTarget::query, 3, *attention_input_);
  project_qkv(member, index, batch.row_count);
  write_kv(member, index, batch);
  attend(member, index, batch);
  const int rows = rows_behind_attention(index, batch);
  if (index == shape_.num_layers - 1) keep_rows(member);
  if (rows == 0) return;
  enter_adapters(member, index, AdapterTarget::attention_output, 1, *mixed_input_);
  leave_branch(member, rows, layer.attention_output, *mixed_input_, layer.attention_post_norm,
               {index, AdapterTarget::attention_output});
}

void Transformer::run_feed_forward(Member& member, int index, const StepBatch& batch) {
  const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(index)];
  const int rows = rows_behind_attention(index, batch);
  if (rows == 0) return;
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
  const Linear& embedding = weights_.embedding;
  member.share(batch.row_count, chunk_of(batch.row_count, member.team_size()),
               [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      const int token = batch.token_ids[row] - embedding.output_first();
      if (token < 0 || token >= embedding.matrix.outputs()) continue;   // another rank's
      float* hidden = hidden_row(row);
      embedding.matrix.read_row(token, hidden);
      if (shape_.embedding_scale != 1.0f)
        for (int i = 0; i < shape_.hidden_size; ++i) hidden[i] *= shape_.embedding_scale;
      if (shape_.encoder) {
        const int sequence = row_sequence_[static_cast<std::size_t>(row)];
        embed_encoder_row(row, batch.first_position(sequence) + row - batch.row_starts[sequence],
                          scratch);
      }
    }
  }, Meet::ranks);
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
  member.share(row_count, chunk_of(row_count, member.team_size()), [&](int first, int end) {
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
    multiply(member, linear, input, row_count, hidden_.data(), hidden_stride_, true, site,
             Meet::ranks);
    return;
  }
  multiply(member, linear, input, row_count, branch_.data(), hidden_stride_, false, site,
           Meet::ranks);
  join_branch(member, row_count, post_norm);
}

void Transformer::join_branch(Member& member, int row_count, const Norm& post_norm) {
  member.share_of_rank(row_count, chunk_of(row_count, member.team_size()),
                       [&](int first, int end) {
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
                           AdapterSite site, Meet meet) {
  const ActivationRows rows = input.view();
  const int tiles = linear.matrix.tile_count();
  const int units = tiles * blocks_of(row_count, row_block);
  const MatmulTile matmul = kernels_.matmul[static_cast<int>(linear.matrix.type())];
  member.share(units, chunk_of(units, member.team_size()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const int row = unit / tiles * row_block;
      const int tile = unit % tiles;
      const int count = std::min(row_block, row_count - row);
      float* at = out + static_cast<std::size_t>(row) * stride +
                  static_cast<std::size_t>(linear.tile_first + tile) * tile_columns;
      matmul(linear.matrix.tile(tile), rows, row, count,
             {at, stride, linear.bias_at(tile), accumulate});
      add_adapters(site, tile, row, count, at, stride);
    }
  }, meet);
}

void Transformer::copy_hidden(Member& member, int row_count, float* out) {
  const std::size_t width = static_cast<std::size_t>(shape_.hidden_size);
  member.share(row_count, chunk_of(row_count, member.team_size()), [&](int first, int end) {
    for (int row = first; row < end; ++row)
      std::memcpy(out + static_cast<std::size_t>(row) * width, hidden_row(row),
                  width * sizeof(float));
  });
}

void Transformer::sample(Member& member, const StepBatch& batch, const StepResults& results) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  if (batch.sampled_count == 0) return;
  const Linear& output = weights_.output_linear();
  const PackedMatrix& matrix = output.matrix;
  const std::size_t column_first = static_cast<std::size_t>(output.output_first());
  const bool samples = member.place().rank == 0;
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
    member.share(tiles, chunk_of(tiles, member.team_size()), [&](int first, int end) {
      for (int tile = first; tile < end; ++tile)
        matmul(matrix.tile(tile), input, 0, count,
               {logits_.data() + column_first + static_cast<std::size_t>(tile) * tile_columns,
                logits_stride_, weights_.tied ? nullptr : output.bias_at(tile), false});
    }, Meet::ranks);
    member.share(samples ? count : 0, 1, [&](int first, int end) {
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
    }, Meet::ranks);
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
