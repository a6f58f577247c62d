// The feed-forward half of a layer: one gated network, or experts that a router chooses for each row.
#include <algorithm>
#include <cmath>
#include <utility>

#include "model/step_stages.hpp"
#include "model/tile_products.hpp"
#include "model/transformer.hpp"

namespace headrace {

void Transformer::feed_forward(Member& member, const FeedForward& ffn, const Activations& input,
                               int ffn_size, int row_count, Activations& out, int layer) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  const int columns = blocks_of(ffn.up.matrix.outputs(), unit_columns);
  const int units = columns * blocks_of(row_count, row_block);
  member.share(units, chunk_of(units, member.team_size()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const int row = unit / columns * row_block;
      gate_unit(ffn, input, unit % columns, row, std::min(row_block, row_count - row), ffn_size,
                scratch, out, layer);
    }
  }, Meet::ranks);
}

void Transformer::gate_unit(const FeedForward& ffn, const Activations& input, int unit,
                            int row_first, int row_count, int ffn_size, Scratch& scratch,
                            Activations& out, int layer) {
  const ActivationRows rows = input.view();
  const int tile_first = unit * (unit_columns / tile_columns);
  const int tile_end = std::min(tile_first + unit_columns / tile_columns,
                                ffn.up.matrix.tile_count());   // the last unit may have one tile
  // Without a gate the activation's input is `up`, and what it multiplies is 1.
  const Linear* gate_linear = shape_.gated ? &ffn.gate : &ffn.up;
  const Linear* up_linear = shape_.gated ? &ffn.up : nullptr;
  for (const auto& [linear, half] : {std::pair{gate_linear, scratch.gate.data()},
                                     std::pair{up_linear, scratch.up.data()}}) {
    if (linear == nullptr) continue;
    const bool gate = linear == &ffn.gate;
    const AdapterSite site{layer, gate ? AdapterTarget::gate : AdapterTarget::up, gate ? 0 : 1};
    for (int tile = tile_first, width; tile < tile_end; tile += width) {
      width = tiles_at_once(kernels_, linear->matrix, tile_end - tile);
      float* at = half + (tile - tile_first) * tile_columns;
      multiply_tiles(kernels_, linear->matrix, tile, width, rows, row_first, row_count,
                     {at, unit_columns, linear->bias_at(tile), false});
      for (int t = 0; t < width; ++t)
        add_adapters(site, tile + t, row_first, row_count, at + t * tile_columns, unit_columns);
    }
  }
  if (!shape_.gated) std::fill_n(scratch.up.data(), row_count * unit_columns, 1.0f);
  const GatedUnit activate = kernels_.gated[static_cast<int>(shape_.activation)];
  for (int r = 0; r < row_count; ++r) {
    float* gate = scratch.gate.data() + r * unit_columns;
    activate(gate, scratch.up.data() + r * unit_columns, unit_columns, gate);
    const int column = ffn.up.output_first() + unit * unit_columns;
    out.set(kernels_, row_first + r, column, gate, std::min(unit_columns, ffn_size - column));
  }
}

void Transformer::run_experts(Member& member, const Experts& experts, int row_count,
                              const Norm& post_norm) {
  choose_experts(member, experts, row_count);
  gate_experts(member, experts);
  reduce_experts(member, experts);
  if (shape_.experts.shared_ffn_size > 0) {
    feed_forward(member, experts.shared, *ffn_input_, shape_.experts.shared_ffn_size, row_count,
                 *shared_down_);
    multiply(member, experts.shared.down, *shared_down_, row_count, shared_output_.data(),
             hidden_stride_, false);
  }
  mix_experts(member, experts, row_count);
  if (!shape_.adds_directly()) join_branch(member, row_count, post_norm);
}

// Routes every row and fills the slots' inputs.
void Transformer::choose_experts(Member& member, const Experts& experts, int row_count) {
  multiply(member, experts.router, *ffn_input_, row_count, experts_.logits(0),
           experts_.logits_stride(), false);
  member.share(row_count, chunk_of(row_count, member.team_size()), [&](int first, int end) {
    for (int row = first; row < end; ++row) experts_.choose(row);
  });
  member.share(1, 1, [&](int, int) { experts_.build(row_count); });
  const ActivationRows rows = ffn_input_->view();
  const int slots = row_count * shape_.experts.used;
  member.share(slots, chunk_of(slots, member.team_size()), [&](int first, int end) {
    for (int slot = first; slot < end; ++slot)
      expert_input_->set(kernels_, slot, 0,
                         rows.floats + static_cast<std::size_t>(experts_.row_of(slot)) *
                                           rows.float_stride,
                         shape_.hidden_size);
  });
}

void Transformer::gate_experts(Member& member, const Experts& experts) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  const int columns = blocks_of(experts.each[0].up.matrix.outputs(), unit_columns);
  const int units = columns * experts_.block_count();
  member.share(units, chunk_of(units, member.team_size()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const ExpertPlan::Block& block = experts_.blocks()[static_cast<std::size_t>(unit / columns)];
      gate_unit(experts.each[static_cast<std::size_t>(block.expert)], *expert_input_,
                unit % columns, block.slot_first, block.slot_count, shape_.experts.ffn_size, scratch,
                *expert_down_);
    }
  }, Meet::ranks);
}

void Transformer::reduce_experts(Member& member, const Experts& experts) {
  const ActivationRows rows = expert_down_->view();
  const int tiles = experts.each[0].down.matrix.tile_count();
  const int units = tiles * experts_.block_count();
  member.share(units, chunk_of(units, member.team_size()), [&](int first, int end) {
    for (int unit = first; unit < end; ++unit) {
      const ExpertPlan::Block& block = experts_.blocks()[static_cast<std::size_t>(unit / tiles)];
      const int tile = unit % tiles;
      const Linear& down = experts.each[static_cast<std::size_t>(block.expert)].down;
      float* out = expert_output_.data() + static_cast<std::size_t>(block.slot_first) * hidden_stride_ +
                   static_cast<std::size_t>(down.tile_first + tile) * tile_columns;
      kernels_.matmul[static_cast<int>(down.matrix.type())](
          down.matrix.tile(tile), rows, block.slot_first, block.slot_count,
          {out, hidden_stride_, down.bias_at(tile), false});
    }
  });
}

// Adds each row's experts in the order of its choice, so that sums do not depend on the batch; of the
// hidden values, a rank does those that its part of the down matrices gives.
void Transformer::mix_experts(Member& member, const Experts& experts, int row_count) {
  const ActivationRows inputs = ffn_input_->view();
  const bool direct = shape_.adds_directly();
  const Linear& down = experts.each[0].down;
  const int begin = down.output_first();
  const int stop = begin + down.matrix.outputs();
  member.share(row_count, chunk_of(row_count, member.team_size()), [&](int first, int end) {
    for (int row = first; row < end; ++row) {
      float* out = direct ? hidden_row(row) : branch_row(row);
      if (!direct) std::fill(out + begin, out + stop, 0.0f);
      for (int choice = 0; choice < shape_.experts.used; ++choice) {
        const float weight = experts_.weight_of(row, choice);
        const float* values = expert_output_.data() +
            static_cast<std::size_t>(experts_.slot_of(row, choice)) * hidden_stride_;
        for (int i = begin; i < stop; ++i) out[i] += weight * values[i];
      }
      if (shape_.experts.shared_ffn_size == 0) continue;
      float weight = 1.0f;
      if (experts.shared_gate.size() != 0) {
        const float* input = inputs.floats + static_cast<std::size_t>(row) * inputs.float_stride;
        double logit = 0;
        for (int i = 0; i < shape_.hidden_size; ++i)
          logit += static_cast<double>(input[i]) * experts.shared_gate[static_cast<std::size_t>(i)];
        weight = static_cast<float>(1.0 / (1.0 + std::exp(-logit)));
      }
      const float* values = shared_output_.data() + static_cast<std::size_t>(row) * hidden_stride_;
      for (int i = begin; i < stop; ++i) out[i] += weight * values[i];
    }
  }, Meet::ranks);
}

}  // namespace headrace
