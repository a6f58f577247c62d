#include "model/adapter.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "model/weights.hpp"

namespace headrace {

namespace {

constexpr int target_count = adapter_target_count + model_target_count;

// Where a part is kept.
std::size_t index_of(const ModelShape& shape, const AdapterPart& part) {
  const int layer = part.layer < 0 ? shape.num_layers : part.layer;
  const int target = part.layer < 0 ? part.target - adapter_target_count : part.target;
  return static_cast<std::size_t>(layer) * adapter_target_count + static_cast<std::size_t>(target);
}

// Outputs and inputs of a target's matrix.
std::pair<int, int> shape_of(const ModelShape& shape, AdapterTarget target) {
  switch (target) {
    case AdapterTarget::query:
      return {shape.query_size(), shape.hidden_size};
    case AdapterTarget::key:
    case AdapterTarget::value:
      return {shape.kv_size(), shape.hidden_size};
    case AdapterTarget::attention_output:
      return {shape.hidden_size, shape.query_size()};
    case AdapterTarget::gate:
    case AdapterTarget::up:
      return {shape.ffn_size, shape.hidden_size};
    case AdapterTarget::embedding:   // the inputs are in A's rows
      return {shape.hidden_size, shape.vocab_size};
    case AdapterTarget::output:
      return {shape.vocab_size, shape.hidden_size};
    case AdapterTarget::down:
      break;
  }
  return {shape.hidden_size, shape.ffn_size};
}

// Where the outputs of a target's matrix are cut between ranks, as weights.cpp cuts them.
int unit_of(const ModelShape& shape, AdapterTarget target) {
  switch (target) {
    case AdapterTarget::query:
      return shape.group_size() * shape.head_dim;
    case AdapterTarget::key:
    case AdapterTarget::value:
      return shape.head_dim;
    case AdapterTarget::gate:
    case AdapterTarget::up:
      return group_values;
    default:
      return tile_columns;
  }
}

// B of a rank. Who has a token's row of the embedding adds to all of it.
RawTensor up_of_rank(const ModelShape& shape, const AdapterPart& part, const RankPlace& place) {
  const auto target = static_cast<AdapterTarget>(part.target);
  if (target == AdapterTarget::embedding) return part.up;
  return rows_of(part.up, rows_of_rank(place, part.up.outputs, unit_of(shape, target)));
}

void require(bool holds, const AdapterPart& part, const std::string& problem) {
  if (!holds) throw ModelFileError("adapter tensor " + part.up.name + " " + problem);
}

void check(const ModelShape& shape, const AdapterPart& part, int rank_max) {
  require(part.target >= 0 && part.target < target_count, part, "is of no known matrix");
  const bool of_model = part.target >= adapter_target_count;
  require(of_model ? part.layer == -1 : part.layer >= 0 && part.layer < shape.num_layers, part,
          "is of a layer that is not there");
  const bool feed_forward = !of_model && part.target >= static_cast<int>(AdapterTarget::gate);
  require(!feed_forward || shape.experts.count == 0, part, "is of a model's experts");
  require(part.target != static_cast<int>(AdapterTarget::gate) || shape.gated, part,
          "is of a gate that the model has not");
  require(std::isfinite(part.scale), part, "has a scale that is no number");
  const auto [outputs, inputs] = shape_of(shape, static_cast<AdapterTarget>(part.target));
  const bool by_inputs = part.target == static_cast<int>(AdapterTarget::embedding);
  const int rank = by_inputs ? part.down.inputs : part.down.outputs;
  const int down_inputs = by_inputs ? part.down.outputs : part.down.inputs;
  require(rank >= 1 && rank <= rank_max, part,
          "has rank " + std::to_string(rank) + " where at most " + std::to_string(rank_max) +
              " is served");
  require(down_inputs == inputs && part.up.outputs == outputs && part.up.inputs == rank, part,
          "does not fit the model's matrix of " + std::to_string(outputs) + " x " +
              std::to_string(inputs));
  for (const RawTensor* raw : {&part.down, &part.up})
    require(!is_quantized(weight_type_of(raw->ggml_type, raw->name)), part, "is quantized");
}

}  // namespace

Adapter::Adapter(const ModelShape& shape, const std::vector<AdapterPart>& parts, int rank_max,
                 const RankPlace& place)
    : parts_(static_cast<std::size_t>(shape.num_layers) * adapter_target_count +
             model_target_count) {
  for (const AdapterPart& part : parts) {
    check(shape, part, rank_max);
    LowRank& low = parts_[index_of(shape, part)];
    low.down = PackedMatrix(part.down);
    low.up = PackedMatrix(up_of_rank(shape, part, place));
    low.scale = part.scale;
  }
}

std::size_t Adapter::byte_count() const {
  std::size_t total = 0;
  for (const LowRank& low : parts_) total += low.down.byte_count() + low.up.byte_count();
  return total;
}

void AdapterPlan::put(int slot, std::unique_ptr<Adapter> adapter) {
  if (slot < 0 || slot >= static_cast<int>(loaded_.size()))
    throw InvalidStep("adapter slot " + std::to_string(slot) + " is outside 0.." +
                      std::to_string(static_cast<int>(loaded_.size()) - 1));
  loaded_[static_cast<std::size_t>(slot)] = std::move(adapter);
}

std::size_t AdapterPlan::byte_count() const {
  std::size_t total = 0;
  for (const auto& adapter : loaded_)
    if (adapter) total += adapter->byte_count();
  return total;
}

void AdapterPlan::build(const StepBatch& batch) {
  runs_.clear();
  by_sequence_.clear();
  if (batch.adapters == nullptr) return;
  const Adapter* last = nullptr;
  for (int s = 0; s < batch.sequence_count; ++s) {
    const int slot = batch.adapters[s];
    const Adapter* adapter = nullptr;
    if (slot >= 0 && slot < static_cast<int>(loaded_.size()))
      adapter = loaded_[static_cast<std::size_t>(slot)].get();
    if (slot != -1 && adapter == nullptr)
      throw InvalidStep("adapters[" + std::to_string(s) + "] is " + std::to_string(slot) +
                        ", a slot without an adapter");
    by_sequence_.push_back(adapter);
    const int end = batch.row_starts[s + 1];
    int row = batch.row_starts[s];
    if (adapter != nullptr && adapter == last) {   // single rows of one adapter go together
      Run& run = runs_.back();
      const int more = std::min(end - row, adapter_run_rows - run.row_count);
      run.row_count += more;
      row += more;
    }
    last = adapter;
    if (adapter == nullptr) continue;
    for (; row < end; row += adapter_run_rows)
      runs_.push_back({row, std::min(adapter_run_rows, end - row), adapter});
  }
}

}  // namespace headrace
