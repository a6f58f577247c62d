// What LoRA adapters add to a layer's products. A step without adapters passes by all of it.
//
// A branch's A x is one stage before its product; B goes into the product's own units, tile by tile.
#include <algorithm>

#include "model/step_stages.hpp"
#include "model/transformer.hpp"

namespace headrace {

void Transformer::load_adapter(int slot, std::unique_ptr<Adapter> adapter) {
  if (low_rank_.size() == 0) {   // the floats that ranks share are there from the beginning
    low_rank_ = Buffer<float>(static_cast<std::size_t>(rows_max_) * low_rank_stride());
    for (Activations* input : {attention_input_.get(), mixed_input_.get(), ffn_input_.get(),
                               down_input_.get()})
      input->keep_floats(rows_max_);
    output_input_->keep_floats(sampled_block);
  }
  adapters_.put(slot, std::move(adapter));
}

std::size_t Transformer::low_rank_stride() const {
  return adapter_targets_max * round_up(static_cast<std::size_t>(adapters_.rank_max()),
                                        tile_columns);
}

float* Transformer::low_rank_row(int row, int place) {
  return low_rank_.data() + static_cast<std::size_t>(row) * low_rank_stride() +
         static_cast<std::size_t>(place) * (low_rank_stride() / adapter_targets_max);
}

// scale * A x of every run and of `count` targets from `first`, into places 0, 1, ...
void Transformer::enter_adapters(Member& member, int layer, AdapterTarget first, int count,
                                 const Activations& input) {
  if (adapters_.runs().empty()) return;
  const ActivationRows rows = input.view();
  const int tiles = blocks_of(adapters_.rank_max(), tile_columns);
  const int units = static_cast<int>(adapters_.runs().size()) * count * tiles;
  member.share(units, chunk_of(units, member.team_size()), [&](int unit_first, int unit_end) {
    for (int unit = unit_first; unit < unit_end; ++unit) {
      const int tile = unit % tiles;
      const int place = unit / tiles % count;
      const AdapterPlan::Run& run = adapters_.runs()[static_cast<std::size_t>(unit / tiles / count)];
      const LowRank& low =
          run.adapter->part(layer, static_cast<AdapterTarget>(static_cast<int>(first) + place));
      if (tile >= low.down.tile_count()) continue;   // of a smaller rank, or not adapted
      float* out = low_rank_row(run.row_first, place) + static_cast<std::size_t>(tile) * tile_columns;
      kernels_.matmul[static_cast<int>(low.down.type())](
          low.down.tile(tile), rows, run.row_first, run.row_count,
          {out, low_rank_stride(), nullptr, false});
      for (int r = 0; r < run.row_count; ++r, out += low_rank_stride())
        for (int i = 0; i < tile_columns; ++i) out[i] *= low.scale;
    }
  });
}

// Adds B's share to a tile of rows [row_first, row_first + row_count) that a product has filled.
void Transformer::add_adapters(AdapterSite site, int tile, int row_first, int row_count, float* out,
                               std::size_t stride) {
  if (site.layer < 0) return;
  for (const AdapterPlan::Run& run : adapters_.runs()) {
    const int first = std::max(run.row_first, row_first);
    const int end = std::min(run.row_first + run.row_count, row_first + row_count);
    if (first >= end) continue;
    const LowRank& low = run.adapter->part(site.layer, site.target);
    if (low.empty()) continue;
    ActivationRows rows;
    rows.floats = low_rank_row(0, site.place);
    rows.float_stride = low_rank_stride();
    rows.inputs = low.up.inputs();
    kernels_.matmul[static_cast<int>(low.up.type())](
        low.up.tile(tile), rows, first, end - first,
        {out + static_cast<std::size_t>(first - row_first) * stride, stride, nullptr, true});
  }
}

// Adds to a token's row what its request's adapter adds to the embedding: B times A's column.
void Transformer::embed_adapted(int row, int token) {
  const Adapter* adapter = adapters_.of(row_sequence_[static_cast<std::size_t>(row)]);
  if (adapter == nullptr || adapter->embedding().empty()) return;
  const LowRank& low = adapter->embedding();
  float* column = low_rank_row(row, 0);
  low.down.read_row(token, column);
  for (int i = 0; i < low.down.inputs(); ++i) column[i] *= low.scale;
  for (int tile = 0; tile < low.up.tile_count(); ++tile)
    add_low_rank(low, tile, row, hidden_row(row) + static_cast<std::size_t>(tile) * tile_columns);
}

// scale * A x of the sampled row in `place`, whose logits a request's adapter changes.
void Transformer::enter_output_adapter(int place, int sequence) {
  const Adapter* adapter = adapters_.of(sequence);
  if (adapter == nullptr || adapter->output().empty()) return;
  const LowRank& low = adapter->output();
  for (int tile = 0; tile < low.down.tile_count(); ++tile) {
    float* out = low_rank_row(place, 0) + static_cast<std::size_t>(tile) * tile_columns;
    kernels_.matmul[static_cast<int>(low.down.type())](
        low.down.tile(tile), output_input_->view(), place, 1, {out, low_rank_stride(), nullptr, false});
    for (int i = 0; i < tile_columns; ++i) out[i] *= low.scale;
  }
}

// B's share of a tile of the sampled row's logits.
void Transformer::add_output_adapter(int place, int sequence, int tile, float* out) {
  const Adapter* adapter = adapters_.of(sequence);
  if (adapter != nullptr && !adapter->output().empty())
    add_low_rank(adapter->output(), tile, place, out);
}

// Adds a tile of B times the low-rank row in `row`'s first place.
void Transformer::add_low_rank(const LowRank& low, int tile, int row, float* out) {
  ActivationRows rows;
  rows.floats = low_rank_row(0, 0);
  rows.float_stride = low_rank_stride();
  rows.inputs = low.up.inputs();
  kernels_.matmul[static_cast<int>(low.up.type())](low.up.tile(tile), rows, row, 1,
                                                   {out, low_rank_stride(), nullptr, true});
}

}  // namespace headrace
