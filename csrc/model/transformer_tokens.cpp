// Both ends of a step: from tokens to rows, and from rows to logits and tokens.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/step_stages.hpp"
#include "model/transformer.hpp"

namespace headrace {

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
      embed_adapted(row, batch.token_ids[row]);
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
        enter_output_adapter(i, batch.sampled[block + i]);
      }
    });
    const int tiles = matrix.tile_count();
    member.share(tiles, chunk_of(tiles, member.team_size()), [&](int first, int end) {
      for (int tile = first; tile < end; ++tile) {
        float* out =
            logits_.data() + column_first + static_cast<std::size_t>(tile) * tile_columns;
        matmul(matrix.tile(tile), input, 0, count,
               {out, logits_stride_, weights_.tied ? nullptr : output.bias_at(tile), false});
        for (int i = 0; i < count && !adapters_.runs().empty(); ++i, out += logits_stride_)
          add_output_adapter(i, batch.sampled[block + i], tile, out);
      }
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
