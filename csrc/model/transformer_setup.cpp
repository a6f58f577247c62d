// How a Transformer is put together: what is checked, allocated and laid out before the first step.
#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "kernels/dispatch.hpp"
#include "model/step_stages.hpp"
#include "model/transformer.hpp"

namespace headrace {

namespace {

InputForms forms_of(const KernelTable& kernels, std::initializer_list<const Linear*> linears) {
  InputForms forms;
  for (const Linear* linear : linears)
    if (linear->matrix.outputs() > 0) forms.add(kernels, linear->matrix.type());
  return forms;
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

Transformer::Scratch::Scratch(const ModelShape& shape, const KernelTable& kernels,
                              bool gathers_heads)
    : row(round_up(static_cast<std::size_t>(shape.hidden_size), tile_columns)),
      heads(gathers_heads ? static_cast<std::size_t>(shape.query_size()) : 0),
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
      kernels_(choose_kernels(options.isa_limit, options.activation_bits)),
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
      heads_(shared_buffer<float>(group_.get(), gathered_heads(shape, options))),
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
  if (group_ != nullptr) {
    command_data_ = group_->take<std::int32_t>(command_words());
    parcel_ = group_->take<std::uint8_t>(export_bytes());
  }
  make_inputs();
  kept_rows_.reserve(static_cast<std::size_t>(options.sequences_max));
  for (int i = 0; i < threads_of(options); ++i) scratch_.emplace_back(shape, kernels_, gathers_heads());
  build_rope_tables();
}

void Transformer::make_inputs() {
  const ExpertShape& experts = shape_.experts;
  InputForms attention, mixed, ffn, down, expert, expert_down, shared_down, output;
  for (const LayerWeights& layer : weights_.layers) {
    attention.add(forms_of(kernels_, {&layer.query, &layer.key, &layer.value}));
    mixed.add(forms_of(kernels_, {&layer.attention_output}));
    ffn.add(forms_of(kernels_, {&layer.ffn.gate, &layer.ffn.up, &layer.experts.router,
                             &layer.experts.shared.gate, &layer.experts.shared.up}));
    down.add(forms_of(kernels_, {&layer.ffn.down}));
    shared_down.add(forms_of(kernels_, {&layer.experts.shared.down}));
    for (const FeedForward& each : layer.experts.each) {
      expert.add(forms_of(kernels_, {&each.gate, &each.up}));
      expert_down.add(forms_of(kernels_, {&each.down}));
    }
  }
  if (!shape_.encoder) output.add(kernels_, weights_.output_linear().matrix.type());
  ffn.floats |= experts.count > 0;   // what the experts' slots are filled from
  if (group_ != nullptr && adapters_.slot_count() > 0) mixed.floats = down.floats = true;
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

int Transformer::activation_bits() const {
  for (const Activations* input :
       {attention_input_.get(), mixed_input_.get(), ffn_input_.get(), down_input_.get(),
        output_input_.get(), expert_input_.get(), expert_down_.get(), shared_down_.get()})
    if (input != nullptr && input->forms().has_eight_bits()) return 8;
  return 16;
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

}  // namespace headrace
