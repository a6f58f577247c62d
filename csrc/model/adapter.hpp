// LoRA adapters: y += scale * B (A x) for rows of the requests that ask for one (Hu et al. 2021,
// arXiv 2106.09685). A and B are packed like any weights and multiplied by the same kernels. A rank has
// A whole, and of B the outputs that it has of the adapted matrix.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/rank_group.hpp"
#include "model/model_shape.hpp"
#include "model/packed_matrix.hpp"
#include "model/step_batch.hpp"

namespace headrace {

// The matrices that an adapter may change; the order of adapter_targets in Python. The last two are
// the model's, with layer -1. The embedding's A is kept by tokens: (vocab_size, rank).
enum class AdapterTarget : int { query, key, value, attention_output, gate, up, down, embedding,
                                 output };
constexpr int adapter_target_count = 7;   // of a layer
constexpr int model_target_count = 2;
constexpr int adapter_run_rows = 32;   // of one unit of work
constexpr std::size_t adapter_targets_max = 3;   // of one branch's input: Q, K, V

// Where in a layer an adapter may add something; `place` is the low-rank row's in its branch.
struct AdapterSite {
  int layer = -1;   // nowhere
  AdapterTarget target = AdapterTarget::query;
  int place = 0;
};

struct LowRank {
  PackedMatrix down;   // A: (rank, inputs)
  PackedMatrix up;     // B: (outputs of this rank, rank); of the embedding all outputs
  float scale = 0;

  bool empty() const { return down.outputs() == 0; }
};

// One target, as it comes from a file.
struct AdapterPart {
  int layer;
  int target;
  float scale;
  RawTensor down;
  RawTensor up;
};

class Adapter {
 public:
  // ModelFileError naming the part that does not fit the model or is over `rank_max`.
  Adapter(const ModelShape& shape, const std::vector<AdapterPart>& parts, int rank_max,
          const RankPlace& place);

  const LowRank& part(int layer, AdapterTarget target) const {
    return parts_[static_cast<std::size_t>(layer) * adapter_target_count +
                  static_cast<std::size_t>(target)];
  }
  const LowRank& embedding() const { return parts_[parts_.size() - 2]; }
  const LowRank& output() const { return parts_.back(); }
  std::size_t byte_count() const;

 private:
  std::vector<LowRank> parts_;   // (num_layers, adapter_target_count), then embedding and output
};

// The adapters that are loaded, by slot, and the runs of a step's rows that go through each.
class AdapterPlan {
 public:
  struct Run {
    int row_first;
    int row_count;   // <= adapter_run_rows
    const Adapter* adapter;
  };

  AdapterPlan(int slots, int rank_max)
      : rank_max_(rank_max), loaded_(static_cast<std::size_t>(slots)) {}

  int rank_max() const { return rank_max_; }
  int slot_count() const { return static_cast<int>(loaded_.size()); }
  void put(int slot, std::unique_ptr<Adapter> adapter);   // null empties; InvalidStep out of range
  std::size_t byte_count() const;

  void build(const StepBatch& batch);   // InvalidStep if a sequence names an empty slot
  const std::vector<Run>& runs() const { return runs_; }
  // Of a sequence of the step; null if it asks for none.
  const Adapter* of(int sequence) const {
    return runs_.empty() ? nullptr : by_sequence_[static_cast<std::size_t>(sequence)];
  }

 private:
  int rank_max_;
  std::vector<std::unique_ptr<Adapter>> loaded_;
  std::vector<Run> runs_;
  std::vector<const Adapter*> by_sequence_;
};

}  // namespace headrace
