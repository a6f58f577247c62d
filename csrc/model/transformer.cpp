#include "model/transformer.hpp"

#include <algorithm>

#include "model/step_stages.hpp"
#include "model/tile_products.hpp"

namespace headrace {

void Transformer::execute(const StepBatch& batch, const StepResults& results) {
  check_step(batch, limits_);
  adapters_.build(batch);   // which may refuse, before other ranks are told
  const bool keeps_all = results.hidden != nullptr;
  if (group_ != nullptr) post_step(batch, keeps_all);
  run_batch(batch, results, keeps_all);
}

void Transformer::run_batch(const StepBatch& batch, const StepResults& results, bool keeps_all) {
  for (int s = 0; s < batch.sequence_count; ++s)
    std::fill(row_sequence_.begin() + batch.row_starts[s],
              row_sequence_.begin() + batch.row_starts[s + 1], s);
  plan_.build(batch);
  choose_kept_rows(batch, keeps_all);
  for (const auto* input : {&attention_input_, &mixed_input_, &ffn_input_, &down_input_, &output_input_,
                            &expert_input_, &expert_down_, &shared_down_})
    if (*input != nullptr) (*input)->begin_step();
  for (const Stretch& stretch : stretches_) {
    pin_thread(devices_[static_cast<std::size_t>(stretch.device)].cores);
    teams_[static_cast<std::size_t>(stretch.device)]->run(
        [&](Member& member) { run_stretch(member, stretch, batch, results); });
  }
  if (group_ != nullptr) group_->barrier();   // nobody reads this step's arrays any more
}

// Behind the last layer's attention only the rows that are sampled matter: they move to the front.
void Transformer::choose_kept_rows(const StepBatch& batch, bool keeps_all) {
  kept_rows_.clear();
  keeps_all_ = keeps_all || !adapters_.runs().empty() ||
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
  if (gathers_heads()) gather_heads(member, batch.row_count);
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
  member.share(units, tile_chunk_of(units, member.team_size()), [&](int first, int end) {
    for (int unit = first, width; unit < end; unit += width) {
      const int row = unit / tiles * row_block;
      const int tile = unit % tiles;
      width = tiles_at_once(kernels_, linear.matrix, std::min(end - unit, tiles - tile));
      const int count = std::min(row_block, row_count - row);
      float* at = out + static_cast<std::size_t>(row) * stride +
                  static_cast<std::size_t>(linear.tile_first + tile) * tile_columns;
      multiply_tiles(kernels_, linear.matrix, tile, width, rows, row, count,
                     {at, stride, linear.bias_at(tile), accumulate});
      for (int t = 0; t < width; ++t)
        add_adapters(site, tile + t, row, count, at + t * tile_columns, stride);
    }
  }, meet);
}

}  // namespace headrace
